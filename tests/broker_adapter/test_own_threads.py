"""Handlers of the log, which belong to the application, hold up no thread of the SDK."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator

import pytest

from broker_adapter.own_threads import MAX_RECORDS, LogWriter, flush_log, hand_over_log, may_wait, never_wait

WAIT = 60.0


class Slow(logging.Handler):
    """A handler that writes nothing before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.entered = threading.Event()
        self.written: list[tuple[str, str]] = []  #: the thread, and the text

    def emit(self, record: logging.LogRecord) -> None:
        self.entered.set()
        self.go.wait(WAIT)
        self.written.append((threading.current_thread().name, record.getMessage()))


@pytest.fixture
def writer() -> LogWriter:
    return LogWriter()


def say(log: logging.Logger, text: str, *arguments: object) -> None:
    """Log on a thread of the SDK."""
    thread = threading.Thread(target=log.warning, args=(text, *arguments), name="holdfast-io")
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()


@pytest.fixture
def log(writer: LogWriter) -> Iterator[logging.Logger]:
    """A logger that hands over to a thread which nothing else in this process uses."""
    logger = logging.getLogger("of this test")
    logger.propagate = False
    writer.start()
    logger.addFilter(writer)
    yield logger
    logger.filters.clear()
    logger.handlers.clear()


@pytest.fixture
def handler(log: logging.Logger) -> Iterator[Slow]:
    slow = Slow()
    log.addHandler(slow)
    yield slow
    slow.go.set()


def test_a_record_is_written_by_a_thread_of_its_own_and_its_logger_does_not_wait(
    writer: LogWriter, log: logging.Logger, handler: Slow
) -> None:
    say(log, "lost: %s", "the network")
    say(log, "restored")
    assert handler.entered.wait(WAIT)
    assert handler.written == []
    handler.go.set()
    writer.flush(WAIT)
    assert handler.written == [("holdfast-log", "lost: the network"), ("holdfast-log", "restored")]


def test_a_record_is_written_as_its_arguments_were_when_it_was_logged(
    writer: LogWriter, log: logging.Logger, handler: Slow
) -> None:
    changing = ["before"]
    say(log, "%s", changing)
    changing[0] = "after"
    handler.go.set()
    writer.flush(WAIT)
    assert handler.written[0][1] == "['before']"


def test_records_beyond_the_limit_are_dropped_and_the_next_one_says_how_many(
    writer: LogWriter, log: logging.Logger, handler: Slow
) -> None:
    say(log, "the first")
    assert handler.entered.wait(WAIT)

    def say_many() -> None:
        for number in range(MAX_RECORDS + 5):
            log.warning("%d", number)

    thread = threading.Thread(target=say_many, name="holdfast-engine")
    thread.start()
    thread.join()
    handler.go.set()
    writer.flush(WAIT)
    texts = [text for _, text in handler.written]
    assert len(texts) == 1 + MAX_RECORDS
    assert texts[1] == "0 (before this, 5 records were dropped: a handler of the log is slow)"
    assert texts[-1] == str(MAX_RECORDS - 1)


def test_a_handler_that_raises_keeps_no_later_record_back(
    writer: LogWriter, log: logging.Logger, handler: Slow, capsys: pytest.CaptureFixture[str]
) -> None:
    class Raises(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ValueError("a broken handler")

    log.addHandler(Raises())
    handler.go.set()
    say(log, "one")
    say(log, "two")
    writer.flush(WAIT)
    assert [text for _, text in handler.written] == ["one", "two"]
    assert "a broken handler" in capsys.readouterr().err


def test_the_thread_that_writes_the_log_does_not_wait_for_the_network(writer: LogWriter, log: logging.Logger) -> None:
    found: list[bool] = []

    class Asks(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(may_wait())

    log.addHandler(Asks())
    say(log, "x")
    writer.flush(WAIT)
    assert (found, may_wait()) == ([False], True)


def test_a_thread_says_of_itself_alone_that_it_does_not_wait() -> None:
    found: list[bool] = []

    def run() -> None:
        never_wait()
        found.append(may_wait())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert (found, may_wait()) == ([False], True)


def test_any_other_thread_writes_its_records_itself(log: logging.Logger, handler: Slow) -> None:
    handler.go.set()
    log.warning("x")
    assert handler.written == [(threading.current_thread().name, "x")]


def test_what_an_engine_logs_is_handed_over_by_whatever_thread_runs_its_cycle(
    writer: LogWriter, handler: Slow, log: logging.Logger
) -> None:
    handler.go.set()
    engine = logging.getLogger("holdfast.broker_adapter.engine.of_this_test")
    engine.addHandler(handler)
    engine.addFilter(writer)
    engine.warning("x")
    writer.flush(WAIT)
    engine.filters.clear()
    engine.handlers.clear()
    assert handler.written == [("holdfast-log", "x")]


def test_a_filter_of_the_application_is_asked_once(writer: LogWriter, log: logging.Logger, handler: Slow) -> None:
    asked: list[str] = []
    handler.go.set()

    def only_two(record: logging.LogRecord) -> bool:
        asked.append(record.getMessage())
        return record.getMessage() == "two"

    log.addFilter(only_two)
    say(log, "one")
    say(log, "two")
    writer.flush(WAIT)
    assert [text for _, text in handler.written] == ["two"]
    assert asked == ["one", "two"]


def test_a_record_that_cannot_be_shown_is_left_to_the_handlers(writer: LogWriter) -> None:
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError("not to be shown")

    writer.start()
    record = logging.LogRecord("x", logging.WARNING, "", 0, "%s", (Bad(),), None)
    record.threadName = "holdfast-io"
    assert writer.filter(record)


def test_a_handler_that_ends_its_thread_ends_no_log(writer: LogWriter, log: logging.Logger, handler: Slow) -> None:
    class Leaves(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise SystemExit

    handler.go.set()
    log.addHandler(Leaves())
    say(log, "one")
    say(log, "two")
    writer.flush(WAIT)
    assert [text for _, text in handler.written] == ["one", "two"]


def test_a_record_is_written_at_once_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = LogWriter()
    writer.start()
    record = logging.LogRecord("x", logging.WARNING, "", 0, "x", None, None)
    record.threadName = "holdfast-io"
    assert writer.filter(record)


def test_a_process_made_by_fork_writes_its_own_records(writer: LogWriter, log: logging.Logger, handler: Slow) -> None:
    handler.go.set()
    say(log, "of the parent")
    writer.flush(WAIT)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            writer.start_over()  # as the module has it done for its own
            writer.start()
            say(log, "of the child")
            writer.flush(WAIT)
            os.write(writing, handler.written[-1][1].encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as told:
        assert told.read() == "of the child"
    assert os.waitpid(child, 0)[1] == 0


def test_each_logger_of_holdfast_that_there_is_hands_over_what_it_logs(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("holdfast.tests.own_threads")
    hand_over_log()
    say(log, "x")
    flush_log(WAIT)
    assert [each.threadName for each in caplog.records if each.name == log.name] == ["holdfast-io"]
    assert [type(each) for each in log.filters] == [LogWriter]
    hand_over_log()
    assert len(log.filters) == 1


def test_a_process_made_by_fork_connects_though_another_thread_was_starting_the_log(writer: LogWriter) -> None:
    with writer._starting:  # as the other thread of the parent had it, which the child does not have
        found: list[bool] = []

        def connect_in_child() -> None:
            writer.start_over()
            writer.start()
            found.append(writer._thread is not None)

        thread = threading.Thread(target=connect_in_child)
        thread.start()
        thread.join(10)
        assert found == [True]
