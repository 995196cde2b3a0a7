"""What an engine does on a disk that is full: run by ``test_full_disk.py`` on a small file system of its own.

Each scenario gets the directory of the file system, and raises where something is not as it must be.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.destination import queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.store.files import allocate_lock
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.maintenance import Report, check_store, compact_store
from broker_adapter.engine.store.starts import run_of
from broker_adapter.errors import (
    InvalidDestinationException,
    OperationTimedOutException,
    ResourceAllocationException,
    StoreException,
)
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import Inbox, attach, connect, depth, drained, eventually, message, settle

WAIT = 120.0
MIB = 1024 * 1024


def send(broker: Broker, client: int, *bodies: bytes, to: str = "q") -> Any:
    return broker.call(c.Enqueue(client, queue(to), [message(body) for body in bodies]), WAIT)


def fill(directory: Path, leave: int = 0) -> Path:
    """Somebody else takes the rest of the disk."""
    filler = directory / "filler"
    with open(filler, "wb") as file:
        free = shutil.disk_usage(directory).free - leave
        try:
            os.posix_fallocate(file.fileno(), 0, max(1, free))
        except OSError:
            while True:
                try:
                    file.write(bytes(65536))
                    file.flush()
                except OSError:
                    break
    return filler


def sound(broker: Broker) -> None:
    assert broker.failed is None, broker.failed
    found = [each.text for each in broker.check() if not each.harmless]
    assert not found, found


def producers_are_refused_consumers_go_on_and_an_empty_store_takes_messages_again(directory: Path) -> None:
    settings = EngineSettings(min_free_disk_bytes=16 * MIB, blocked_send_timeout_seconds=0.3)
    broker = Broker(settings, str(directory / "data"))
    client = connect(broker)
    for body in (b"x" * 300, b"y" * 20_000):
        sent = 0
        while (errors := send(broker, client, *([body] * 100))) is None:
            sent += 100
        assert "min_free_disk_bytes" in str(errors[-1])
        sent += errors.count(None)
        filler = fill(directory)
        assert shutil.disk_usage(directory).free < MIB
        # Not a byte is free, and everything that was confirmed comes out.
        consumer, inbox = attach(broker, client, "q", credit=1_000_000)
        settled = 0
        while settled < sent:
            handouts = inbox.wait_for(1)
            del inbox.handouts[: len(handouts)]
            settle(broker, consumer, handouts)
            settled += len(handouts)
        broker.call(c.Detach(consumer), WAIT)
        assert depth(broker, "q") == 0
        # The free pages of the file are enough for new messages.
        deadline = time.monotonic() + WAIT
        while send(broker, client, b"z" * 300) is not None:
            assert time.monotonic() < deadline
        assert len(drained(broker, client, "q", presettled=True)) == 1
        filler.unlink()
        deadline = time.monotonic() + WAIT
        while send(broker, client, body) is not None:
            assert time.monotonic() < deadline
        assert len(drained(broker, client, "q", presettled=True)) == 1
    sound(broker)
    broker.close()


def what_cannot_be_written_waits_until_there_is_room(directory: Path) -> None:
    """Another process has taken everything within the quarter of a second between two checks."""
    broker = Broker(EngineSettings(min_free_disk_bytes=0), str(directory / "data"))
    broker._measure_room = lambda _elapsed_ms, _incoming: None  # type: ignore[method-assign]
    client = connect(broker)
    assert send(broker, client, b"before") is None
    filler = fill(directory)
    answers: list[Any] = []
    messages = [message(b"x" * 100_000) for _ in range(20)]
    broker.submit(c.Enqueue(client, queue("q"), messages, answers.append))
    try:
        broker.call(c.Statistics(), 1)
        raise AssertionError("a full disk was written to")
    except OperationTimedOutException:
        pass
    assert broker.failed is None
    assert not answers
    filler.unlink()
    broker.call(c.Statistics(), WAIT)
    assert answers == [None]
    assert len(drained(broker, client, "q", presettled=True)) == 21
    sound(broker)
    broker.close()


def a_write_that_is_cut_short_waits_until_there_is_room(directory: Path) -> None:
    """With room for a part of it, LMDB says "Input/output error"."""
    broker = Broker(EngineSettings(min_free_disk_bytes=0), str(directory / "data"))
    broker._measure_room = lambda _elapsed_ms, _incoming: None  # type: ignore[method-assign]
    client = connect(broker)
    sent = 0
    for leave in (4096, 20_480, 102_400, 1_000_000):
        filler = fill(directory, leave)
        answers: list[Any] = []
        messages = [message(b"x" * 100_000) for _ in range(20)]
        broker.submit(c.Enqueue(client, queue("q"), messages, answers.append))
        with pytest.raises(OperationTimedOutException, match=r"is full; make room on it .* the engine waits for that"):
            broker.call(c.Statistics(), 1)
        with pytest.raises(ResourceAllocationException, match=r"is full; make room on it .* and ask again"):
            broker.request("bounds", {"destination": "q"}, WAIT)
        left = (directory / "data" / "data.mdb").read_bytes()
        assert broker.failed is None
        assert not answers
        filler.unlink()
        broker.call(c.Statistics(), WAIT)
        assert answers == [None]
        sent += 20
        assert depth(broker, "q") == sent
        # What SIGKILL would have left has nothing of what was not confirmed.
        killed = directory / "killed"
        killed.mkdir()
        (killed / "data.mdb").write_bytes(left)
        with closing(Broker(EngineSettings(min_free_disk_bytes=0), str(killed))) as again:
            sound(again)
            depths = {each.name: each.messages for each in again.call(c.Statistics(), WAIT).queues}
            assert depths.get("q", 0) == sent - 20
        shutil.rmtree(killed)
    assert len(drained(broker, client, "q", presettled=True)) == sent
    sound(broker)
    broker.close()


def at_the_limit_of_the_size_of_files_producers_are_refused_and_consumers_go_on(directory: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MIB, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    broker = Broker(EngineSettings(min_free_disk_bytes=0, blocked_send_timeout_seconds=0), str(directory))
    client = connect(broker)
    for sent in range(3):  # as often as the store is filled and emptied
        confirmed = 1
        eventually(lambda: send(broker, client, b"x" * 5000) is None)  # the room is measured now and then
        while (answer := send(broker, client, b"x" * 5000)) is None:
            confirmed += 1
        (error,) = answer
        assert isinstance(error, ResourceAllocationException)
        assert "of the size of files, ulimit -f" in str(error) or (sent and "are too scattered" in str(error))
        assert (50 if sent else 200) < confirmed < 600, (sent, confirmed)
        assert len(drained(broker, client, "q", presettled=True)) == confirmed
    sound(broker)
    broker.close()


def an_engine_starts_where_a_few_pages_are_left_and_goes_on_when_there_is_room(directory: Path) -> None:
    path = directory / "data"
    settings = EngineSettings(min_free_disk_bytes=0)
    with closing(Broker(settings, str(path))) as broker:
        client = connect(broker)
        for _ in range(5):
            assert send(broker, client, *([b"x" * 300] * 1000)) is None
    left = 5000
    for leave in (0, 4096, 8192, 12_288, 20_480, 28_672, 61_440):
        compact_store(path, settings)
        allocate_lock(path / "lock.mdb")
        filler = fill(directory, leave)
        with closing(Broker(settings, str(path))) as broker:
            room = threading.Timer(1.0, filler.unlink)
            room.start()
            consumer, inbox = attach(broker, connect(broker), "q", credit=500)
            handouts = inbox.wait_for(500)
            settle(broker, consumer, handouts)
            broker.call(c.Detach(consumer), WAIT)
            room.join()
            left -= len(handouts)
            assert depth(broker, "q") == left, leave
            sound(broker)


def a_start_on_a_full_disk_is_noted_when_there_is_room(directory: Path) -> None:
    """Else an older copy of the store that is put back is taken for this one."""
    path, copy = directory / "data", directory / "copy"
    settings = EngineSettings(min_free_disk_bytes=0)

    def bounds(broker: Broker, run: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = broker.request("bounds", {"destination": "q", "run": run}, WAIT)
        return found

    with closing(Broker(settings, str(path))) as broker:
        assert send(broker, connect(broker), *[b"old"] * 3) is None
        before = bounds(broker)["run"]
    compact_store(path, settings)
    allocate_lock(path / "lock.mdb")
    shutil.copytree(path, copy)
    for first in ("send", "ask"):
        filler = fill(directory)
        with closing(Broker(settings, str(path))) as broker:
            assert broker.store._writes.unnoted is not None
            with pytest.raises(ResourceAllocationException, match=r"make room on it, and ask again: the start"):
                bounds(broker)
            answer = broker.request("read_range", {"destination": "q", "first": 1, "last": 3, "run": before}, WAIT)
            assert len(answer["messages"]) == 3
            filler.unlink()
            if first == "send":
                assert send(broker, connect(broker), *[b"new"] * 3) is None
                assert broker.store.runs() == [run_of(before), broker.run]
            seen = bounds(broker)
            assert run_of(seen["run"]) == broker.run
            assert broker.store.runs() == [run_of(before), broker.run]
            assert send(broker, connect(broker), *[b"new"] * 3) is None
            seen = bounds(broker)
        shutil.rmtree(path)
        shutil.copytree(copy, path)
        with closing(Broker(settings, str(path))) as broker:
            assert send(broker, connect(broker), *[b"other"] * 50) is None
            assert bounds(broker, seen["run"])["kept"] == 4
            arguments = {"destination": "q", "first": 1, "position": seen["next"] - 1, "run": seen["run"]}
            with pytest.raises(InvalidDestinationException):
                broker.request("settle_through", arguments, WAIT)
        shutil.rmtree(path)
        shutil.copytree(copy, path)


def a_new_store_for_which_there_is_no_room_is_none(directory: Path) -> None:
    path = directory / "data"
    for leave in range(0, 53_248, 4096):
        filler = fill(directory, leave)
        failure = None
        try:
            LmdbStore(path, EngineSettings()).close()
        except StoreException as error:
            failure = error
        assert failure is None or (leave < 49_152 and "make room on" in str(failure))
        filler.unlink()
        LmdbStore(path, EngineSettings()).close()
        shutil.rmtree(path)


def an_engine_that_is_closed_on_a_full_disk_confirms_nothing_that_is_not_there(directory: Path) -> None:
    broker = Broker(EngineSettings(min_free_disk_bytes=0), str(directory / "data"))
    broker._measure_room = lambda _elapsed_ms, _incoming: None  # type: ignore[method-assign]
    client = connect(broker)
    assert send(broker, client, b"before") is None
    filler = fill(directory)
    answers: list[Any] = []
    broker.submit(c.Enqueue(client, queue("q"), [message(b"x" * 100_000) for _ in range(20)], answers.append))
    broker.close()
    assert len(answers) == 1
    assert answers[0] is not None
    filler.unlink()
    broker = Broker(EngineSettings(min_free_disk_bytes=0), str(directory / "data"))
    assert len(drained(broker, connect(broker), "q", presettled=True)) == 1
    sound(broker)
    broker.close()


def a_transaction_that_does_not_fit_is_refused_and_the_engine_goes_on(directory: Path) -> None:
    settings = EngineSettings(min_free_disk_bytes=16 * MIB, blocked_send_timeout_seconds=0.3)
    broker = Broker(settings, str(directory / "data"))
    client = connect(broker)
    sends = [(queue("q"), message(os.urandom(MIB))) for _ in range(85)]
    failed: list[Any] = []
    broker.submit(c.Commit(client, c.CommitId("s", 1), sends, [], failed.append))
    deadline = time.monotonic() + WAIT
    while not failed:
        assert time.monotonic() < deadline
        assert send(broker, client, b"small", to="small") is None  # no other send waits for it
    assert "min_free_disk_bytes" in str(failed[0])
    assert broker.call(c.Commit(client, c.CommitId("s", 2), sends[:10], []), WAIT) is None
    assert depth(broker, "q") == 10
    sound(broker)
    broker.close()


def a_small_store_with_three_hundred_subscriptions_refuses_and_goes_on(directory: Path) -> None:
    settings = EngineSettings(min_free_disk_bytes=0, blocked_send_timeout_seconds=0.3, max_store_bytes=16 * MIB)
    broker = Broker(settings, str(directory / "data"))
    client = connect(broker, "me")
    consumers = []
    for number in range(300):
        inbox = Inbox()
        subscription = Subscription(f"s{number}", durable=True, shared=False)
        consumers.append((broker.call(c.Attach(client, topic("t"), inbox, subscription), WAIT), inbox))
    sent = 0
    while True:
        command = c.Enqueue(client, topic("t"), [message(b"%d" % number) for number in range(500)])
        errors = broker.call(command, WAIT)
        if errors is not None:
            sent += errors.count(None)
            break
        sent += 500
    assert "max_store_bytes" in str(errors[-1])
    assert 100 < sent < 2000
    for consumer, inbox in consumers:
        broker.call(c.Credit(consumer, sent), WAIT)
        settle(broker, consumer, inbox.wait_for(sent))
    deadline = time.monotonic() + WAIT
    while broker.call(c.Enqueue(client, topic("t"), [message(b"again")]), WAIT) is not None:
        assert time.monotonic() < deadline
    sound(broker)
    broker.close()


def a_repair_and_a_compaction_that_have_no_room_leave_the_file_as_it_was(directory: Path) -> None:
    path = directory / "data"
    broker = Broker(EngineSettings(min_free_disk_bytes=0), str(path))
    client = connect(broker)
    for _ in range(15):
        assert send(broker, client, *([b"x" * 1000] * 1000)) is None
    broker.close()
    filler = fill(directory, leave=4 * MIB)
    for attempt in (lambda: compact_store(path, EngineSettings()), lambda: repaired(path)):
        before = (path / "data.mdb").read_bytes()
        with pytest.raises(StoreException, match=r"the disk of .* is full; make room on it, and do it again"):
            attempt()
        assert (path / "data.mdb").read_bytes() == before
        assert {each.name for each in path.iterdir()} <= {"data.mdb", "lock.mdb", "owner"}
        damage(path)
    filler.unlink()
    assert repaired(path).salvaged == 0
    assert check_store(path, EngineSettings()).is_sound


def a_store_without_its_lock_file_is_not_opened_where_there_is_no_room_for_it(directory: Path) -> None:
    path = directory / "data"
    broker = Broker(EngineSettings(min_free_disk_bytes=0), str(path))
    assert send(broker, connect(broker), b"x") is None
    broker.close()
    compact_store(path, EngineSettings())
    assert not (path / "lock.mdb").exists()
    filler = fill(directory)
    with pytest.raises(StoreException, match=r"lock\.mdb needs 8192 bytes: make room"):
        Broker(EngineSettings(), str(path))
    filler.unlink()
    broker = Broker(EngineSettings(min_free_disk_bytes=0), str(path))
    assert depth(broker, "q") == 1
    sound(broker)
    broker.close()


def damage(path: Path) -> None:
    """Zero a page in the middle of the file."""
    with open(path / "data.mdb", "r+b") as file:
        data = file.read()
        file.seek(data.index(b"x" * 900, len(data) // 2) // 4096 * 4096)
        file.write(bytes(4096))


def repaired(path: Path) -> Report:
    return check_store(path, EngineSettings(), repair=True)


SCENARIOS: dict[str, Callable[[Path], None]] = {
    each.__name__: each
    for each in (
        producers_are_refused_consumers_go_on_and_an_empty_store_takes_messages_again,
        what_cannot_be_written_waits_until_there_is_room,
        a_write_that_is_cut_short_waits_until_there_is_room,
        at_the_limit_of_the_size_of_files_producers_are_refused_and_consumers_go_on,
        an_engine_starts_where_a_few_pages_are_left_and_goes_on_when_there_is_room,
        a_start_on_a_full_disk_is_noted_when_there_is_room,
        a_new_store_for_which_there_is_no_room_is_none,
        an_engine_that_is_closed_on_a_full_disk_confirms_nothing_that_is_not_there,
        a_transaction_that_does_not_fit_is_refused_and_the_engine_goes_on,
        a_small_store_with_three_hundred_subscriptions_refuses_and_goes_on,
        a_repair_and_a_compaction_that_have_no_room_leave_the_file_as_it_was,
        a_store_without_its_lock_file_is_not_opened_where_there_is_no_room_for_it,
    )
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
