"""Random histories of sites between which there are several ways: each message is at each site once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.broker_adapter.engine.sites import Q, Site, apply, end, in_queue, read
from tests.broker_adapter.engine.test_gateway_histories import Traffic, stamps

Way = tuple[int, int]  #: from site to site
#: The ways of each shape; the last one is not needed, as all that it brings comes by others as well.
SHAPES: Final[dict[str, list[Way]]] = {
    "ring of three both ways": [(1, 2), (2, 3), (3, 1), (2, 1), (3, 2), (1, 3)],
    "ring with a chord": [(1, 2), (2, 3), (3, 4), (4, 1), (1, 3)],
    "ring of four both ways": [(1, 2), (2, 3), (3, 4), (4, 1), (2, 1), (3, 2), (4, 3), (1, 4)],
}
#: What becomes of that one.
FATES: Final = ("works", "begins late", "is cut", "is stopped", "is made again")
STEPS: Final = 50


class History:
    """Sites and ways, and what happens to them.

    Args:
        path: of the stores.
        ways: between the sites; each is a gateway that has the number of the other site as its name.
        fate: of the last one.
        chance: what happens.
    """

    def __init__(self, path: Path, ways: list[Way], fate: str, chance: random.Random) -> None:
        self.ways, self.fate, self.chance = ways, fate, chance
        self.sites = {number: Site(number, path / str(number)) for number in sorted({each for each, _ in ways})}
        self.traffic = [Traffic(site, chance) for site in self.sites.values()]
        self.volatile: set[str] = set()
        for site in self.sites.values():
            site.ask("create_region", region="quotes")
        for way in ways if fate != "begins late" else ways[:-1]:
            self.create(way)

    def create(self, way: Way) -> None:
        self.sites[way[0]].gateway(str(way[1]), "queue:q", "topic:news", "region:quotes")

    def send(self, way: Way, *, is_answered: bool = True) -> bool:
        """Send a batch; returns whether something waited."""
        sender, receiver, name = self.sites[way[0]], self.sites[way[1]], str(way[1])
        found = read(sender, name, max_messages=self.chance.choice((1, 3, 20, 100)), remote_site=receiver.number)
        answer = apply(sender, receiver, found) if found["entries"] else None
        if is_answered and found["through"]:
            end(sender, name, found, answer)
        return bool(found["through"])

    def step(self, number: int) -> None:
        """Let something happen."""
        chance, last = self.chance, self.ways[-1]
        is_away = self.fate == "is cut" or (self.fate == "begins late" and number <= STEPS // 2)
        if self.fate == "begins late" and number == STEPS // 2:
            self.create(last)
        what = chance.choice(("traffic", "traffic", "volatile", "batch", "batch", "lost answer", "restart", "fate"))
        if what == "traffic":
            chance.choice(self.traffic).step(str(number))
        elif what == "volatile":
            self.volatile.add(f"volatile {number}")
            chance.choice(list(self.sites.values())).send(Q, f"volatile {number}", persistent=False)
        elif what == "restart" and not number % 4:
            site = chance.choice(list(self.sites.values()))
            chance.choice((site.restart, site.kill))()
        elif what == "fate" and self.fate == "is stopped":
            state = chance.choice(("stopped", "running"))
            self.sites[last[0]].ask("change_gateway", name=str(last[1]), state=state)
        elif what == "fate" and self.fate == "is made again":
            self.sites[last[0]].ask("destroy_gateway", name=str(last[1]))
            self.create(last)
        elif what in ("batch", "lost answer"):
            self.send(chance.choice(self.ways[:-1] if is_away else self.ways), is_answered=what == "batch")


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_comes_by_several_ways_is_at_each_site_once(tmp_path: Path, shape: str, fate: str) -> None:
    history = History(tmp_path, SHAPES[shape], fate, random.Random(f"{shape} {fate}"))
    for number in range(STEPS):
        history.step(number)
    while sum(history.send(way) for way in history.ways):
        pass
    sent = Counter(body for traffic in history.traffic for body in traffic.sent)
    sites = list(history.sites.values())
    for site in sites:
        got = Counter(in_queue(site))
        volatile = {body: count for body, count in got.items() if body in history.volatile}
        assert got - Counter(volatile) == sent
        assert set(volatile.values()) <= {1}, "one that is lost with a site need not be at the others"
        assert stamps(site) == stamps(sites[0])
        if fate in ("works", "is cut"):
            for traffic in history.traffic:
                assert [body for body in in_queue(site) if body in set(traffic.sent)] == traffic.sent, "in order"
    for site in sites:
        assert site.broker.check() == []
        site.broker.close()
