"""Which of two changes of a key is newer, wherever they were made, and whatever the clocks say."""

from __future__ import annotations

import random

import pytest

from broker_adapter.engine.regions.stamps import NO_STAMP, Stamp, next_time

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000


def test_a_stamp_has_the_time_of_day() -> None:
    for now_ms in (NOW_MS, NOW_MS + 1, NOW_MS + HOUR_MS):
        assert next_time(next_time(0, NOW_MS - 1), now_ms) >> 16 == now_ms


@pytest.mark.parametrize("by_ms", [0, -1, -HOUR_MS, -NOW_MS])
def test_a_later_change_has_a_greater_stamp_also_where_the_clock_is_set_back(by_ms: int) -> None:
    first = next_time(0, NOW_MS)
    second = next_time(first, NOW_MS + by_ms)
    assert second > first
    assert next_time(second, NOW_MS + 1) >> 16 == NOW_MS + 1, "it is right again when the clock has come there"


def test_stamps_do_not_run_ahead_of_the_clock() -> None:
    last = 0
    for _ in range(65_536):
        last = next_time(last, NOW_MS)
    assert last >> 16 == NOW_MS
    assert next_time(last, NOW_MS) >> 16 == NOW_MS + 1


def test_the_greater_stamp_is_the_newer_one_and_the_site_decides_between_equal_times() -> None:
    in_order = [NO_STAMP, Stamp(1, 0), Stamp(1, 1), Stamp(1, 255), Stamp(2, 0), Stamp(2, 1)]
    assert sorted(set(in_order)) == in_order
    assert Stamp(1, 2) == Stamp(1, 2), "it is the same change"


class Site:
    """A site that changes keys, and takes over what others have changed."""

    def __init__(self, number: int, ahead_ms: int) -> None:
        self.number = number
        self.ahead_ms = ahead_ms
        self.last = 0
        self.keys: dict[str, tuple[Stamp, int]] = {}  #: stamp and value

    def change(self, key: str, value: int, now_ms: int) -> tuple[str, Stamp, int]:
        self.last = next_time(self.last, now_ms + self.ahead_ms)
        stamp = Stamp(self.last, self.number)
        assert all(stamp > seen for seen, _ in self.keys.values()), "newer than all that was seen"
        self.keys[key] = stamp, value
        return key, stamp, value

    def take(self, key: str, stamp: Stamp, value: int) -> None:
        self.last = max(self.last, stamp.time)
        found, there = self.keys.get(key, (NO_STAMP, 0))
        assert stamp != found or value == there, "equal stamps are those of the same change"
        if stamp > found:
            self.keys[key] = stamp, value


@pytest.mark.parametrize("seed", range(20))
def test_sites_whose_clocks_are_off_agree_in_the_end_in_whatever_order_changes_come(seed: int) -> None:
    chance = random.Random(seed)
    sites = [Site(number, ahead_ms) for number, ahead_ms in enumerate((0, -HOUR_MS, HOUR_MS, 5), 1)]
    ways: dict[tuple[Site, Site], list[tuple[str, Stamp, int]]] = {
        (one, other): [] for one in sites for other in sites if one is not other
    }
    stamps: list[Stamp] = []
    now_ms = NOW_MS
    for value in range(1, 200):
        now_ms += chance.choice([0, 0, 1, 1000])
        site = chance.choice(sites)
        if chance.random() < 0.1:
            site.ahead_ms = chance.choice([-HOUR_MS, 0, HOUR_MS])
        changed = site.change(chance.choice("abc"), value, now_ms)
        stamps.append(changed[1])
        for (one, _), way in ways.items():
            if one is site:
                way.append(changed)
        (_, there), way = chance.choice(list(ways.items()))
        for _ in range(chance.randint(0, len(way))):
            there.take(*way.pop(chance.randrange(len(way))))  # also late, and out of order
    for (_, there), way in ways.items():
        for changed in way:
            there.take(*changed)
            there.take(*changed)
    assert len(set(stamps)) == len(stamps)
    assert all(site.keys == sites[0].keys for site in sites)
