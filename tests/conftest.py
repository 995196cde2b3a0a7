"""Every engine that a test closes is checked first, and every store of a server that a test has killed.

A time-out fails one test: :mod:`tests.time_limits`.  Hypothesis measures no time: how long an example takes says more
about the machine than about what is tested.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.logging import LogCaptureHandler
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from broker_adapter import own_threads
from broker_adapter.engine.broker import Broker
from broker_adapter.errors import JMSException
from tests.time_limits import TimeLimits
from tests.workers import ByFile, load_share, put_long_ones_first

# Only the first of Java's two compilers, and a collector without threads: a test's jobs are too short for the others to
# gain what they take.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
settings.register_profile(
    "holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("holdfast")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(TimeLimits())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    """Divide the tests by files, where ``--dist loadfile`` asks for that."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """In a worker: see :func:`tests.workers.load_share`."""
    worker = getattr(session.config, "workerinput", None)
    if worker is not None:
        directories = [path for path in map(Path, session.config.args) if path.is_dir()]
        number = int(worker["workerid"].removeprefix("gw"))
        load_share([path.resolve() for path in directories], number, worker["workercount"])


@pytest.hookimpl(trylast=True)  # behind those that shuffle
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long tests first, and have those with Spark run again where its worker did not start in time.

    Spark waits ten seconds for that, which no option changes; where the machine is busy, that is too short.  Only these
    tests: for each test that may run again, a worker of pytest-xdist waits 40 ms for an answer of its controller.
    """
    put_long_ones_first(items)
    for item in items:
        if item.path.parent.name in ("spark_connector", "samples"):
            item.add_marker(pytest.mark.flaky(reruns=5, only_rerun=["worker failed to connect back"]))


def pytest_collection_finish() -> None:
    """Leave what the tests' modules have made to no garbage collection: there is much of it, and it stays."""
    gc.collect()
    gc.freeze()


class _WrittenLog(pytest.LogCaptureFixture):
    """What was logged, also where it is written by a thread of its own."""

    @property
    def handler(self) -> LogCaptureHandler:
        own_threads.flush_log(60)
        return super().handler


@pytest.fixture
def caplog(request: pytest.FixtureRequest) -> Iterator[pytest.LogCaptureFixture]:
    log = _WrittenLog(request.node, _ispytest=True)
    yield log
    log._finalize()


@pytest.fixture(autouse=True)
def engines_are_sound(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each engine, as it is closed: every table against every other, and against what is in memory.

    A test that damages a store says so by the marker ``damages``.
    """
    close = Broker.close
    wrong: list[str] = []

    def checked_close(broker: Broker) -> None:
        if broker.failed is None:
            try:
                wrong.extend(each.text for each in broker.check() if not each.harmless)
                if broker._state.totals.miscounted:
                    wrong.append("counters were wrong, and were corrected")
            except JMSException:
                pass  # it has failed meanwhile, or is being closed
        close(broker)

    if request.node.get_closest_marker("damages") is None:
        monkeypatch.setattr(Broker, "close", checked_close)
    yield
    assert not wrong, wrong[:10]
