"""Verifies what clients send to log in: the throttle says when, worker threads compute the hashes.

Everything but a hash is done in the thread of the server's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from functools import partial
from typing import Any, NamedTuple, Protocol

from broker_adapter.amqp.sasl import Work
from broker_adapter.errors import JMSException
from broker_adapter.server.access.login_throttle import LoginThrottle, Pair
from broker_adapter.server.access.origins import origin_of
from broker_adapter.server.access.users import MAX_NAME_LENGTH
from broker_adapter.server.workers.pool import Workers

_log = logging.getLogger(f"holdfast.{__name__}")

#: Most threads that compute hashes of passwords; there are no more than half of the cores.
_MAX_HASH_THREADS = 4


class Verified(Protocol):
    """A connection whose client logs in."""

    host: str
    is_closed: bool

    def data_received(self, data: bytes) -> None:
        """Bytes came; none where a result has."""


class _Attempt(NamedTuple):
    """A password, or a proof of one, that a client has sent."""

    connection: Verified
    work: Work


class PasswordChecks:
    """The attempts to log in that are verified, or wait for it.

    Args:
        delay_seconds: pause after wrong passwords, at first.
        max_delay_seconds: longest such pause.
    """

    def __init__(self, delay_seconds: float, max_delay_seconds: float) -> None:
        threads = max(1, min(_MAX_HASH_THREADS, (os.cpu_count() or 1) // 2))
        self._hashing = Workers(
            "holdfast-hash", threads, most_running=1, most_waiting=1, group_of=lambda pair: pair.origin
        )
        self._throttle: LoginThrottle[_Attempt] = LoginThrottle(
            delay_seconds, max_delay_seconds, is_abandoned=lambda attempt: attempt.connection.is_closed
        )
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<PasswordChecks {self._hashing!r}>"

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give results in the thread of this loop."""
        self._loop = loop

    def stop(self) -> None:
        """Give no more results, and compute no more."""
        self._loop = None
        self._hashing.stop()

    def verify(self, connection: Verified, work: Work) -> None:
        """Verify what a client has sent when its turn comes; in the loop's thread."""
        attempt = _Attempt(connection, work)
        pair = Pair(origin_of(connection.host), work.username[:MAX_NAME_LENGTH])
        self._throttle.submit(pair, attempt, time.monotonic())
        self._verify_next(attempt)

    def _verify_next(self, current: _Attempt | None = None) -> None:
        """Verify the attempts whose time has come.

        Args:
            current: the one that is being received; its connection goes on with what it receives by itself.
        """
        while (taken := self._throttle.take(time.monotonic())) is not None:
            pair, attempt = taken
            if not attempt.work.is_costly:
                self._verified(pair, attempt, _computed(attempt.work), resumes=attempt is not current)
                continue
            try:
                self._hashing.submit(pair, partial(self._hash, pair, attempt))
            except JMSException:  # the server is stopping
                self._throttle.finished(pair, None, time.monotonic())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._throttle.next_at()
        if at is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, at - time.monotonic()), self._verify_next)

    def _hash(self, pair: Pair, attempt: _Attempt) -> None:
        """In a worker's thread."""
        if attempt.connection.is_closed:
            then = partial(self._skipped, pair)
        else:
            then = partial(self._hashed, pair, attempt, _computed(attempt.work))
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(then)

    def _skipped(self, pair: Pair) -> None:
        self._throttle.finished(pair, None, time.monotonic())
        self._verify_next()

    def _hashed(self, pair: Pair, attempt: _Attempt, result: Any) -> None:
        self._verified(pair, attempt, result, resumes=True)
        self._verify_next()

    def _verified(self, pair: Pair, attempt: _Attempt, result: Any, *, resumes: bool) -> None:
        self._throttle.finished(pair, bool(result), time.monotonic())
        connection, work = attempt
        if connection.is_closed:
            return
        work.resume(result)
        if resumes:
            connection.data_received(b"")


def _computed(work: Work) -> Any:
    """The result of a piece of work; an unexpected error counts as a wrong password."""
    try:
        return work.compute()
    except Exception:
        _log.exception("! verifying a password failed unexpectedly")
        return None
