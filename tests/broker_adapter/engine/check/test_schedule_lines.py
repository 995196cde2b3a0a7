"""Damaged lines of the schedule: a check finds them, a repair puts them right, and an engine does not act upon them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.check.record_kinds import tables_of
from broker_adapter.engine.check.schedule_lines import delivery_ms, fits, right_line
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.selection import Formats
from broker_adapter.engine.records.layout import (
    DELAYED_LANE,
    KIND_DELIVER,
    KIND_EXPIRE,
    RawEntry,
    decode_schedule_key,
    entry_key,
    schedule_line,
)
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.maintenance import check_store
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from tests.broker_adapter.engine.driving import WAIT, connect, depth, drained, eventually
from tests.broker_adapter.engine.storing import SETTINGS

NOW_MS = 1_000_000_000_000  #: the clock of the engines
DUE_MS = NOW_MS + 5_000
BIT = 1 << 41  #: of a time: 69 years
FOREIGN = 0

Line = tuple[bytes, bytes]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [NOW_MS]
    monkeypatch.setattr("broker_adapter.engine.broker._now_ms", lambda: now[0])
    return now


def delayed(path: Path, *due: int, message_format: int = ENVELOPE_FORMAT, body: bytes | None = None) -> None:
    """A store with a delayed message for each time."""
    broker = Broker(SETTINGS, str(path))
    messages = [
        c.NewMessage(
            message_format,
            pack(Envelope(queue("q"), BodyKind.TEXT, str(each), deliver_at_ms=each)) if body is None else body,
            deliver_at_ms=each,
        )
        for each in due
    ]
    assert broker.call(c.Enqueue(connect(broker), queue("q"), messages), WAIT) is None
    broker.close()


def mortal(path: Path, expires_at_ms: int) -> None:
    """A store with a message that expires."""
    broker = Broker(SETTINGS, str(path))
    payload = pack(Envelope(queue("q"), BodyKind.TEXT, "mortal", expires_at_ms=expires_at_ms))
    message = c.NewMessage(ENVELOPE_FORMAT, payload, expires_at_ms=expires_at_ms)
    assert broker.call(c.Enqueue(connect(broker), queue("q"), [message]), WAIT) is None
    broker.close()


def lines(path: Path) -> list[Line]:
    store = LmdbStore(path, SETTINGS)
    with store.snapshot() as tables:
        found = list(tables.items("schedule"))
    store.close()
    return found


def scheduled(broker: Broker) -> list[Line]:
    with broker.store.snapshot() as tables:
        return list(tables.items("schedule"))


def change(path: Path, act: Callable[[bytes, bytes], Line], which: int = 0) -> bytes:
    """Change a line of the schedule behind the engine's back; returns its new key."""
    old = lines(path)[which]
    store = LmdbStore(path, SETTINGS)
    new = act(*old)
    store.apply([("schedule", old[0], None), ("schedule", *new)])
    store.close()
    return new[0]


def with_time(key: bytes, change: Callable[[int], int]) -> bytes:
    return change(int.from_bytes(key[:8])).to_bytes(8) + key[8:]


def changed(key: bytes, value: bytes, is_covered: bool) -> tuple[bytes, bytes]:
    """A line with another key, and with a checksum of that key where it is to be covered."""
    return schedule_line(*decode_schedule_key(key)) if is_covered else (key, value)


def problems(path: Path, *, repair: bool = False) -> list[str]:
    return sorted(check_store(path, SETTINGS, repair=repair).summary.problems)


DAMAGED = ["damaged line of the schedule"]
WRONG = ["wrong time in the schedule"]


@pytest.mark.parametrize(
    ("is_covered", "found"),
    [(False, [*DAMAGED, "delivery not scheduled"]), (True, ["delivery not scheduled", *WRONG])],
)
@pytest.mark.parametrize("bit", [0, 22, 41])
def test_a_changed_due_time_is_found_and_put_right(
    tmp_path: Path, bit: int, is_covered: bool, found: list[str]
) -> None:
    delayed(tmp_path, DUE_MS, DUE_MS + 3_600_000)
    (first, second) = lines(tmp_path)
    change(tmp_path, lambda key, value: changed(with_time(key, lambda due: due ^ 1 << bit), value, is_covered))
    assert problems(tmp_path) == found
    assert problems(tmp_path, repair=True) == found
    assert lines(tmp_path) == [first, second]
    assert problems(tmp_path) == []


