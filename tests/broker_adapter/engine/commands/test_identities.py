"""What is remembered of the numbers that were taken."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import identities
from broker_adapter.engine.commands import messaging as commands
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.commands.identities import CACHED_NAMES, WINDOW, LastNumbers, Sequences
from broker_adapter.engine.commands.intervals import Intervals
from broker_adapter.engine.records.layout import (
    LastRecord,
    decode_last,
    decode_sequences,
    encode_sequences,
    last_key,
    short_name,
)
from broker_adapter.envelope import Envelope, Identity, pack, read_head
from broker_adapter.errors import StoreCorruptException


def test_numbers_in_order_are_each_new_once() -> None:
    seen = Sequences.begin(1)
    assert all(seen.add(number) for number in range(2, 5000))
    assert not any(seen.add(number) for number in range(1, 5000))


def test_a_number_that_comes_late_is_new_once() -> None:
    seen = Sequences.begin(1)
    for number in (2, 3, 7, 8):
        assert seen.add(number)
    assert [seen.add(number) for number in (5, 5, 4, 6, 6, 1, 3, 8)] == [
        True, False, True, True, False, False, False, False,
    ]  # fmt: skip
    assert seen.mask is not None
    assert seen.add(9)


def test_numbers_below_the_first_one_are_new() -> None:
    seen = Sequences.begin(1_000_000)
    assert seen.add(999_999)
    assert not seen.add(999_999)
    assert seen.add(1)


def test_every_other_number_is_known_within_the_window() -> None:
    seen = Sequences.begin(0)
    for number in range(2, 50_000, 2):
        assert seen.add(number)
    for number in range(50_000 - WINDOW + 2, 50_000):
        assert (number in seen) == (number % 2 == 0)


def test_a_long_run_is_known_to_its_beginning_also_after_a_gap() -> None:
    seen = Sequences.begin(1)
    for number in range(2, 100_000):
        seen.add(number)
    assert seen.add(100_005)
    assert not any(seen.add(number) for number in range(1, 100_000, 777))
    assert all(seen.add(number) for number in range(100_000, 100_005))


def test_a_stream_without_gaps_for_a_window_is_small_again() -> None:
    seen = Sequences.begin(1)
    seen.add(3)
    assert seen.record(0).mask
    for number in range(4, 4 + WINDOW):
        seen.add(number)
    assert not seen.record(0).mask
    assert 2 not in seen


def test_far_jumps_forget_and_never_take_a_new_number_for_a_known_one() -> None:
    seen = Sequences.begin(5)
    assert seen.add(5 + 3 * WINDOW)
    assert seen.add(6)
    assert seen.add(5 + 2 * WINDOW + 1)
    assert not seen.add(5 + 2 * WINDOW + 1)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([1, 3, 50, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW]))
def test_numbers_are_new_exactly_where_a_set_does_not_have_them(seed: int, reach: int) -> None:
    chance = random.Random(seed)
    number = chance.randrange(0, 20_000)
    seen = Sequences.begin(number)
    known = {number}
    highest = number
    for _ in range(chance.randrange(1, 400)):
        number = highest + 1 if chance.random() < 0.7 else max(0, highest + chance.randrange(-reach, reach + 1))
        is_new = seen.add(number)
        if number not in known:
            assert is_new, "a new number was taken for a known one"
        elif highest - number < WINDOW:
            assert not is_new
        known.add(number)
        highest = max(highest, number)
        assert number in seen or highest - number >= WINDOW
        if chance.random() < 0.05:
            key = b"key"
            seen = Sequences.of(decode_sequences(key, encode_sequences(key, seen.record(1))))
    for number in range(max(0, highest - WINDOW + 1), highest + 2, 7):
        assert (number in seen) == (number in known)


def test_other_names_do_not_displace_one() -> None:
    numbers = LastNumbers("commits", 1000, DecisionTime(), durable=True)
    batch = StoreBatch()
    numbers.note("mine", 5, batch)
    for other in range(CACHED_NAMES + 10):
        numbers.note(f"other {other}", 1, StoreBatch())
    numbers.trim()
    assert numbers.needs("mine")
    assert len(numbers) == CACHED_NAMES
    key = last_key("mine")
    numbers.learn("mine", decode_last(key, batch.tables["commits"][key] or b""))
    assert numbers.last("mine") == 5


def test_a_name_that_is_about_to_be_asked_for_is_not_displaced_by_what_is_looked_up_for_others() -> None:
    numbers = LastNumbers("commits", 1000, DecisionTime(), durable=True)
    numbers.note("mine", 5, StoreBatch())
    for other in range(CACHED_NAMES - 1):
        numbers.note(f"other {other}", 1, StoreBatch())
    assert not numbers.needs("mine")
    numbers.learn("new", None)  # for another command of the same cycle
    assert numbers.last("mine") == 5


def test_without_a_disk_names_are_forgotten_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    time = DecisionTime()
    numbers = LastNumbers("commits", 1000, time, durable=False)
    batch = StoreBatch()
    for name, age_ms in (("a", 0), ("b", 600), ("c", 1001)):
        time.elapsed_ms = age_ms
        numbers.note(name, 1, batch)
    assert [numbers.last(name) for name in "abc"] == [None, 1, 1]
    assert not batch.tables
    assert not numbers.needs("a")
    assert [numbers.may_be_removed(ago_ms) for ago_ms in (1000, 999)] == [True, False]
    monkeypatch.setattr(identities, "MOST_NAMES", 2)
    numbers.note("d", 1, batch)
    assert [numbers.last(name) for name in "bcd"] == [None, 1, 1]
    assert [numbers.may_be_removed(ago_ms) for ago_ms in (401, 400)] == [True, False], "as much as b, which made room"


def test_the_age_of_names_goes_by_the_time_for_which_engines_have_run() -> None:
    time = DecisionTime()
    time.begin(5000, 77)
    assert (time.age_ms, time.age_at(78)) == (5000, 5001)
    time.now_ms, time.elapsed_ms = 1 << 40, 100
    batch = StoreBatch()
    LastNumbers("commits", 1000, time, durable=True).note("a", 1, batch)
    key = last_key("a")
    assert decode_last(key, batch.tables["commits"][key] or b"") == LastRecord(1, 5023)


def test_the_intervals_of_an_origin_are_kept_with_its_name() -> None:
    numbers, come, batch = LastNumbers("published", 1000, DecisionTime(), durable=True), Intervals(), StoreBatch()
    for number in (5, 6, 9):
        come.add(number, 0)
    numbers.note_intervals("origin", come, batch)
    key = last_key("origin")
    value = batch.tables["published"][key] or b""
    again = LastNumbers("published", 1000, DecisionTime(), durable=True)
    again.learn("origin", decode_last(key, value))
    assert [number for number in range(12) if number in again.intervals("origin")] == [5, 6, 9]
    assert again.last("origin") == 9
    assert len(again.intervals("other")) == 0
    for wrong in (value[:-1], value[:-16], value + bytes(16), value[:20], value[:-1] + b"\7"):
        with pytest.raises(StoreCorruptException):
            decode_last(key, wrong)


def test_a_long_name_has_a_key_that_the_store_takes() -> None:
    assert len(last_key("x" * 10_000)) <= 64
    assert last_key("x" * 10_000) != last_key("x" * 10_001)
    assert last_key("x" * 200) == b"=" + b"x" * 200
    assert last_key("")


def test_of_a_long_producer_id_a_waiting_message_keeps_a_short_one_that_is_the_same_each_time() -> None:
    """The whole id is in the payload already; text may take four times the bytes that it has there."""
    long = "producer \N{GRINNING FACE}" * 100_000
    first, again = (
        commands.from_head(payload, read_head(payload))
        for payload in (pack(Envelope(Destination("q"), identity=Identity(long, 1, number))) for number in (1, 2))
    )
    assert first.identity is not None
    assert again.identity is not None
    assert len(first.identity.producer_id) <= 64
    assert first.identity[:2] == again.identity[:2]
    assert short_name(first.identity.producer_id) == short_name(long)
