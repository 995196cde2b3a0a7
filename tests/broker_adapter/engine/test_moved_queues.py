"""Queues whose messages go to another site only, and random histories of two sites that move one to each other."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgpack
import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import Identity
from broker_adapter.errors import IllegalStateException, MessageFormatException
from tests.broker_adapter.engine.driving import WAIT, attach, drained
from tests.broker_adapter.engine.sites import Site, apply, end, in_queue, pump, read, text_message


@pytest.fixture(params=["disk", "memory"])
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    paths = [tmp_path / name if request.param == "disk" else None for name in ("near", "far")]
    near, far = Site(1, paths[0]), Site(2, paths[1])
    with closing(near.broker), closing(far.broker):
        yield near, far


def test_what_is_sent_to_a_queue_that_is_moved_goes_to_the_other_site_only(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.send("q", "before")
    near.gateway("g", "move:q")
    near.send("q", "1")
    near.send("q", "2", "3")
    near.send("q", "4", persistent=False)
    near.send_messages(queue("q"), text_message("5"), c.NewMessage(7, b"6", 9))
    sends = [(queue("q"), text_message("7")), (queue("other"), text_message("here"))]
    near.broker.call(c.Commit(near.client, None, sends, []), WAIT)
    near.ask("stage", transaction="group/1/0", queue="q", first=0, messages=[text_message("8").payload])
    near.ask("publish", group="group", number=1, transactions=["group/1/0"])
    assert near.gateways("g")["waiting"] == 8
    assert in_queue(near) == ["before"]
    assert in_queue(near, "other") == ["here"]
    pump(near, "g", far)
    got = drained(far.broker, far.client, "q")
    assert [each.payload[-1:] for each in got] == [b"6", b"1", b"2", b"3", b"4", b"5", b"7", b"8"]
    assert near.gateways("g")["distributed"] == 8
    assert near.broker.check() == []


def test_messages_go_into_the_queue_while_the_gateway_is_stopped_and_when_it_is_gone(
    sites: tuple[Site, Site],
) -> None:
    near, far = sites
    near.gateway("g", "move:q", state="created")
    for state in ("paused", "stopped", "running"):
        near.ask("change_gateway", name="g", state=state)
        near.send("q", state)
        near.send("q", state, state)
    assert near.gateways("g")["not_queued"] == 3
    assert in_queue(near) == ["stopped"] * 3
    pump(near, "g", far)
    assert in_queue(far) == ["paused"] * 3 + ["running"] * 3
    near.ask("destroy_gateway", name="g")
    near.send("q", "without")
    assert in_queue(near) == ["stopped"] * 3 + ["without"]


def test_a_consumer_here_gets_nothing_of_a_queue_that_is_moved(sites: tuple[Site, Site]) -> None:
    near, far = sites
    _, inbox = attach(near.broker, near.client, "q", 10)
    near.gateway("g", "move:q")
    near.send("q", "1", "2")
    near.ask("change_gateway", name="g", state="stopped")
    near.send("q", "3")
    assert [each.payload for each in inbox.wait_for(1)] == [text_message("3").payload]
    pump(near, "g", far)
    assert in_queue(far) == ["1", "2"]


def test_further_gateways_get_what_one_moves(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("moves", "move:q")
    near.gateway("copies", "queue:q")
    near.gateway("stopped", "move:q")
    near.ask("change_gateway", name="stopped", state="stopped")
    near.send("q", "1")
    near.send("q", "2", "3")
    near.ask("stage", transaction="group/1/0", queue="q", first=0, messages=[text_message("4").payload])
    near.ask("publish", group="group", number=1, transactions=["group/1/0"])
    last = Site(3)
    with closing(last.broker):
        pump(near, "moves", far)
        pump(near, "copies", last)
        assert in_queue(far) == in_queue(last) == [*"1234"]
    assert near.bodies("q") == []
    assert near.broker.check() == []


def test_what_the_selector_does_not_want_goes_into_the_queue_here_as_it_came(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:other", "move:q", selector="size > 3")
    later_ms = time.time_ns() // 1_000_000 + 3_600_000
    near.send("q", "low", properties={"size": 1})
    near.send("q", "goes", properties={"size": 9})
    near.send("q", "urgent", priority=9, identity=Identity("p", 1, 1))
    near.send("q", "delayed", deliver_at_ms=later_ms)
    near.send("other", "is left out", properties={"size": 1})
    near.send_messages(queue("q"), c.NewMessage(7, b"another format", 8))
    assert near.gateways("g")["waiting"] == 6
    pump(near, "g", far)
    assert in_queue(far) == ["goes"]
    got = drained(near.broker, near.client, "q")
    assert [each.payload for each in got] == [
        *(text_message("urgent", priority=9, identity=Identity("p", 1, 1)).payload, b"another format"),
        text_message("low", properties={"size": 1}).payload,
    ]
    (here,) = [each for each in near.broker.call(c.Statistics(), WAIT).queues if each.name == "q"]
    assert (here.messages, here.delayed) == (4, 1)
    found = near.gateways("g")
    assert (found["filtered"], found["distributed"]) == (5, 1)
    near.send("q", "once more", identity=Identity("p", 1, 1))
    assert near.gateways("g")["waiting"] == 0, "it is known"


@pytest.mark.parametrize(
    ("before", "after"), [("size > 3", ""), ("size > 3", "size < 3"), (None, "size > 3"), (None, "size < 3")]
)
def test_another_selector_does_not_change_what_becomes_of_a_batch_without_an_answer(
    sites: tuple[Site, Site], before: str | None, after: str
) -> None:
    near, far = sites
    near.gateway("g", "move:q", selector=before)
    near.send("q", "small", properties={"size": 1})
    near.send("q", "large", properties={"size": 9})
    apply(near, far, read(near, "g"))
    near.ask("change_gateway", name="g", selector=after)
    near.send("q", "new", properties={"size": 9 if after == "size > 3" else 1})
    pump(near, "g", far)
    assert near.bodies("q") == (["small"] if before else [])
    assert in_queue(far) == ([] if before else ["small"]) + ["large", "new"]


@pytest.mark.parametrize(
    ("before", "after", "here", "there"),
    [(None, "size > 100", [], ["small", "large"]), ("size > 3", "", ["small"], ["large"])],
)
def test_what_is_refused_behind_a_batch_without_an_answer_lets_no_selector_choose_among_it_again(
    before: str | None, after: str, here: list[str], there: list[str]
) -> None:
    near, far = Site(1, max_gateway_batch_bytes=1 << 20), Site(2)
    with closing(near.broker), closing(far.broker):
        near.gateway("g", "move:q", group_transaction_events=True, selector=before)
        near.send("q", "small", properties={"size": 1})
        near.send("q", "large", properties={"size": 9})
        first = read(near, "g", remote_site=2)
        apply(near, far, first)
        near.ask("change_gateway", name="g", selector=after)
        near.commit(["x" * 700_000, "y" * 700_000], {})
        read(near, "g", remote_site=2, after=first["through"])
        assert near.gateways("g")["refused"] == 2
        with pytest.raises(IllegalStateException, match="came before the last change of its selector"):
            near.ask("change_gateway", name="g", selector="size > 200")
        pump(near, "g", far)
        assert (near.bodies("q"), in_queue(far)) == (here, there)


def test_a_selector_changes_after_a_restart_while_what_is_new_waits(tmp_path: Path) -> None:
    near = Site(1, tmp_path)
    near.gateway("g", "queue:q", selector="size > 3")
    near.ask("change_gateway", name="g", selector="size > 4")
    near.send("q", "1", properties={"size": 1})
    near.restart()
    near.ask("change_gateway", name="g", selector="size > 5")
    near.broker.close()


def test_a_selector_changes_again_when_what_came_before_its_last_change_is_sent(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q", selector="size > 3")
    for selector in ("size > 4", "size > 5"):
        near.ask("change_gateway", name="g", selector=selector)
    near.send("q", "1", properties={"size": 1})
    near.ask("change_gateway", name="g", selector="size > 6")
    near.send("q", "2", properties={"size": 2})
    near.ask("change_gateway", name="g", selector="size > 6", batch_ms=5)
    with pytest.raises(IllegalStateException, match="came before the last change of its selector"):
        near.ask("change_gateway", name="g", selector="size > 7")
    pump(near, "g", far)
    near.ask("change_gateway", name="g", selector="size > 7")
    assert near.gateways("g")["selector_before"] == "size > 6"


def test_a_message_that_two_sites_would_move_to_each_other_changes_its_site_once(sites: tuple[Site, Site]) -> None:
    near, far = sites
    for site in sites:
        site.gateway("g", "move:q")
    near.send("q", "from near")
    far.send("q", "from far")
    for _ in range(2):
        pump(near, "g", far)
        pump(far, "g", near)
    assert near.bodies("q") == ["from far"]
    assert far.bodies("q") == ["from near"]


def test_what_is_put_back_or_redriven_goes_into_the_queue_itself() -> None:
    near = Site(1)
    near.gateway("g", "move:q")
    near.send("DLQ", "1")
    assert near.ask("redrive", destination="DLQ", to="q")["moved"] == 1
    near.broker.call(c.PutBack(queue("q"), [(b"key", text_message("2"))], [b"key"], keep=True), WAIT)
    assert in_queue(near) == ["1", "2"]
    assert near.gateways("g")["waiting"] == 0
    near.broker.close()


def test_what_was_in_a_queue_before_it_was_moved_may_be_copied(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.send("q", "before")
    near.gateway("g", "move:q")
    near.send("q", "1")
    assert near.ask("copy_to_gateway", name="g", queue="q", after="0")["copied"] == 1
    pump(near, "g", far)
    assert in_queue(far) == ["1", "before"]
    assert in_queue(near) == ["before"]


def test_what_the_other_site_refuses_is_kept(sites: tuple[Site, Site]) -> None:
    near, _ = sites
    far = Site(3, max_message_bytes=1000)
    with closing(far.broker):
        near.gateway("g", "move:q")
        near.send("q", "x" * 2000)
        pump(near, "g", far)
    assert near.bodies("$gateway/g/refused") == ["x" * 2000]


def test_a_restart_knows_that_a_queue_is_moved(tmp_path: Path) -> None:
    near = Site(1, tmp_path)
    near.gateway("g", "move:q")
    near.restart()
    near.send("q", "1")
    assert (near.bodies("q"), near.gateways("g")["waiting"]) == ([], 1)
    near.broker.close()


def test_a_queue_is_moved_or_copied_and_no_other_site_says_which(sites: tuple[Site, Site]) -> None:
    near, far = sites
    with pytest.raises(MessageFormatException, match="is named twice"):
        near.gateway("g", "queue:q", "move:q")
    near.gateway("g", "move:q")
    near.send("q", "1")
    found = read(near, "g")
    ((position, packed, *rest),) = found["entries"]
    kind = msgpack.unpackb(packed)
    assert kind["to"] == "queue:q"
    wrong = {**found, "entries": [(position, msgpack.packb({**kind, "to": "move:q"}), *rest)]}
    with pytest.raises(MessageFormatException, match="is none"):
        apply(near, far, wrong)


@pytest.mark.parametrize("seed", range(4))
def test_each_message_is_at_one_site_whatever_happens_to_two_that_move_a_queue(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sites = [Site(number, tmp_path / str(number)) for number in (1, 2)]
    sent: list[str] = []
    for site in sites:
        site.gateway("g", "move:q", selector=chance.choice((None, "size > 3")))
    for number in range(80):
        site = chance.choice(sites)
        other = sites[2 - site.number]
        what = chance.choice(
            ("send", "send", "commit", "batch", "batch", "lost answer", "restart", "state", "stage", "selector")
        )
        bodies = [f"{number}/{each}" for each in range(chance.choice((1, 1, 3)))]
        if what == "send":
            site.send("q", *bodies, properties={"size": chance.randrange(8)}, priority=chance.choice((4, 9)))
            sent += bodies
        elif what == "commit":
            messages = [(queue("q"), text_message(body, properties={"size": 4})) for body in bodies]
            site.broker.call(c.Commit(site.client, None, messages, []), WAIT)
            sent += bodies
        elif what == "stage":
            payloads = [text_message(body).payload for body in bodies]
            site.ask("stage", transaction=f"group/{number}/0", queue="q", first=0, messages=payloads)
            site.ask("publish", group="group", number=number, transactions=[f"group/{number}/0"])
            sent += bodies
        elif what == "restart" and not number % 4:
            site.restart()
        elif what == "state":
            site.ask("change_gateway", name="g", state=chance.choice(("paused", "running", "stopped")))
        elif what == "selector":
            with suppress(IllegalStateException):
                site.ask("change_gateway", name="g", selector=chance.choice(("", "size > 3", "size < 6")))
        else:
            found = read(site, "g", max_messages=chance.choice((1, 3, 20)), remote_site=other.number)
            answer = apply(site, other, found) if found["entries"] else None
            if what != "lost answer" and found["through"]:
                end(site, "g", found, answer)
        assert site.gateways("g")["lost"] == 0
    for _ in range(2):
        for site in sites:
            pump(site, "g", sites[2 - site.number], max_messages=chance.choice((1, 5, 100)))
    assert Counter(in_queue(sites[0]) + in_queue(sites[1])) == Counter(sent)
    for site in sites:
        assert site.broker.check() == []
        site.broker.close()