@pytest.mark.parametrize(
    ("is_covered", "time"),
    [(False, lambda due: due ^ 1 << 47), (False, lambda due: due - 4_000), (True, lambda due: due - 4_000)],
)
def test_a_changed_expiry_is_found_and_put_right(tmp_path: Path, is_covered: bool, time: Callable[[int], int]) -> None:
    mortal(tmp_path, DUE_MS)
    before = lines(tmp_path)
    change(tmp_path, lambda key, value: changed(with_time(key, time), value, is_covered))
    found = ["expiry not scheduled", *WRONG] if is_covered else [*DAMAGED, "expiry not scheduled"]
    assert problems(tmp_path, repair=True) == found
    assert lines(tmp_path) == before
    assert problems(tmp_path) == []


@pytest.mark.parametrize("store", [delayed, mortal])
def test_any_changed_bit_of_a_line_is_found_and_the_right_line_is_put_in(
    tmp_path: Path, store: Callable[[Path, int], None]
) -> None:
    store(tmp_path, DUE_MS)
    ((key, value),) = lines(tmp_path)
    for bit in range(0, (len(key) + len(value)) * 8, 5):
        changed = (int.from_bytes(key + value) ^ 1 << bit).to_bytes(len(key) + len(value))
        change(tmp_path, lambda *_, new=changed: (new[: len(key)], new[len(key) :]))  # type: ignore[misc]
        assert "damaged line of the schedule" in problems(tmp_path, repair=True)
        assert problems(tmp_path) == []
        assert lines(tmp_path) == [(key, value)]


def test_the_line_of_a_message_that_expired_in_a_consumers_hands_is_sound(tmp_path: Path) -> None:
    """It is due again now and then, later than the entry says."""
    mortal(tmp_path, DUE_MS)
    key = decode_schedule_key(lines(tmp_path)[0][0])[2]
    change(tmp_path, lambda *_: schedule_line(DUE_MS + 60_000, KIND_EXPIRE, key))
    assert problems(tmp_path) == []


def test_a_time_that_a_foreign_message_does_not_name_exactly_is_not_compared(tmp_path: Path) -> None:
    """One that names a delay is due at its arrival and the delay, not at its creation and the delay."""
    delayed(tmp_path, DUE_MS, message_format=FOREIGN, body=b"foreign")
    formats = Formats()
    formats.learn(FOREIGN, lambda _: Envelope(queue("q"), BodyKind.BYTES, b"", deliver_at_ms=DUE_MS - 700))
    assert check_store(tmp_path, SETTINGS, formats=formats).is_sound


def started(path: Path) -> Broker:
    """An engine that has set a line aside."""
    broker = Broker(SETTINGS, str(path))
    eventually(lambda: broker.call(c.Statistics(), WAIT).quarantined == 1)
    broker.call(c.Due(()), WAIT)  # that is committed
    return broker


