"""Random histories of sites in a ring, with lost answers and restarts: all sites become equal, and nothing is twice."""

from __future__ import annotations

import random
from collections import Counter
from itertools import groupby
from pathlib import Path

import msgpack
import pytest

from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.regions.key_records import KeyState, Wanted, decode_key_record
from broker_adapter.engine.regions.stamps import Stamp
from broker_adapter.envelope import Identity, unpack
from tests.broker_adapter.engine.driving import WAIT
from tests.broker_adapter.engine.sites import Site, apply, end, in_queue, pump, read, text_message

NEWS = topic("news")
KEYS = "abcd"
#: Where messages go; of what goes to the last one, gateways take nothing.
PLACES = (queue("q"), NEWS, queue("other"))


class Traffic:
    """Sends to one site at random, and knows what it has sent."""

    def __init__(self, site: Site, chance: random.Random) -> None:
        self.site = site
        self.sent: list[str] = []  #: to the queue ``q``, in order
        self._chance = chance
        self._count = 0

    def _message(self, label: str, to: Destination) -> c.NewMessage:
        self._count += 1
        body = f"{label} {self.site.number}/{self._count}"
        identity = Identity(f"producer {self.site.number}", 1, self._count) if self._count % 3 else None
        if to == queue("q"):
            self.sent.append(body)
        return text_message(body, to, identity=identity, priority=self._chance.choice((4, 4, 9)))

    def _change(self, label: str) -> e.KeyChange:
        wanted = self._chance.choice((Wanted.PUT, Wanted.PUT, Wanted.PUT, Wanted.DESTROY, Wanted.INVALIDATE))
        self._count += 1
        return e.KeyChange(self._chance.choice(KEYS), wanted, text_message(f"{label} {self.site.number}/{self._count}"))

    def step(self, label: str) -> None:
        """Send some messages, change some keys, or do both in one commit."""
        site, chance = self.site, self._chance
        what = chance.choice(("send", "send", "change", "commit"))
        if what == "send":
            to = chance.choice(PLACES)
            messages = [self._message(label, to) for _ in range(chance.choice((1, 2, 7)))]
            site.send_messages(to, *messages)
        elif what == "change":
            changes = [self._change(label) for _ in range(chance.choice((1, 3)))]
            site.broker.call(e.ChangeKeys("quotes", changes), WAIT)
        else:
            sends = [(to, self._message(label, to)) for to in chance.choices(PLACES, k=4)]
            parts = [e.ChangeKeys("quotes", [self._change(label), self._change(label)])]
            site.broker.call(c.Commit(site.client, None, sends, [], changes=parts), WAIT)


def stamps(site: Site) -> dict[bytes, tuple[Stamp, bool]]:
    """Of each key the stamp of its last change, and whether that has destroyed it."""
    with site.broker._stores.records() as records:
        found = [(key, decode_key_record(key, value)) for key, value in records.items_from("keys", b"")]
    return {key[4:]: (record.stamp, record.state is KeyState.TOMBSTONE) for key, record in found}


@pytest.mark.parametrize("seed", range(4))
def test_sites_in_a_ring_become_equal(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sites = [Site(number, tmp_path / str(number)) for number in (1, 2, 3)]
    traffic = [Traffic(site, chance) for site in sites]
    following = dict(zip(sites, [*sites[1:], sites[0]], strict=True))
    for site in sites:
        site.ask("create_region", region="quotes")
        site.gateway("g", "queue:q", "topic:news", "region:quotes")
        site.send(queue("q"), "first")
    for number in range(60):
        at = chance.randrange(3)
        site = sites[at]
        what = chance.choice(("traffic", "traffic", "batch", "lost answer", "restart", "pause"))
        if what == "traffic":
            traffic[at].step(str(number))
        elif what == "restart" and not number % 4:
            site.restart()
        elif what == "pause":
            site.ask("change_gateway", name="g", state=chance.choice(("paused", "running")))
        else:
            found = read(site, "g", max_messages=chance.choice((1, 3, 20)), remote_site=following[site].number)
            answer = apply(site, following[site], found) if found["entries"] else None
            if what == "batch" and found["through"]:
                end(site, "g", found, answer)
        assert site.gateways("g")["lost"] == 0
    for _ in range(3):
        for site in sites:
            pump(site, "g", following[site], max_messages=chance.choice((1, 5, 100)))
    sent = Counter({"first": 3})
    for each in traffic:
        sent += Counter(each.sent)
    keys, values = stamps(sites[0]), {}
    for site in sites:
        got = in_queue(site)
        assert Counter(got) == sent
        for each in traffic:
            own = set(each.sent)
            assert [body for body in got if body in own] == each.sent, "in the order of who sent them"
        assert stamps(site) == keys
        for key, value in site.values("quotes").items():  # unless it was invalidated there
            assert values.setdefault(key, value) == value
        counted = site.gateways("g")
        assert (counted["waiting"], counted["refused"], counted["lost"]) == (0, 0, 0)
        assert site.broker.check() == []
        site.broker.close()


@pytest.mark.parametrize("seed", range(3))
def test_the_places_of_one_transaction_follow_each_other(seed: int) -> None:
    site = Site(1)
    site.ask("create_region", region="quotes")
    for name in ("one", "two"):
        site.gateway(name, "queue:q", "topic:news", "region:quotes")
    traffic = Traffic(site, random.Random(seed))
    for number in range(40):
        traffic.step(str(number))
    for name in ("one", "two"):
        found = site.broker.request("read_gateway", {"name": name, "max_messages": 1000}, WAIT)
        labels = [_label(packed) for _, packed in found["entries"]]
        assert len(labels) == site.gateways(name)["queued"] > 40
        assert [int(label) for label, _ in groupby(labels)] == sorted({int(label) for label in labels})
    site.broker.close()


def _label(packed: bytes) -> str:
    """Of which command a message is."""
    return str(unpack(msgpack.unpackb(packed)["payload"]).body).split(" ")[0]
