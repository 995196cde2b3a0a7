"""What the comparison with Geode makes of measurements, and how it measures sides that only note what is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import geode
from benchmarks.geode import Puts, Return, compared, measured
from benchmarks.programs import Failed


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geode, "_CALM_SECONDS", 0.0)


class NotedSide:
    """A side whose server uses a millisecond of CPU and stores a byte for each put and client, and that notes calls."""

    def __init__(self, more: int = 0, *, may_repeat: bool = False) -> None:
        self.calls: list[str] = []
        self.may_repeat = may_repeat
        self._more = more
        self._cpu = 0.0
        self._stored = 0
        self._away: dict[str, int] = {}
        self._who: str | None = None
        self.process: Any = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=self._cpu, system=0.0))
        self.client = self.process

    def stored(self) -> int:
        return self._stored

    def connect(self, client: str | None = None) -> None:
        self._who = client

    def put(self, count: int) -> None:
        self.calls.append(f"put {count} for {len(self._away)}")
        self._cpu += count / 1000
        self._stored += count * len(self._away)
        self._away = {client: waiting + count for client, waiting in self._away.items()}

    def ready(self) -> int:
        assert self._who is not None
        self.calls.append(f"{self._who} is ready")
        return self._away.pop(self._who) + self._more

    def leave(self, *, keep: bool = True) -> None:
        if self._who is not None and keep:
            self._away.setdefault(self._who, 0)


def test_each_round_has_more_clients_away_and_the_first_one_comes_back_to_the_puts_of_one_round() -> None:
    side = NotedSide()
    found = list(measured(side, 10, 3, lambda _: None))
    assert side.calls == [
        "put 20 for 1",
        "first is ready",
        "put 10 for 0",
        "put 10 for 1",
        "client-0 is ready",
        "put 10 for 3",
        "client-0 is ready",
    ]
    puts = [each for each in found if isinstance(each, Puts)]
    assert [(each.away, each.count, each.stored) for each in puts] == [(0, 10, 0.0), (1, 10, 1.0), (3, 10, 3.0)]
    assert [each.cpu for each in puts] == pytest.approx([1000.0] * 3)
    assert [(each.away, each.count) for each in found if isinstance(each, Return)] == [(1, 10), (3, 10)]


def test_with_one_client_there_are_two_rounds() -> None:
    assert [type(each) for each in measured(NotedSide(), 10, 1, lambda _: None)] == [Puts, Puts, Return]


@pytest.mark.parametrize(("more", "may_repeat"), [(-1, False), (-1, True), (1, False)])
def test_a_client_that_is_told_another_number_of_events_is_a_failure(more: int, may_repeat: bool) -> None:
    with pytest.raises(Failed, match=f"{10 + more} of 10 events were told"):
        list(measured(NotedSide(more, may_repeat=may_repeat), 10, 1, lambda _: None))


def test_events_may_be_told_once_more_where_a_server_does_so() -> None:
    *_, found = measured(NotedSide(1, may_repeat=True), 10, 1, lambda _: None)
    assert isinstance(found, Return)
    assert found.count == 10


def test_each_measurement_has_a_figure_beside_geodes_with_the_ratio() -> None:
    ours = [Puts(1, 20_000, 100.0, 250.0), Return(30, 20_000, 2.0, 30.0, 40.0)]
    theirs = [Puts(1, 20_000, 50.0, 1000.0), Return(30, 20_000, 4.0, 60.0, 20.0)]
    figures = list(compared("1.15.1", ours, theirs))
    assert [(each.name, each.value, each.unit, each.yardstick, each.ratio) for each in figures] == [
        ("put, 1 client away: server's CPU", 100.0, "us", "Geode 1.15.1: 50 us", 2.0),
        ("put, 1 client away: stored", 250.0, "bytes", "Geode 1.15.1: 1,000 bytes", 0.25),
        ("return to 20,000 events, 30 clients away: until told", 2.0, "s", "Geode 1.15.1: 4 s", 0.5),
        ("return to 20,000 events, 30 clients away: server's CPU an event", 30.0, "us", "Geode 1.15.1: 60 us", 0.5),
        ("return to 20,000 events, 30 clients away: client's CPU an event", 40.0, "us", "Geode 1.15.1: 20 us", 2.0),
    ]


@pytest.mark.parametrize(("stored", "ratio"), [(-5.0, None), (0.0, None), (52.0, None), (53.0, 1.0)])
def test_what_a_heap_grows_by_has_a_ratio_from_one_mebibyte_on(stored: float, ratio: float | None) -> None:
    _, figure = compared("1.15.1", [Puts(0, 20_000, 1.0, 53.0)], [Puts(0, 20_000, 1.0, stored)])
    assert figure.ratio == ratio
    assert figure.name == "put, no client away: stored"


def test_other_measurements_are_not_compared() -> None:
    with pytest.raises(TypeError, match="is compared with"):
        list(compared("1.15.1", [Puts(0, 1, 1.0, 1.0)], [Return(0, 1, 1.0, 1.0, 1.0)]))