def test_a_line_that_became_due_too_early_is_not_acted_upon(
    tmp_path: Path, clock: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    delayed(tmp_path, DUE_MS)
    right = lines(tmp_path)
    wrong = change(tmp_path, lambda key, value: (with_time(key, lambda due: due ^ 1 << 38), value))
    assert decode_schedule_key(wrong)[0] < NOW_MS
    broker = started(tmp_path)
    client = connect(broker)
    assert drained(broker, client, "q") == []
    assert depth(broker, "q") == 1
    assert f"line {wrong.hex()} of the schedule is damaged" in caplog.text
    assert scheduled(broker) == right
    assert broker.store.in_quarantine([b"schedule\0" + wrong])
    clock[0] = DUE_MS
    eventually(lambda: drained(broker, client, "q"))
    broker.close()
    assert problems(tmp_path) == []


def test_a_message_does_not_expire_before_its_time_by_a_damaged_line(tmp_path: Path, clock: list[int]) -> None:
    mortal(tmp_path, DUE_MS)
    right = lines(tmp_path)
    for value in (right[0][1], b""):
        change(tmp_path, lambda key, _, new=value: (with_time(key, lambda due: due ^ 1 << 38), new))  # type: ignore[misc]
        broker = started(tmp_path)
        assert depth(broker, "q") == 1
        broker.close()
        assert lines(tmp_path) == right
    clock[0] = DUE_MS
    broker = Broker(SETTINGS, str(tmp_path))
    eventually(lambda: depth(broker, "q") == 0)
    broker.close()


def test_a_message_whose_time_is_unknown_is_due_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    delayed(tmp_path, DUE_MS, body=b"not a message")
    change(tmp_path, lambda key, value: (with_time(key, lambda due: due ^ 1 << 38), value))
    broker = started(tmp_path)
    eventually(lambda: drained(broker, connect(broker), "q"))
    assert "becomes due now" in caplog.text
    broker.close()


def test_a_damaged_checksum_of_a_line_that_is_due_delays_nothing(tmp_path: Path, clock: list[int]) -> None:
    delayed(tmp_path, DUE_MS)
    change(tmp_path, lambda key, value: (key, value[:-1] + bytes((value[-1] ^ 1,))))
    clock[0] = DUE_MS
    broker = started(tmp_path)
    eventually(lambda: drained(broker, connect(broker), "q"))
    broker.close()


@pytest.mark.damages
@pytest.mark.parametrize("is_damaged", [lambda key: key[:-1], lambda key: key[:5], lambda key: key[:-2] + b"\xff\xff"])
def test_a_line_of_unknown_purpose_is_set_aside_and_named(
    tmp_path: Path, clock: list[int], caplog: pytest.LogCaptureFixture, is_damaged: Callable[[bytes], bytes]
) -> None:
    delayed(tmp_path, DUE_MS, DUE_MS + 1)
    change(tmp_path, lambda key, value: (is_damaged(key), value))
    clock[0] = DUE_MS + 5
    broker = started(tmp_path)
    eventually(lambda: len(drained(broker, connect(broker), "q")) == 1)
    assert "run 'holdfast check'" in caplog.text
    assert broker.failed is None
    broker.close()
    assert problems(tmp_path, repair=True) == ["delivery not scheduled"]
    assert problems(tmp_path) == []


def test_a_line_with_a_key_that_is_too_long_is_put_right(tmp_path: Path, clock: list[int]) -> None:
    delayed(tmp_path, DUE_MS)
    change(tmp_path, lambda key, value: (key + b"\0", value))
    clock[0] = DUE_MS
    broker = started(tmp_path)
    eventually(lambda: drained(broker, connect(broker), "q"))
    broker.close()


def test_a_line_is_recognised_by_its_checksum() -> None:
    key, value = schedule_line(5, KIND_DELIVER, entry_key(1, DELAYED_LANE, 9))
    assert tables_of(key, value) == ("schedule",)
    assert tables_of(key, b"") == ()
    assert tables_of(key[:-1] + b"\x08", value) == ()


ENTRY = RawEntry(1, 5, 9, 7, 0, 0, 100, 1)
DELAYED = ENTRY._replace(lane=DELAYED_LANE)


def test_a_line_fits_an_entry_that_waits_for_it() -> None:
    assert fits(KIND_DELIVER, 5, DELAYED)
    assert not fits(KIND_DELIVER, 5, ENTRY)
    assert fits(KIND_EXPIRE, 100, ENTRY)
    assert fits(KIND_EXPIRE, 160, ENTRY)
    assert not fits(KIND_EXPIRE, 99, ENTRY)
    assert not fits(KIND_EXPIRE, 100, DELAYED)
    assert not fits(KIND_EXPIRE, 100, ENTRY._replace(expires_at_ms=0))
    assert not fits(7, 100, ENTRY)


def test_the_right_line_is_made_of_the_entry_and_its_message() -> None:
    assert right_line(ENTRY, None) == schedule_line(100, KIND_EXPIRE, entry_key(1, 5, 9))
    assert right_line(ENTRY._replace(expires_at_ms=0), None) is None
    assert right_line(DELAYED, 70) == schedule_line(70, KIND_DELIVER, entry_key(1, DELAYED_LANE, 9))
    assert right_line(DELAYED, None) == schedule_line(0, KIND_DELIVER, entry_key(1, DELAYED_LANE, 9))


def test_a_message_says_when_it_is_to_be_delivered() -> None:
    later = pack(Envelope(queue("q"), BodyKind.TEXT, "x", deliver_at_ms=70))
    assert delivery_ms(Formats(), (ENVELOPE_FORMAT, later)) == 70
    assert delivery_ms(Formats(), (ENVELOPE_FORMAT, pack(Envelope(queue("q"), BodyKind.TEXT, "x")))) is None
    assert delivery_ms(Formats(), (ENVELOPE_FORMAT, b"nothing")) is None
    assert delivery_ms(Formats(), None) is None
