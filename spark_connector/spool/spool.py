"""A spool: a queue of ours in the driver, filled from a broker that knows no positions, and read by ranges.

Theory of operation
    A thread takes messages from the foreign broker, stores them in an embedded engine, and acknowledges them when they
    are on the disk here.  What is killed in between, either side, leaves messages that are redelivered: the engine
    rejects those that it has (:mod:`spool_messages`).  Executors reach the engine by a listener, as they reach any
    server.

    All of it is in the process in which Spark runs the source of one query, and ends with it.  The lock of the store
    keeps others out: a query that is started again may find it held by the process of its last run.  That ends when it
    cannot answer Spark, and where it waits, it looks whether the process that has started it is still there.

    The engine holds no more than the limits of the spool.  At these, what has come from the broker waits, and nothing
    more is asked for, until the query has settled something.

    What was received over a connection that is gone, and not stored, is sent again, and is dropped here.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from broker_adapter import (
    MESSAGE_TOO_LARGE,
    Delivery,
    EngineSettings,
    JMSException,
    MessageFormatException,
    ResourceAllocationException,
    StoreException,
    StoreLockedException,
)
from broker_adapter.clock import epoch_ms
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from sdk import Destination
from spark_connector.batch_reader import source_of
from spark_connector.driver.engine_listener import LOOPBACK, listen
from spark_connector.driver.engine_registry import DriverLog
from spark_connector.options import SourceOptions
from spark_connector.spool.messages import message_of, message_of_envelope, message_of_undecodable
from spark_connector.spool.progress import Progress
from spark_connector.spool.source import SpoolSource

_log = logging.getLogger(f"holdfast.{__name__}")

#: Messages that are stored in one commit at most.
BATCH_MESSAGES: Final = 1000
#: File in the directory of a spool that says what the spool is filled from; and the most bytes that are read of it.
SOURCE_FILE: Final = "source.txt"
_SOURCE_BYTES: Final = 64 * 1024
#: How long a second query waits for the lock of the spool, in seconds: the first may be about to end.
LOCK_SECONDS = 10.0
#: Longest wait for a message, after which the thread looks whether it is to end, in seconds.
_WAIT_SECONDS: Final = 0.2
#: Pause where the spool is full, in seconds.
_FULL_PAUSE_SECONDS: Final = 0.1
#: First and longest pause after something that hinders the moving, in seconds.
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 2.0
#: Longest wait for the engine to store a batch, in seconds.
_STORE_SECONDS: Final = 60.0
#: Longest wait for the thread to end, in seconds; it is a daemon.
_END_SECONDS: Final = 15.0
#: Largest message: an answer with a range of positions has at most 32 MiB.
_MESSAGE_BYTES: Final = 30 * 1024 * 1024


class Spool:
    """Fills a directory with messages, for one query.

    Args:
        options: what to take from where, and the directory.
        log: takes what the user should know.
        host: by which the executors reach this machine.
        bound: the address to listen on for them; None: the same.
        settings: further limits of the engine.

    Attributes:
        url: by which any process can read the spool's queue, by ranges.
        queue: its name, which is that of the queue or topic at the broker.
        waits_for_room: whether messages that have come wait until the query has processed some.

    Raises:
        StoreLockedException: another query has the spool; raised after :data:`LOCK_SECONDS`.
        StoreException: the directory cannot be used.
        ValueError: it has messages of another queue or subscription.
        ConnectionLostException: ``host`` is no address of this machine.
    """

    def __init__(
        self,
        options: SourceOptions,
        log: DriverLog | None = None,
        host: str = LOOPBACK,
        bound: str | None = None,
        settings: EngineSettings | None = None,
    ) -> None:
        assert options.spool is not None
        self._options = options
        self._driver_log = log or DriverLog()
        self.queue = source_of(options).name
        self._destination = Destination(self.queue)
        self._path = os.path.abspath(options.spool)
        self._most_messages, self._most_bytes = options.spool_max_messages, options.spool_max_bytes
        self._broker = _opened(self._path, settings or settings_of(options))
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._progress = Progress()
        self._source: SpoolSource | None = None
        self._told_of_ids = False
        self.waits_for_room = False
        try:
            self._refuse_other_sources()
            self._client = self._broker.call(c.Connect(None), _STORE_SECONDS)
            self._broker.call(c.Declare(self._destination), _STORE_SECONDS)
            self._listener, url = listen(self._broker, host, bound)
            self.url = f"{url}?failover=nofailover"  # Spark's workers outlive the query, and keep their connections
        except BaseException:
            self._broker.close()
            raise
        self._thread = threading.Thread(target=self._run, name="holdfast-spool", daemon=True)
        self._thread.start()

    @property
    def progress(self) -> Progress:
        """How far the moving has come."""
        with self._lock:
            return self._progress

    def is_confirmed(self) -> bool:
        """Return whether the broker has taken note of all that was acknowledged; asks it, for a few seconds at most.

        False as well where it cannot be asked.
        """
        source = self._source
        try:
            if source is None:
                return False
            source.confirm(_LONGEST_PAUSE_SECONDS)
        except JMSException as error:
            _log.debug("the broker does not confirm what was acknowledged: %s", error)
            return False
        return True

    def close(self) -> None:
        """End the moving, and close the engine; waits for the broker a few seconds at most.  Legal twice."""
        self._ended.set()
        self._thread.join(_END_SECONDS)
        self._listener.stop()
        self._broker.close()

    def _refuse_other_sources(self) -> None:
        """Raise ValueError where the spool was made for another source; note the source of a new one."""
        own = source_in_words(self._options)
        file = Path(self._path, SOURCE_FILE)
        try:
            if file.exists():
                noted = file.read_bytes()[:_SOURCE_BYTES].decode(errors="replace").strip()
                if noted != own:
                    raise ValueError(
                        f"the spool {self._path!r} has messages of {noted}, and this query reads {own}: give each query"
                        " a directory of its own (option spool)"
                    )
                return
            write_whole(file, f"{own}\n".encode())
        except OSError as error:
            raise JMSException(f"the spool {self._path!r} cannot note its source: {error}") from error

    def _queues(self) -> list[dict[str, Any]]:
        queues: list[dict[str, Any]] = self._broker.request("statistics", {}, _STORE_SECONDS)["queues"]
        return queues

    def _is_full(self) -> bool:
        for each in self._queues():
            if each["name"] == self.queue and each["kind"] == "queue":
                messages, size = each["messages"], each["bytes"]
                return messages >= self._most_messages or (self._most_bytes is not None and size >= self._most_bytes)
        return False

    # In the thread.

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._ended.is_set():
            moved = self.progress
            try:
                with SpoolSource(self._options) as source:
                    self._source = source
                    self._move(source)
            except JMSException as error:
                self._hindered(error, is_ours=isinstance(error, StoreException))
            except Exception as error:  # an unforeseen error must not look like a quiet queue
                _log.exception("the spool %r cannot be filled", self._path)
                self._hindered(JMSException(f"the spool {self._path!r} cannot be filled: {error!r:.500}"), is_ours=True)
            finally:
                self._source = None
                self.waits_for_room = False
            progress = self.progress
            went_on = (progress.moved, progress.waited_seconds) != (moved.moved, moved.waited_seconds)
            pause = _FIRST_PAUSE_SECONDS if went_on else min(2 * pause, _LONGEST_PAUSE_SECONDS)
            self._ended.wait(pause)

    def _hindered(self, error: JMSException, *, is_ours: bool) -> None:
        with self._lock:
            is_news = self._progress.error is None
            self._progress = self._progress.with_error(error, time.monotonic(), is_ours=is_ours)
        if is_news:
            _log.warning("the spool %r is not filled for now: %s", self._path, error)

    def _move(self, source: SpoolSource) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            deliveries = source.take(BATCH_MESSAGES, _WAIT_SECONDS)
            if deliveries:
                self._store(source, deliveries)
            else:
                with self._lock:
                    self._progress = self._progress.with_wait(time.monotonic() - began)

    def _store(self, source: SpoolSource, deliveries: Sequence[Delivery]) -> None:
        """Store these, in order, and acknowledge what is on the disk; waits for room without an end."""
        held = self._messages(deliveries)
        self.waits_for_room = False
        pause = _FIRST_PAUSE_SECONDS
        while held and not self._ended.is_set():
            source.check()
            self.waits_for_room = self._is_full()
            if self.waits_for_room:
                self._ended.wait(_FULL_PAUSE_SECONDS)
                continue
            messages = [message for _, message in held]
            errors = self._broker.call(c.Enqueue(self._client, self._destination, messages), _STORE_SECONDS)
            refused = [None] * len(held) if errors is None else errors
            stored = [delivery for (delivery, _), error in zip(held, refused, strict=True) if error is None]
            held = [each for each, error in zip(held, refused, strict=True) if error is not None]
            if stored:
                source.acknowledge(stored)
                with self._lock:
                    self._progress = self._progress.with_moved(len(stored))
                pause = _FIRST_PAUSE_SECONDS
            error = next((each for each in refused if each is not None), None)
            if error is not None and not self._is_full():
                self._hindered(self._explained(error), is_ours=True)
                self._ended.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _explained(self, error: JMSException) -> JMSException:
        """The engine's error as the user of a spool has to read it."""
        rest = "Nothing of it was acknowledged: the broker keeps it, and the query goes on when there is room"
        if error.error_code == MESSAGE_TOO_LARGE:
            rest = "It was not acknowledged: take it from the queue by another client, and start the query again"
        return ResourceAllocationException(
            f"the spool {self._path!r} cannot take messages of {self.queue!r}: {error.reason}. {rest}",
            error_code=error.error_code,
        )

    def _messages(self, deliveries: Sequence[Delivery]) -> list[tuple[Delivery, c.NewMessage]]:
        now_ms = epoch_ms()
        found = []
        for delivery in deliveries:
            payload = bytes(delivery.payload)
            if payload[:1] in (b"\x00", b""):
                message = message_of(payload, now_ms)
            else:
                try:
                    message = message_of_envelope(delivery.envelope, now_ms)
                except MessageFormatException:
                    message = message_of_undecodable(payload, now_ms)
            if message.identity is None and not self._told_of_ids:
                self._told_of_ids = True
                self._driver_log.warning(
                    f"messages of {self.queue!r} have no message id: one that the broker sends twice, as it does after"
                    " a lost connection or a kill, is read twice"
                )
            found.append((delivery, message))
        return found


