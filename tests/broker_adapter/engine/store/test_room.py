"""The room that a store has for messages, by its figures."""

from __future__ import annotations

import attrs
import pytest

from broker_adapter.engine.store.room import Figures, Room, room_of

PAGE = 4096
MIB = 1024 * 1024 // PAGE  #: pages
PLENTY = 100 * 1024 * 1024

FIGURES = Figures(
    page_bytes=PAGE,
    file_pages=100 * MIB,
    used_pages=50 * MIB,
    map_pages=3000 * MIB,
    limit_pages=2000 * MIB,
    free_disk_pages=2000 * MIB,
    min_free_disk_pages=256 * MIB,
)


def room(**changes: int) -> Room:
    found = room_of(attrs.evolve(FIGURES, **changes), PLENTY, "store")
    assert found is not None
    return found


def test_what_is_plenty_is_not_counted() -> None:
    assert room_of(FIGURES, PLENTY, "store") is None


def test_a_store_at_its_limit_takes_nothing_and_says_so() -> None:
    full = room(used_pages=1900 * MIB, file_pages=1950 * MIB)
    assert full.is_used_up
    assert "max_store_bytes" in full.reason
    assert not full.take(10, 1)


def test_a_disk_that_is_nearly_full_takes_what_fits_into_free_pages() -> None:
    low = room(free_disk_pages=200 * MIB)
    assert "min_free_disk_bytes" in low.reason
    assert 49 * MIB < low.single_pages < 50 * MIB
    assert low.run_pages == 25 * MIB
    assert low.take(1000, 1)
    assert low.take(1_000_000, 1)


def test_a_disk_that_gets_more_room_takes_no_less() -> None:
    before = Room(0, 0, PAGE, "")
    for free in range(0, 400 * MIB, MIB // 2):
        found = room_of(attrs.evolve(FIGURES, free_disk_pages=free), PLENTY, "store")
        if found is None:
            break
        assert (found.single_pages, found.run_pages) >= (before.single_pages, before.run_pages), free
        assert found.run_pages >= before.run_pages, free
        before = found
    assert before.run_pages > 40 * MIB


def test_an_empty_store_on_a_nearly_full_disk_takes_messages_again() -> None:
    empty = room(free_disk_pages=200 * MIB, file_pages=1800 * MIB, used_pages=1 * MIB)
    taken = 0
    while empty.take(1000, 1):
        taken += 1
    assert taken * 1000 > 1_000_000_000


def test_a_disk_whose_reserve_is_half_gone_takes_no_long_message() -> None:
    low = room(free_disk_pages=100 * MIB)
    assert low.run_pages == 0
    assert not low.take(10_000, 1)
    assert low.take(100, 1)


def test_a_disk_without_any_room_and_a_store_without_free_pages_take_nothing() -> None:
    assert room(free_disk_pages=0, file_pages=50 * MIB).is_used_up


def test_scattered_pages_take_short_messages_only() -> None:
    scattered = room(file_pages=3000 * MIB)
    assert "holdfast compact" in scattered.reason
    assert scattered.run_pages == 0
    assert scattered.take(1000, 1)
    assert not scattered.take(5000, 1)


def test_a_commit_that_ends_as_much_as_it_sends_borrows_what_is_kept_for_settling() -> None:
    full = room(used_pages=1900 * MIB, file_pages=1950 * MIB)
    assert (full.single_pages, full.run_pages) == (0, 0)
    lent = full.lent([(10_000, 1), (100, 1)])
    assert lent.take(10_000, 1)
    assert not lent.take(10_000, 1)
    assert lent.take(100, 1)
    left = lent.repaid(full)
    assert not left.take(1, 1)
    assert full.spare_single_pages - left.spare_single_pages == pytest.approx(3.08, rel=0.01)
    assert full.spare_run_pages - left.spare_run_pages == 3


def test_what_is_lent_and_not_used_is_given_back() -> None:
    low = room(free_disk_pages=200 * MIB)
    assert low.lent([(10_000, 1)] * 5).repaid(low) == low
    assert low.lent([]) == low
    took = low.lent([(10_000, 1)])
    assert took.take(1000, 1)
    left = took.repaid(low)
    assert (left.single_pages, left.run_pages) == (low.single_pages, low.run_pages)


def test_a_quarter_of_what_is_kept_is_lent_at_most() -> None:
    full = room(used_pages=1900 * MIB, file_pages=1950 * MIB)
    lent = full.lent([(1_000_000, 1)] * 10_000)
    taken = 0
    while lent.take(1_000_000, 1):
        taken += 1
    assert 30 <= taken * 1_000_000 / 2**20 <= 2000 / 16 / 4
    assert not lent.repaid(full).lent([(1_000_000, 1)] * 10_000).take(1_000_000, 1)


def test_a_disk_that_has_nothing_lends_nothing() -> None:
    full = room(free_disk_pages=0, file_pages=50 * MIB)
    assert not full.lent([(100, 1)] * 100).take(100, 1)


@pytest.mark.parametrize(("size", "entries", "pages"), [(100, 1, 0.06), (10_000, 1, 3.02), (100, 300, 7.1)])
def test_fan_out_and_long_messages_count(size: int, entries: int, pages: float) -> None:
    low = room(free_disk_pages=200 * MIB)
    before = low.single_pages
    assert low.take(size, entries)
    assert before - low.single_pages == pytest.approx(pages, rel=0.05)
