"""What a queue or region had before its gateway, copied to the other site."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import pytest

from broker_adapter.clock import epoch_ms
from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.envelope import Identity
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    MessageFormatException,
    ResourceAllocationException,
)
from tests.broker_adapter.engine.asking import damage_body
from tests.broker_adapter.engine.driving import WAIT, attach, drained
from tests.broker_adapter.engine.sites import Site, in_queue, pump, read, text_message


@pytest.fixture(params=["disk", "memory"])
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    paths = [tmp_path / name if request.param == "disk" else None for name in ("near", "far")]
    near, far = Site(1, paths[0]), Site(2, paths[1])
    with closing(near.broker), closing(far.broker):
        for site in (near, far):
            site.ask("create_region", region="quotes")
        yield near, far


def copy(site: Site, **arguments: Any) -> tuple[int, int, int]:
    """Copy all that a region or queue has; returns how many messages, how many were left out, and in how many parts."""
    copied = left_out = parts = 0
    after: str | None = None
    while True:
        answer = site.ask("copy_to_gateway", name="g", after=after, **arguments)
        copied += answer["copied"]
        left_out += answer["left_out"]
        parts += 1
        after = answer["next"]
        assert answer["waiting"] == site.gateways("g")["waiting"]
        if after is None:
            return copied, left_out, parts


def stamps(site: Site) -> dict[str, Any]:
    with site.broker.reading() as reader:
        number = reader.state.events.region("quotes").id
        return {each.key: each.record and each.record.stamp for each in reader.keys_behind(number, None, 1000)}


def wait_for_the_next_millisecond() -> None:
    """A change that is made then is newer than all that were made before, at whatever site."""
    now_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now_ms:
        time.sleep(0.0005)


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_the_keys_that_a_region_had_come_to_the_other_site_with_their_stamps(
    sites: tuple[Site, Site], limit: int
) -> None:
    near, far = sites
    near.change("quotes", *[(key, f"value {key}") for key in "dbac"], ("gone", "1"), ("gone", None))
    near.gateway("g", "region:quotes")
    assert copy(near, region="quotes", limit=limit)[:2] == (5, 0)
    pump(near, "g", far)
    assert far.values("quotes") == near.values("quotes") == {key: f"value {key}" for key in "abcd"}
    assert stamps(far) == stamps(near)
    found = near.gateways("g")
    assert (found["received"], found["distributed"], found["waiting"]) == (5, 5, 0)


def test_what_was_copied_late_loses_against_a_later_change_at_either_site(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.change("quotes", ("here", "old"), ("there", "old"), ("destroyed there", "old"), ("untouched", "old"))
    wait_for_the_next_millisecond()
    far.change("quotes", ("there", "new"), ("destroyed there", "new"), ("destroyed there", None))
    near.gateway("g", "region:quotes")
    copy(near, region="quotes")
    near.change("quotes", ("here", "new"))
    pump(near, "g", far, max_messages=1)
    assert far.values("quotes") == {"here": "new", "there": "new", "untouched": "old"}
    copy(near, region="quotes")
    pump(near, "g", far)
    assert far.values("quotes") == {"here": "new", "there": "new", "untouched": "old"}


def test_a_key_that_was_destroyed_here_goes_at_the_other_site_as_well(sites: tuple[Site, Site]) -> None:
    near, far = sites
    far.change("quotes", ("a", "1"))
    wait_for_the_next_millisecond()
    near.change("quotes", ("a", "2"), ("a", None))
    near.gateway("g", "region:quotes")
    copy(near, region="quotes")
    pump(near, "g", far)
    assert far.values("quotes") == {}


def test_a_key_without_a_value_is_left_out(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.change("quotes", ("a", "1"), ("b", "2"))
    near.broker.call(e.ChangeKeys("quotes", [e.KeyChange("a", Wanted.INVALIDATE, text_message(""))]), WAIT)
    near.gateway("g", "region:quotes")
    assert copy(near, region="quotes") == (1, 1, 1)
    pump(near, "g", far)
    assert far.values("quotes") == {"b": "2"}


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_the_messages_that_a_queue_had_come_once_and_those_behind_them_are_not_copied(
    sites: tuple[Site, Site], limit: int
) -> None:
    near, far = sites
    _, inbox = attach(near.broker, near.client, "q", 1)
    near.send("q", *"1234")
    inbox.wait_for(1)
    near.gateway("g", "queue:q")
    near.send("q", *"56")
    assert copy(near, queue="q", limit=limit)[:2] == (4, 0)
    near.send("q", "7")
    pump(near, "g", far)
    assert in_queue(far) == ["5", "6", *"1234", "7"]
    assert in_queue(near) == [*"1234567"]
    assert near.broker.check() == []


def test_a_queue_is_copied_again_only_where_that_is_asked_for(tmp_path: Path) -> None:
    near = Site(1, tmp_path)
    near.ask("create_region", region="quotes")
    near.gateway("empty", "queue:q")
    near.send("q", *"123")
    near.change("quotes", ("a", "1"))
    near.gateway("g", "move:q", "region:quotes", "queue:other")
    assert near.ask("copy_to_gateway", name="empty", queue="q")["copied"] == 0
    assert near.ask("copy_to_gateway", name="g", queue="q", limit=1)["copied"] == 0, "none is delayed"
    begun = near.ask("copy_to_gateway", name="g", queue="q", limit=1, after="0")
    near.restart()
    assert near.gateways("g")["copied"] == ["move:q"]
    with pytest.raises(IllegalStateException, match="a copy of move:q by gateway 'g' was begun already"):
        copy(near, queue="q")
    with pytest.raises(IllegalStateException, match="a copy of queue:q by gateway 'empty' was begun already"):
        near.ask("copy_to_gateway", name="empty", queue="q")
    assert near.ask("copy_to_gateway", name="g", queue="q", after=begun["next"])["copied"] == 2, "it goes on"
    assert copy(near, queue="q", again=True)[0] == 3
    assert [copy(near, region="quotes")[0] for _ in range(2)] == [1, 1], "a region may be copied again"
    assert copy(near, queue="other")[0] == 0
    assert near.gateways("g")["copied"] == ["move:q", "region:quotes", "queue:other"]
    near.broker.close()


def test_a_second_copy_that_is_refused_queues_nothing_of_what_is_delayed(sites: tuple[Site, Site]) -> None:
    near, _ = sites
    near.send("q", "later", deliver_at_ms=epoch_ms() + 3_600_000)
    near.gateway("g", "queue:q")
    assert near.ask("copy_to_gateway", name="g", queue="q")["copied"] == 1
    with pytest.raises(IllegalStateException, match="was begun already"):
        near.ask("copy_to_gateway", name="g", queue="q")
    assert near.gateways("g")["waiting"] == 1


def test_delayed_messages_are_copied_with_their_delay(sites: tuple[Site, Site]) -> None:
    near, far = sites
    later_ms = time.time_ns() // 1_000_000 + 3_600_000
    near.send("q", *"123", deliver_at_ms=later_ms)
    near.send("q", "now")
    near.gateway("g", "queue:q")
    assert copy(near, queue="q", limit=2) == (4, 0, 3)
    pump(near, "g", far)
    (there,) = [each for each in far.broker.call(c.Statistics(), WAIT).queues if each.name == "q"]
    assert (there.messages, there.delayed) == (4, 3)
    assert far.bodies("q") == ["now"]


def test_messages_are_copied_as_they_came_in(sites: tuple[Site, Site]) -> None:
    near, far = sites
    identity = Identity("producer", 1, 1)
    near.send("q", "urgent", priority=9, identity=identity)
    near.send("q", "not kept", persistent=False)
    near.send_messages(queue("q"), c.NewMessage(7, b"another format", 3))
    near.send_messages(queue("q"), c.NewMessage(c.ENVELOPE_FORMAT, b"unreadable"))
    near.gateway("g", "queue:q")
    assert copy(near, queue="q") == (4, 0, 2)
    assert copy(near, queue="q", again=True) == (4, 0, 2)
    pump(near, "g", far)
    assert near.gateways("g")["refused"] == 2  # it can be read by nobody
    got = drained(far.broker, far.client, "q")
    assert [each.payload for each in got if each.format == 7] == [b"another format"] * 2  # it has no identity
    assert got[0].payload == text_message("urgent", priority=9, identity=identity).payload
    assert len(got) == 5
    far.send("q", "urgent", identity=identity)
    assert far.bodies("q") == []


def test_a_large_queue_is_copied_in_parts_of_a_few_mebibytes(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.change("quotes", *[(str(number), "x" * 1_500_000) for number in range(5)])
    near.send("q", *["x" * 1_500_000] * 5)
    near.gateway("g", "queue:q", "region:quotes")
    assert copy(near, queue="q") == (5, 0, 4)
    assert copy(near, region="quotes") == (5, 0, 3)
    pump(near, "g", far)
    assert len(stamps(far)) == len(drained(far.broker, far.client, "q")) == 5


@pytest.mark.damages
def test_damaged_messages_and_values_are_left_out_and_counted(tmp_path: Path) -> None:
    near, far = Site(1, tmp_path), Site(2)
    for site in (near, far):
        site.ask("create_region", region="quotes")
    near.change("quotes", ("a", "damaged value"), ("b", "2"))
    near.send("q", "damaged message", "2")
    near.gateway("g", "queue:q", "region:quotes")
    for text in (b"damaged value", b"damaged message"):
        damage_body(near.broker, text)
    assert copy(near, region="quotes")[:2] == (1, 1)
    assert copy(near, queue="q")[:2] == (1, 1)
    pump(near, "g", far)
    assert (far.values("quotes"), far.bodies("q")) == ({"b": "2"}, ["2"])
    near.broker.close()
    far.broker.close()


def test_a_restart_knows_which_messages_came_before_the_gateway(tmp_path: Path) -> None:
    near, far = Site(1, tmp_path), Site(2)
    near.send("q", "1")
    near.gateway("g", "queue:q")
    near.send("q", "2")
    near.restart()
    near.send("q", "3")
    assert copy(near, queue="q")[0] == 1
    pump(near, "g", far)
    assert in_queue(far) == ["2", "3", "1"]
    near.broker.close()
    far.broker.close()


def test_what_is_copied_goes_on_to_further_sites(sites: tuple[Site, Site]) -> None:
    near, far = sites
    last = Site(3)
    with closing(last.broker):
        near.send("q", "1")
        near.gateway("g", "queue:q")
        far.gateway("g", "queue:q")
        copy(near, queue="q")
        pump(near, "g", far)
        pump(far, "g", last)
        assert last.bodies("q") == ["1"]


def test_what_is_copied_is_not_looked_up_by_its_number(sites: tuple[Site, Site]) -> None:
    near, _ = sites
    near.send("q", "before")
    near.gateway("g", "queue:q")
    near.send("q", "after")
    copy(near, queue="q")
    taken, copied = [msgpack.unpackb(kind)["origin"] for _, kind, *_ in read(near, "g")["entries"]]
    assert (taken, copied) == (1, 0)


def test_where_there_is_no_room_nothing_of_a_part_is_copied() -> None:
    near = Site(1, max_volatile_bytes=10_000)
    near.send("q", *["x" * 1000] * 4)
    near.gateway("g", "queue:q")
    with pytest.raises(ResourceAllocationException, match="max_volatile_bytes"):
        copy(near, queue="q", limit=1000)
    assert near.gateways("g")["waiting"] == 0
    assert near.ask("copy_to_gateway", name="g", queue="q", after="0", limit=2)["copied"] == 2
    near.broker.close()


def test_what_cannot_be_copied_says_why(sites: tuple[Site, Site]) -> None:
    near, _ = sites
    near.gateway("g", "queue:q", "topic:news", "region:quotes", "region:unknown")
    for arguments, reason in (
        ({"name": "other", "queue": "q"}, "there is no gateway 'other'"),
        ({"name": "g", "queue": "x"}, "does not send 'queue:x'; it sends queue:q, topic:news, region:quotes"),
        ({"name": "g", "region": "unknown"}, "there is no region 'unknown'"),
    ):
        with pytest.raises(InvalidDestinationException, match=reason):
            near.ask("copy_to_gateway", **arguments)
    for arguments in ({}, {"queue": "q", "region": "quotes"}):
        with pytest.raises(MessageFormatException, match="needs the argument 'region', or 'queue'"):
            near.ask("copy_to_gateway", name="g", **arguments)
    near.send("q", "1")
    near.gateway("late", "queue:q")
    with pytest.raises(MessageFormatException, match="is no answer of a copy of a queue: 'key'"):
        near.ask("copy_to_gateway", name="late", queue="q", after="key")
    near.ask("change_gateway", name="late", state="stopped")
    with pytest.raises(IllegalStateException, match="is stopped, and takes nothing; start or pause it first"):
        near.ask("copy_to_gateway", name="late", queue="q", after="0")
    assert near.ask("copy_to_gateway", name="g", queue="q")["copied"] == 0