def source_in_words(options: SourceOptions) -> str:
    """Return what a spool is filled from, but for the broker, whose address may change."""
    source = source_of(options)
    if not source.is_topic:
        return f"the queue {source.name!r}"
    client = "" if options.client_id is None else f" of the client {options.client_id!r}"
    return f"the subscription {options.subscription!r}{client} on the topic {source.name!r}"


def write_whole(file: Path, content: bytes) -> None:
    """Write a file so that it is there with all its content, or not at all.

    Raises:
        OSError: it cannot be written.
    """
    part = file.with_name(f"{file.name}.part")
    with open(part, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    part.replace(file)


def settings_of(options: SourceOptions) -> EngineSettings:
    """The limits of a spool's engine."""
    return EngineSettings(
        max_queue_messages=options.spool_max_messages,
        max_queue_bytes=options.spool_max_bytes,
        max_producers=options.spool_ids,
        max_message_bytes=_MESSAGE_BYTES,
        blocked_send_timeout_seconds=0,
    )


def _opened(path: str, settings: EngineSettings) -> Broker:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
            return Broker(settings, path)
        except StoreLockedException as error:
            if time.monotonic() > deadline:
                raise StoreLockedException(
                    f"the spool {path!r} is in use by another query ({error.reason}): give each query a directory of"
                    " its own (option spool), or stop the other one first"
                ) from error
            time.sleep(_WAIT_SECONDS)
        except OSError as error:
            raise JMSException(
                f"the spool {path!r} cannot be made: {error}; name a directory that the driver may write to"
            ) from error
