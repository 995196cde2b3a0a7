"""What a time-out ends: one test, as long as that test reacts to it; the whole run only where it does not.

pytest-timeout raises in the main thread when a test has taken too long, by a signal (``timeout_method = "signal"``).
Four cases need more than that:

- Something catches what is raised and goes on (Hypothesis does, to try the same example again), or another wait follows
  in a ``finally``: it is raised again every so often, until the test ends.
- pytest-timeout stops its clock as soon as a test has failed; what hangs then is the teardown of a fixture, and just
  after a time-out it often does.  So set-up, test and teardown have the time-out each.
- Raised in pytest's own code, which reports a failure, it would end the run.  So the clock runs for fixtures and test
  only.
- A loop in C reacts to no signal.  :mod:`faulthandler` has a thread of its own that needs no lock of the interpreter:
it
  writes the stacks of all threads and ends the run.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Generator, Iterator
from typing import Any

import attrs
import pytest

_SETTINGS: pytest.StashKey[Any] = pytest.StashKey()


@contextlib.contextmanager
def _limited(item: pytest.Item) -> Iterator[None]:
    """Have the clock run from zero while this is entered, and stand still afterwards."""
    settings = item.stash.get(_SETTINGS, None)
    if settings is None:
        yield
        return
    item.config.hook.pytest_timeout_set_timer(item=item, settings=settings)
    try:
        yield
    finally:
        item.config.hook.pytest_timeout_cancel_timer(item=item)


@attrs.define(eq=False)
class TimeLimits:
    """A plugin of pytest that completes pytest-timeout.

    Attributes:
        repeat_seconds: time after which a time-out is raised again in a test that goes on.
        patience_seconds: time after its time-out when a test ends the run.
    """

    repeat_seconds: float = 60.0
    patience_seconds: float = 600.0
    _stderr: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        assert sys.__stderr__ is not None
        self._stderr = os.dup(sys.__stderr__.fileno())  # before the output of tests is captured

    @pytest.hookimpl(wrapper=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
        result = yield
        if settings.method == "signal":
            item.stash[_SETTINGS] = settings
            signal.setitimer(signal.ITIMER_REAL, settings.timeout, self.repeat_seconds)
            faulthandler.dump_traceback_later(settings.timeout + self.patience_seconds, exit=True, file=self._stderr)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_timeout_cancel_timer(self) -> Generator[None, Any, Any]:
        faulthandler.cancel_dump_traceback_later()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with _limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with _limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with _limited(item):
            return (yield)

    def pytest_unconfigure(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        os.close(self._stderr)
