"""Random histories of sites in a ring, with lost answers and restarts: all sites become equal, and nothing is twice."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

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

    def step(self, label: str) -> str:
        """Send some messages, change some keys, or do both in one commit; returns what was done."""
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
        return what


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


@pytest.mark.parametrize("seed", range(6))
def test_the_messages_of_a_transaction_follow_each_other_wherever_they_go(seed: int) -> None:
    chance = random.Random(seed)
    site, next_site = Site(1), Site(2)
    for each in (site, next_site):
        each.ask("create_region", region="quotes")
        for name in ("one", "two"):
            each.gateway(name, "queue:q", "topic:news", "region:quotes", group_transaction_events=True)
    traffic = Traffic(site, chance)
    wholes = {str(number) for number in range(60) if traffic.step(str(number)) in ("change", "commit")}
    published = {"queue": "q", "transaction": "group/1/0", "first": 0}
    site.ask("stage", messages=[text_message(f"60 {number}").payload for number in range(3)], **published)
    site.ask("publish", group="group", number=1, transactions=["group/1/0"])
    for name in ("one", "two"):
        transactions = _transactions(site, name)
        assert all(len(set(labels)) == 1 for labels in transactions), "others do not join them"
        _check_whole(transactions, wholes)
        assert transactions[-3:] == [["60"]] * 3, "what Spark publishes stands alone"
    pump(site, "one", next_site, max_messages=chance.choice((1, 5, 20)))
    for name in ("one", "two"):
        _check_whole(_transactions(next_site, name), wholes)
    for each in (site, next_site):
        each.broker.close()


def _transactions(site: Site, name: str) -> list[list[str]]:
    """What waits for a gateway: of the messages of each transaction, by which command they came."""
    found = read(site, name, max_messages=1000)
    assert len(found["entries"]) == site.gateways(name)["queued"] > 60
    transactions: list[list[str]] = []
    for position, *_, payload in found["entries"]:
        label = str(unpack(payload).body).split(" ")[0]
        if position in found["joined"]:
            transactions[-1].append(label)
        else:
            transactions.append([label])
    return transactions


def _check_whole(transactions: list[list[str]], wholes: set[str]) -> None:
    """Check that no transaction was divided; ``wholes``: the labels of those that are some."""
    assert len(wholes) > 10
    for label in wholes:
        assert sum(label in each for each in transactions) <= 1, f"transaction {label} was divided"
