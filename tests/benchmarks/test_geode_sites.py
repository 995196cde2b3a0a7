"""How the comparison of gateways with Geode's measures sites that only note what is asked, and what it makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import geode_sites
from benchmarks.geode_sites import Cost, Work, compared, measured
from benchmarks.programs import Failed

_WORKS = (
    Work("put, without a gateway", "alone", "put"),
    Work("put", "sent", "put"),
    Work("a backlog is sent", "sent", "put-all"),
)


@pytest.fixture(autouse=True)
def _three_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geode_sites, "WORKS", _WORKS)


class NotedSites:
    """Sites that put 100 keys a second, for 2 ms of CPU here and 1 ms there for each, and that note calls."""

    def __init__(self, name: str, calls: list[str], *, lost: int = 0, early: int = 0) -> None:
        self._name = name
        self._calls = calls
        self._lost = lost
        self._early = early
        self._waits = False
        self._has_gateway = False
        self._put = self._arrived = 0
        self._cpu = {"here": 0.0, "there": 0.0}
        self.here: Any = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=self._cpu["here"], system=0.0))
        self.there: Any = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=self._cpu["there"], system=0.0))

    def _note(self, what: str) -> None:
        self._calls.append(f"{self._name}: {what}")

    def begin(self, gateway: str) -> None:
        self._note(f"begin {gateway}")
        self._put = self._arrived = 0

    def put(self, call: str, count: int) -> float:
        self._note(f"{call} {count}")
        self._put += count
        self._cpu["here"] += 0.002 * count
        self._arrived += self._early if self._waits else 0
        return count / 100

    def pause(self) -> None:
        self._note("pause")
        self._waits = True

    def resume(self) -> None:
        self._note("resume")
        self._waits = False

    def arrive(self, count: int) -> None:
        self._note(f"arrive {count}")
        self._arrived = self._put - self._lost
        self._cpu["there"] += 0.001 * count

    def arrived(self) -> int:
        return self._arrived


def test_sites_warm_up_and_then_take_turns_at_each_work() -> None:
    calls: list[str] = []
    said: list[str] = []
    sites = {name: NotedSites(name, calls) for name in ("ours", "theirs")}
    found = measured(sites, 10, 50, 1, 2, said.append)
    a_turn = [
        *("ours: begin alone", "ours: put 10", "theirs: begin alone", "theirs: put 10"),
        *("ours: begin sent", "ours: put 10", "ours: arrive 10"),
        *("theirs: begin sent", "theirs: put 10", "theirs: arrive 10"),
        *("ours: begin sent", "ours: pause", "ours: put-all 50", "ours: resume", "ours: arrive 50"),
        *("theirs: begin sent", "theirs: pause", "theirs: put-all 50", "theirs: resume", "theirs: arrive 50"),
    ]
    assert calls == 3 * a_turn
    assert said[::6] == [
        f"ours: put, without a gateway, {when}" for when in ("to warm up", "turn 1 of 2", "turn 2 of 2")
    ]
    for costs in found.values():
        alone, sent, backlog = costs
        assert [len(each) for each in costs] == [2, 2, 2]
        assert [each.rate for each in (*alone, *sent)] == pytest.approx([100.0] * 4)
        assert [(each.here, each.there) for each in alone] == [pytest.approx((2000.0, 0.0))] * 2
        assert [(each.here, each.there) for each in sent] == [pytest.approx((2000.0, 1000.0))] * 2
        assert [(each.here, each.there) for each in backlog] == [pytest.approx((0.0, 1000.0))] * 2, "of sending alone"


def test_keys_that_do_not_arrive_are_a_failure() -> None:
    with pytest.raises(Failed, match="9 of 10 keys have arrived"):
        measured({"ours": NotedSites("ours", [], lost=1)}, 10, 50, 1, 1, lambda _: None)


def test_a_gateway_that_sends_while_it_is_paused_is_a_failure() -> None:
    with pytest.raises(Failed, match="3 of 50 events were sent while the gateway was paused"):
        measured({"ours": NotedSites("ours", [], early=3)}, 10, 50, 1, 1, lambda _: None)


def test_each_work_has_its_rate_and_cpu_beside_each_of_the_others_with_the_median_of_the_ratios() -> None:
    ours = [Cost(100.0, 10.0, 20.0), Cost(300.0, 20.0, 40.0), Cost(200.0, 10.0, 20.0)]
    theirs = [Cost(200.0, 10.0, 10.0), Cost(300.0, 10.0, 20.0), Cost(50.0, 10.0, 10.0)]
    found = {"Holdfast": [ours] * 3, "Geode in memory": [theirs] * 3, "Geode on disk": [ours] * 3}
    figures = list(compared(found, 6000, 50_000))
    assert [(each.name, each.yardstick) for each in figures[:4]] == [
        ("put, without a gateway", "Geode in memory: 200"),
        ("put, without a gateway: CPU of both servers each", "Geode in memory: 20"),
        ("put, without a gateway", "Geode on disk: 200"),
        ("put, without a gateway: CPU of both servers each", "Geode on disk: 30"),
    ]
    assert [(each.value, each.ratio) for each in figures[:4]] == [(200.0, 1.0), (30.0, 1.5), (200.0, 1.0), (30.0, 1.0)]
    assert figures[1].note == "here and there 10 + 20; Geode 10 + 10"
    assert [each.goal for each in figures[::4]] == [None, "at least 1", "at least 1"]
    assert [(each.unit, each.note) for each in figures[:9:4]] == [
        ("puts/s", "6,000; medians of 3"),
        ("puts/s", "6,000; medians of 3"),
        ("events/s", "50,000; medians of 3"),
    ]
