"""Gateways between two engines, whose sender is driven by hand."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest

from broker_adapter.destination import queue, topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.records.gateway_records import STATES
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.engine.rules.gateways import MAX_GATEWAYS
from broker_adapter.envelope import DEAD_LETTER_REASON, ENVELOPE_FORMAT, KEY_PROPERTY, Identity
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    InvalidURLException,
    MessageFormatException,
    ResourceAllocationException,
)
from broker_adapter.gateways.sender import columns_of
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.asking import damage_body
from tests.broker_adapter.engine.driving import WAIT, attach, drained, subscribe
from tests.broker_adapter.engine.sites import URL, Site, apply, end, in_queue, pump, read, text_message

DURABLE = Subscription("s", durable=True, shared=False)


@pytest.fixture(params=["disk", "memory"])
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    paths = [tmp_path / name if request.param == "disk" else None for name in ("near", "far")]
    near, far = Site(1, paths[0]), Site(2, paths[1])
    with closing(near.broker), closing(far.broker):
        for site in (near, far):
            site.ask("create_region", region="quotes")
        yield near, far


def test_what_its_destinations_take_goes_to_the_other_site_in_order(sites: tuple[Site, Site]) -> None:
    near, far = sites
    subscribe(far.broker, far.client, "news", "s")
    near.gateway("g", "queue:q", "topic:news", "region:quotes")
    near.send("q", "1", "2", "3")
    near.send(topic("news"), "a", "b")
    near.change("quotes", ("IBM", "90"), ("AMD", "7"))
    near.send("q", "urgent", priority=9)
    near.send("other", "not carried")
    near.change("quotes", ("IBM", "91"), ("AMD", None))
    assert near.gateways("g")["waiting"] == 10
    assert pump(near, "g", far) == 1
    assert far.bodies("q") == ["urgent", "1", "2", "3"]
    assert len(drained(far.broker, far.client, topic("news"), subscription=DURABLE)) == 2
    assert far.values("quotes") == near.values("quotes") == {"IBM": "91"}
    found = near.gateways("g")
    assert (found["received"], found["distributed"], found["waiting"], found["batches"]) == (10, 10, 0, 1)
    assert near.bodies("q") == ["urgent", "1", "2", "3"], "it is copied"


def test_invalidations_and_changes_that_change_nothing_do_not_travel(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "region:quotes")
    near.change("quotes", ("IBM", "90"), ("none", None))
    near.broker.call(e.ChangeKeys("quotes", [e.KeyChange("IBM", Wanted.INVALIDATE, text_message(""))]), WAIT)
    near.ask("create_region", region="other")
    assert near.gateways("g")["waiting"] == 1
    pump(near, "g", far)
    assert far.values("quotes") == {"IBM": "90"}


def test_a_batch_that_comes_again_is_taken_once_wherever_it_is_cut(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    near.send("q", *map(str, range(10)))
    apply(near, far, read(near, "g", max_messages=4))  # whose answer is lost
    near.send("q", "10")
    found = read(near, "g")
    last = found["through"]
    answer = apply(near, far, found)
    assert (answer["repeated"], answer["applied"], answer["through"]) == (4, last, last)
    answer = apply(near, far, found)
    assert (answer["repeated"], answer["applied"], answer["through"]) == (11, last, last)
    assert end(near, "g", found, answer) == 11
    assert end(near, "g", found, answer) == 0, "it ends once"
    assert near.gateways("g")["distributed"] == 11
    assert far.bodies("q") == [*map(str, range(11))]


def test_a_batch_is_not_taken_unless_that_ahead_of_it_was(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    near.send("q", *"123456")
    first = read(near, "g", max_messages=2)
    second = read(near, "g", max_messages=2, after=first["through"])
    third = read(near, "g", max_messages=2, after=second["through"])
    nothing = {"through": 0, "refused": [], "applied": 0, "repeated": 0, "unchanged": 0}
    assert apply(near, far, second, behind=first["through"]) == nothing
    assert apply(near, far, first)["through"] == first["through"]
    assert apply(near, far, third, behind=second["through"])["through"] == 0
    assert apply(near, far, second, behind=first["through"])["through"] == second["through"]
    assert apply(near, far, second, behind=first["through"])["repeated"] == 2, "it may be asked again"
    assert apply(near, far, third, behind=second["through"])["through"] == third["through"]
    assert far.bodies("q") == [*"123456"]


def test_a_refused_message_is_set_aside_with_the_reason_and_the_others_go_on(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q", "region:unknown", "region:quotes")
    near.ask("create_region", region="unknown")
    near.send("q", *map(str, range(6)))
    near.change("unknown", ("k", "v"), ("l", "v"))
    near.send("q", "6", "7")
    near.change("quotes", ("IBM", "90"))
    found = read(near, "g")
    answer = apply(near, far, found)
    positions = [position for position, *_ in found["entries"]]
    assert [position for position, _ in answer["refused"]] == positions[6:8]
    assert (answer["applied"], answer["through"]) == (positions[5], positions[7])
    assert apply(near, far, found)["refused"] == answer["refused"], "the answer may be lost"
    end(near, "g", found, answer)
    assert pump(near, "g", far) == 1
    assert far.bodies("q") == [*map(str, range(8))]
    assert far.values("quotes") == {"IBM": "90"}
    counted = near.gateways("g")
    assert (counted["distributed"], counted["refused"]) == (9, 2)
    refused = drained(near.broker, near.client, "$gateway/g/refused")
    assert [(each.annotations or {})[KEY_PROPERTY] for each in refused] == ["k", "l"]
    assert (refused[0].annotations or {})[DEAD_LETTER_REASON].startswith("region:unknown: there is no region 'unknown'")
    assert near.ask("redrive", destination="$gateway/g/refused") == {"moved": 0, "left": 2}
    assert near.broker.check() == []


def test_the_newer_change_of_a_key_holds_at_both_sites(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "region:quotes")
    far.gateway("g", "region:quotes")
    near.change("quotes", ("a", "near"), ("b", "near"), ("gone", "near"))
    far.change("quotes", ("a", "far"), ("gone", "far"))
    near.change("quotes", ("b", "near again"))
    far.change("quotes", ("gone", None))
    found = read(near, "g", remote_site=2)
    answer = apply(near, far, found)
    assert answer["unchanged"] == 2
    end(near, "g", found, answer)
    pump(far, "g", near)
    assert near.values("quotes") == far.values("quotes") == {"a": "far", "b": "near again"}
    pump(near, "g", far)
    assert near.gateways("g")["waiting"] == far.gateways("g")["waiting"] == 0
    near.change("quotes", ("a", "after it was seen"))
    pump(near, "g", far)
    assert far.values("quotes")["a"] == "after it was seen"


def test_a_key_that_was_destroyed_elsewhere_does_not_come_back_by_an_older_value(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("old", "region:quotes")
    near.change("quotes", ("a", "old"))
    near.gateway("new", "region:quotes")
    near.change("quotes", ("a", None))
    pump(near, "new", far)
    pump(near, "old", far)
    assert far.values("quotes") == {}
    far.change("quotes", ("a", "later"))
    assert far.values("quotes") == {"a": "later"}


def test_a_batch_whose_changes_are_too_many_for_one_commit_is_applied_in_several() -> None:
    near, far = Site(1), Site(2, max_transaction_entries=20)
    with closing(near.broker), closing(far.broker):
        for site in (near, far):
            site.ask("create_region", region="quotes")
        near.gateway("g", "region:quotes")
        near.change("quotes", *[(f"k{number}", "v") for number in range(10)])
        assert pump(near, "g", far) == 1
        assert len(far.values("quotes")) == 10


def test_a_change_from_far_ahead_in_time_is_refused(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "region:quotes")
    near.change("quotes", ("a", "1"), ("b", "2"))
    found = read(near, "g")
    (_, packed, *rest), second = found["entries"]
    kind = msgpack.unpackb(packed)
    kind["stamp"][0] += 2 * 86_400_000 << 16
    answer = apply(near, far, {**found, "entries": [second, (second[0] + 1, msgpack.packb(kind), *rest)]})
    assert [reason for _, reason in answer["refused"]] == [
        "the stamp of the change is more than a day ahead of the clock of this site"
    ]
    assert far.values("quotes") == {"b": "2"}


def test_a_batch_of_a_gateway_that_was_destroyed_does_not_end_the_messages_of_the_next_one(
    sites: tuple[Site, Site],
) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    near.send("q", "1")
    found = read(near, "g")
    answer = apply(near, far, found)
    near.ask("destroy_gateway", name="g")
    near.gateway("g", "queue:q")
    near.send("q", "2")
    with pytest.raises(InvalidDestinationException, match="was destroyed, and is another one by now"):
        end(near, "g", found, answer)
    assert pump(near, "g", far) == 1
    assert far.bodies("q") == ["1", "2"]


def test_an_invalidation_does_not_hide_a_newer_value_of_another_site(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "region:quotes")
    near.change("quotes", ("a", "1"))
    pump(near, "g", far)
    near.change("quotes", ("a", "2"))
    far.broker.call(e.ChangeKeys("quotes", [e.KeyChange("a", Wanted.INVALIDATE, text_message(""))]), WAIT)
    assert far.values("quotes") == {}
    pump(near, "g", far)
    assert far.values("quotes") == {"a": "2"}


def test_a_destruction_goes_on_to_further_sites_where_the_key_was_not_known(sites: tuple[Site, Site]) -> None:
    near, far = sites
    last = Site(3)
    with closing(last.broker):
        last.ask("create_region", region="quotes")
        last.change("quotes", ("a", "old"))
        near.change("quotes", ("a", "new"))
        near.gateway("g", "region:quotes")
        far.gateway("g", "region:quotes")
        near.change("quotes", ("a", None))
        pump(near, "g", far)
        pump(far, "g", last)
        assert last.values("quotes") == {}


def test_an_event_ends_where_it_was_already(sites: tuple[Site, Site]) -> None:
    near, far = sites
    for site in sites:
        site.gateway("g", "queue:q", "region:quotes")
    near.send("q", "1")
    near.change("quotes", ("a", "1"))
    for _ in range(3):
        pump(near, "g", far)
        pump(far, "g", near)
    assert near.bodies("q") == far.bodies("q") == ["1"]
    found = far.gateways("g")
    assert (found["received"], found["filtered"], found["queued"]) == (2, 2, 0)


def test_a_chain_of_sites_passes_on_what_it_gets(sites: tuple[Site, Site]) -> None:
    near, far = sites
    last = Site(3)
    with closing(last.broker):
        last.ask("create_region", region="quotes")
        near.gateway("g", "queue:q", "region:quotes")
        far.gateway("g", "queue:q", "region:quotes")
        near.send("q", *"12")
        near.change("quotes", ("a", "1"))
        pump(near, "g", far)
        pump(far, "g", last)
        assert last.bodies("q") == ["1", "2"]
        assert last.values("quotes") == {"a": "1"}
        last.gateway("back", "queue:q", "region:quotes")
        last.send("q", "3")
        pump(last, "back", near)
        assert near.bodies("q") == ["1", "2", "3"]


def test_a_selector_says_what_goes(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q", "region:quotes", selector="size > 3")
    for size in range(8):
        near.send("q", str(size), properties={"size": size})
    near.change("quotes", ("a", "1"))
    assert pump(near, "g", far) == 1
    assert far.bodies("q") == ["4", "5", "6", "7"]
    found = near.gateways("g")
    assert (found["received"], found["filtered"], found["distributed"]) == (9, 5, 4)
    near.ask("change_gateway", name="g", selector="head = 'x' AND sites = 'y'")
    near.send("q", "named as what is added", properties={"head": "x", "sites": "y"})
    pump(near, "g", far)
    assert far.bodies("q") == ["named as what is added"]
    near.ask("change_gateway", name="g", selector="")
    near.send("q", "all", properties={"size": 0})
    pump(near, "g", far)
    assert far.bodies("q")[-1] == "all"


def test_what_expires_while_it_waits_stays_and_delays_travel(sites: tuple[Site, Site]) -> None:
    near, far = sites
    now_ms = time.time_ns() // 1_000_000
    near.gateway("g", "queue:q")
    near.send("q", "late", expires_at_ms=now_ms + 1)
    near.send("q", "lives", expires_at_ms=now_ms + 3_600_000, deliver_at_ms=now_ms + 3_000_000)
    while time.time_ns() // 1_000_000 <= now_ms + 1:
        time.sleep(0.001)
    assert near.gateways("g")["waiting"] in (1, 2)
    pump(near, "g", far)
    found = near.gateways("g")
    assert found["received"] - found["expired"] == found["distributed"] == 1
    assert far.bodies("q") == []
    (there,) = [each for each in far.broker.call(c.Statistics(), WAIT).queues if each.name == "q"]
    assert (there.messages, there.delayed) == (1, 1)


def test_a_message_keeps_its_identity(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    identity = Identity("producer", 1, 1)
    near.send("q", "once", identity=identity)
    far.send("q", "once", identity=identity)  # by a client that changed its site
    pump(near, "g", far)
    assert far.bodies("q") == ["once"]


def test_a_message_of_another_format_keeps_what_it_says_of_itself(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q", "topic:news")
    far_ms = time.time_ns() // 1_000_000 + 3_600_000
    foreign = c.NewMessage(7, b"body", 9, True, far_ms, None, Identity("p", 1, 5), 77)
    near.send_messages(queue("q"), foreign, c.NewMessage(7, b"plain"))
    near.send_messages(queue("q"), c.NewMessage(7, b"a"), c.NewMessage(7, b"b"))
    pump(near, "g", far)
    got = drained(far.broker, far.client, "q")
    assert [(each.format, each.payload) for each in got] == [(7, b"body"), (7, b"plain"), (7, b"a"), (7, b"b")]
    far.send_messages(queue("q"), foreign)
    assert far.broker.call(c.Statistics(), WAIT).duplicates_rejected == 1


def test_a_message_that_cannot_be_read_is_refused_and_does_not_hold_up_the_others(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    near.send_messages(queue("q"), text_message("1"), c.NewMessage(ENVELOPE_FORMAT, b"none"), text_message("2"))
    pump(near, "g", far)
    assert far.bodies("q") == ["1", "2"]
    assert near.gateways("g")["refused"] == 1


def test_a_message_that_is_larger_than_a_batch_may_be_goes_alone_and_one_that_is_too_large_is_refused() -> None:
    near, far = Site(1), Site(2, max_gateway_batch_bytes=1 << 20, max_message_bytes=2 << 20)
    near.gateway("g", "queue:q")
    near.send("q", "first", "x" * (3 << 19), "y" * (3 << 20), "last")
    pump(near, "g", far)
    assert [len(body) for body in far.bodies("q")] == [5, 3 << 19, 4]
    assert near.gateways("g")["refused"] == 1
    near.send("q", *["x" * 600_000] * 2)
    with pytest.raises(MessageFormatException, match="max_gateway_batch_bytes"):
        apply(near, far, read(near, "g", max_bytes=2_000_000))
    near.broker.close()
    far.broker.close()


@pytest.mark.parametrize("messages", [1, 3])
def test_nothing_is_queued_while_it_is_stopped(sites: tuple[Site, Site], messages: int) -> None:
    near, far = sites
    near.gateway("g", "queue:q", "topic:news", "region:quotes", state="created")
    expected = []
    for state in ("created", "running", "paused", "stopped", "running"):
        if state != "created":
            assert near.ask("change_gateway", name="g", state=state)["state"] == state
        bodies = [f"{state} {number}" for number in range(messages)]
        near.send("q", *bodies)
        near.send(topic("news"), *bodies)
        near.change("quotes", *((body, body) for body in bodies))
        expected += bodies if state != "stopped" else []
    found = near.gateways("g")
    assert (found["received"], found["not_queued"]) == (15 * messages, 3 * messages)
    pump(near, "g", far)
    assert far.bodies("q") == expected
    assert near.broker.check() == []


def test_a_clean_start_begins_with_an_empty_queue(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    near.send("q", "old", "older")
    found = near.ask("change_gateway", name="g", state="running", clean=True)
    assert (found["waiting"], found["dropped"], found["state"]) == (0, 2, "running")
    near.send("q", "new")
    pump(near, "g", far)
    assert far.bodies("q") == ["new"]
    assert near.bodies("q") == ["old", "older", "new"]
    assert near.gateways("g")["distributed"] == 1


def test_a_clean_start_is_refused_while_a_batch_is_under_way_which_might_be_one_that_it_drops(
    sites: tuple[Site, Site],
) -> None:
    near, _ = sites
    near.gateway("g", "queue:q")
    near.send("q", "old")
    with near.broker.reading() as reader:
        reader.note_sender("g", sends=True, is_under_way=False, trouble="")
    with pytest.raises(IllegalStateException, match="under way; it is stopped now: repeat this shortly"):
        near.ask("change_gateway", name="g", state="running", clean=True)
    found = near.gateways("g")
    assert (found["state"], found["waiting"]) == ("stopped", 1)
    with near.broker.reading() as reader:
        reader.note_sender("g", sends=True, is_under_way=False, trouble="")  # too late: it may send nothing
    assert near.ask("change_gateway", name="g", state="running", clean=True)["dropped"] == 1


def test_a_gateway_that_was_destroyed_leaves_nothing_and_one_of_its_name_is_another(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q", "region:quotes")
    near.send("q", "1", "2", "3")
    found = read(near, "g", max_messages=2)
    end(near, "g", found, apply(near, far, found))
    assert near.ask("destroy_gateway", name="g") == 1
    with pytest.raises(InvalidDestinationException, match="no gateway 'g'"):
        near.ask("gateways", name="g")
    assert near.ask("gateways") == []
    near.send("q", "4")
    near.gateway("g", "queue:q")
    near.send("q", "5")
    pump(near, "g", far)
    assert far.bodies("q") == ["1", "2", "5"]
    assert near.bodies("q") == [*"12345"]


def test_volatile_messages_that_wait_are_lost_with_a_restart_and_counted(tmp_path: Path) -> None:
    near, far = Site(1, tmp_path), Site(2)
    near.gateway("g", "queue:q")
    near.send("q", *"12", persistent=False)
    near.send("q", "3")
    near.send("q", "4", persistent=False)
    near.restart()
    found = near.gateways("g")
    assert (found["queued"], found["lost"], found["waiting"]) == (4, 3, 1)
    pump(near, "g", far)
    assert far.bodies("q") == ["3"]
    near.send("q", "5", persistent=False)
    pump(near, "g", far)
    assert far.bodies("q") == ["5"]
    near.broker.close()
    far.broker.close()


@pytest.mark.damages
def test_a_damaged_message_does_not_hold_up_the_others(tmp_path: Path) -> None:
    near, far = Site(1, tmp_path), Site(2)
    near.gateway("g", "queue:q")
    near.send("q", *"123")
    damage_body(near.broker, b"2")
    pump(near, "g", far)
    assert far.bodies("q") == ["1", "3"]
    found = near.gateways("g")
    assert (found["distributed"], found["lost"], found["waiting"]) == (2, 1, 0)
    near.broker.close()
    far.broker.close()


def test_it_is_known_for_how_long_the_oldest_message_waits_also_after_a_restart(tmp_path: Path) -> None:
    near, far = Site(1, tmp_path), Site(2)
    with closing(far.broker):
        near.gateway("g", "queue:q")

        def oldest() -> tuple[Any, Any]:
            (found,) = [each for each in near.ask("statistics")["queues"] if each["kind"] == "gateway"]
            return near.gateways("g")["oldest_age_ms"], found["oldest_age_ms"]

        def check(before: float, behind: float) -> None:
            """The message was sent between two instants."""
            asked = time.time()
            found = oldest()
            least, most = 1000 * (asked - behind) - 1, 1000 * (time.time() - before) + 1
            assert all(least <= age_ms <= most for age_ms in found), (least, found, most)

        assert oldest() == (None, None)
        sent = time.time()
        near.send("q", "1", sent_at_ms=1)  # by a clock that is wrong
        behind = time.time()
        near.kill()
        near.send("q", "2", persistent=False)
        check(sent, behind)
        near.restart()
        check(sent, behind)
        pump(near, "g", far)
        assert oldest() == (None, None)
        sent = time.time()
        near.send("q", "3", persistent=False)
        check(sent, time.time())
    near.broker.close()


def test_a_site_takes_nothing_of_itself_or_without_a_number(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    near.send("q", "1")
    with pytest.raises(IllegalStateException, match="site 1 sends to itself"):
        apply(near, near, read(near, "g"))
    nobody = Site(0)
    with closing(nobody.broker), pytest.raises(IllegalStateException, match="has no site"):
        apply(near, nobody, read(near, "g"))
    assert (nobody.number, far.ask("site")) == (0, 2)


def test_a_receiver_that_has_lost_what_it_confirmed_takes_nothing_until_it_is_told_to(
    sites: tuple[Site, Site],
) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    near.send("q", "1")
    pump(near, "g", far)
    near.send("q", "2")
    other = Site(2)
    with closing(other.broker):
        with pytest.raises(IllegalStateException, match=r"was told position \d+, and 0 is known at the other site"):
            pump(near, "g", other)
        near.ask("change_gateway", name="g", forget=True)
        pump(near, "g", other)
        assert other.bodies("q") == ["2"]


def test_a_sender_that_is_restored_from_an_older_copy_neither_doubles_nor_loses_what_it_sends_then(
    tmp_path: Path,
) -> None:
    near, far = Site(1, tmp_path / "near"), Site(2)
    near.gateway("g", "queue:q")
    near.send("q", "1", "2")
    near.broker.close()
    shutil.copytree(tmp_path / "near", tmp_path / "copy")
    near.start()
    near.send("q", "3", "4", "5")
    pump(near, "g", far)
    near.broker.close()
    restored = Site(1, tmp_path / "copy")
    restored.send("q", "6")
    pump(restored, "g", far)
    assert far.bodies("q") == [*"123456"]
    restored.broker.close()
    far.broker.close()


def test_where_there_is_no_room_nothing_of_a_batch_is_taken(tmp_path: Path) -> None:
    near, far = Site(1), Site(2, max_queue_messages=3)
    near.gateway("g", "queue:other", "queue:q")
    near.send("other", "0")
    near.send("q", *"12345")
    with pytest.raises(ResourceAllocationException):
        pump(near, "g", far)
    assert far.bodies("other") == far.bodies("q") == []
    assert near.gateways("g")["waiting"] == 6
    found = read(near, "g", max_messages=4)
    end(near, "g", found, apply(near, far, found))
    assert (far.bodies("other"), far.bodies("q")) == (["0"], ["1", "2", "3"])
    near.broker.close()
    far.broker.close()


def test_a_batch_is_one_commit_at_the_other_site(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q", "topic:news", "region:quotes")
    for number in range(5):
        near.send("q", str(number))
        near.change("quotes", ("a", str(number)), ("b", None))
    commits = far.broker._state.totals.commits
    found = read(near, "g")
    answer = apply(near, far, found)
    assert (answer["applied"], far.broker._state.totals.commits - commits) == (found["through"], far.broker.is_durable)


def test_a_consumer_gets_what_a_gateway_brings(sites: tuple[Site, Site]) -> None:
    near, far = sites
    _, inbox = attach(far.broker, far.client, "q", 10)
    near.gateway("g", "queue:q")
    near.send("q", "1", "2")
    pump(near, "g", far)
    assert len(inbox.wait_for(2)) == 2


@pytest.mark.parametrize("count", [3, 1500])
def test_what_spark_publishes_to_a_queue_is_carried(sites: tuple[Site, Site], count: int) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    near.gateway("stopped", "queue:q")
    near.ask("change_gateway", name="stopped", state="stopped")
    bodies = [f"{number}" for number in range(count)]
    payloads = [text_message(body).payload for body in bodies]
    assert near.ask("stage", transaction="group/1/0", queue="q", first=0, messages=payloads)
    assert near.ask("publish", group="group", number=1, transactions=["group/1/0"])
    assert (near.gateways("g")["received"], near.gateways("stopped")["not_queued"]) == (count, count)
    pump(near, "g", far, max_messages=1000)
    assert in_queue(far) == in_queue(near) == bodies
    near.ask("purge", destination="q")
    assert near.broker.check() == []


def test_a_listener_is_told_which_gateways_have_something_to_do(sites: tuple[Site, Site]) -> None:
    near, far = sites
    told: list[Any] = []
    remove = near.broker.on_gateways(told.append)

    def names() -> list[str]:
        found = [name for names in told for name in names]
        told.clear()
        return found

    near.send("q", "before")
    assert names() == []
    for name in "ab":
        near.gateway(name, f"queue:{name}", "queue:both")
        assert names() == [name]
    near.send("a", "1")
    assert names() == ["a"]
    near.send("b", *"123")
    assert names() == ["b"]
    near.send("both", "1")
    assert names() == ["a", "b"]
    near.send("other", "1")
    pump(near, "b", far)
    assert names() == []
    near.ask("change_gateway", name="b", state="stopped")
    assert names() == ["b"]
    near.send("both", "1")
    assert names() == ["a"]
    near.ask("destroy_gateway", name="b")
    assert names() == ["b"]
    remove()
    near.gateway("b", "queue:b")
    assert names() == []


def test_what_no_gateway_can_be_is_refused(sites: tuple[Site, Site]) -> None:
    near, _ = sites
    for destinations in ([], ["q"], ["queue:"], ["place:q"], ["queue:q", "queue:q"]):
        with pytest.raises(MessageFormatException, match="destination"):
            near.gateway("g", *destinations)
    with pytest.raises(InvalidDestinationException, match="temporary"):
        near.gateway("g", "queue:temporary-queue/1")
    with pytest.raises(MessageFormatException, match="embedded"):
        near.ask("create_gateway", name="g", url="embedded:x", destinations=["queue:q"])
    with pytest.raises(InvalidURLException):
        near.ask("create_gateway", name="g", url="http://x", destinations=["queue:q"])
    for name in ("", "x" * 390):
        with pytest.raises(InvalidDestinationException, match="gateway"):
            near.gateway(name, "queue:q")
    near.gateway("g", "queue:q")
    with pytest.raises(IllegalStateException, match="there is a gateway 'g' already"):
        near.gateway("g", "queue:q")
    for state in ("created", "gone", ""):
        with pytest.raises(MessageFormatException, match="cannot be made"):
            near.ask("change_gateway", name="g", state=state)
    with pytest.raises(MessageFormatException, match="needs the state"):
        near.ask("change_gateway", name="g", state="paused", clean=True)


def test_there_are_no_more_gateways_than_the_limit(sites: tuple[Site, Site]) -> None:
    for number in range(MAX_GATEWAYS):
        sites[0].gateway(str(number), "queue:q")
    with pytest.raises(ResourceAllocationException, match=f"no more than {MAX_GATEWAYS} gateways"):
        sites[0].gateway("one more", "queue:q")
    sites[0].ask("destroy_gateway", name="7")
    sites[0].gateway("one more", "queue:q")


def test_the_password_of_a_url_is_for_the_sender_alone(sites: tuple[Site, Site]) -> None:
    near, _ = sites
    near.gateway("g", "queue:q")
    assert "secret" not in str(near.ask("gateways"))
    assert "secret" not in str(near.ask("change_gateway", name="g", batch_ms=5))
    assert "secret" not in str(read(near, "g"))
    with near.broker.reading() as reader:
        assert reader.gateway("g").url == "amqp://me:secret@far:5672"
        assert reader.gateway_names() == ["g"]


@pytest.mark.parametrize(
    "kind",
    [b"", b"\xc1", b"\x80", b"\x81\xa2to\xa7queue:q", b"\x93\x01\x02\x03", b"\xa1x", b"H" * 100],
)
def test_what_is_no_message_of_a_gateway_is_refused_as_a_whole(sites: tuple[Site, Site], kind: bytes) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    near.send("q", "1")
    found = read(near, "g")
    (good,) = found["entries"]
    batch = {"site": 1, "sender": "g", "after": 0, **columns_of([good, (good[0] + 1, *good[1:])])}
    for wrong in ({"kinds": [*batch["kinds"], kind]}, {"kind_of": [0, 1]}, {"previous": [0, good[2]]}):
        with pytest.raises(MessageFormatException, match="is none"):
            far.ask("apply_batch", **{**batch, **wrong})
    with pytest.raises(MessageFormatException, match="do not grow"):
        far.ask("apply_batch", **{**batch, "positions": [2, 2]})
    for column in ("positions", "kind_of", "numbers", "previous", "messages"):
        with pytest.raises(MessageFormatException, match="of each message"):
            far.ask("apply_batch", **{**batch, column: batch[column][:1]})
    assert far.bodies("q") == []


WRONG = (None, True, -1, 0, 1 << 32, 1.5, float("inf"), "", "x", b"", [], {}, [1, 2], ["a"], (1 << 64) - 1)


def test_whatever_another_site_sends_the_engine_goes_on_and_what_it_stores_is_sound(tmp_path: Path) -> None:
    near, far = Site(1), Site(2, tmp_path)
    for site in (near, far):
        site.ask("create_region", region="quotes")
    near.gateway("g", "queue:q", "region:quotes")
    near.send_messages(queue("q"), c.NewMessage(7, b"x", 9, True, 1 << 41, None, Identity("p", 1, 1), 5))
    near.change("quotes", ("k", "v"), ("k", None))
    position = 0
    for _, packed, *rest in read(near, "g")["entries"]:
        good = msgpack.unpackb(packed)
        wrong = [{**good, name: value} for name in good for value in WRONG]
        for name in [name for name, value in good.items() if type(value) is list]:
            places = range(len(good[name]))
            wrong += [
                {**good, name: [*good[name][:at], each, *good[name][at + 1 :]]} for at in places for each in WRONG
            ]
        wrong += [{key: value for key, value in good.items() if key != name} for name in good]
        for each in wrong:
            position += 1
            columns = columns_of([(position, msgpack.packb(each), *rest)])
            with suppress(MessageFormatException, InvalidDestinationException):
                far.ask("apply_batch", site=1, sender="g", after=0, **columns)
    far.send("q", "after it")
    assert far.broker.failed is None
    assert [each.text for each in far.broker.check() if not each.harmless] == []
    near.broker.close()
    far.broker.close()


def test_what_is_known_of_gateways_outlives_a_restart(tmp_path: Path) -> None:
    near = Site(1, tmp_path)
    for state in STATES:
        near.gateway(f"g {state}", "queue:q", "region:r", selector="a = 1", batch_messages=7, batch_bytes=9, batch_ms=3)
        if state != "created":
            near.ask("change_gateway", name=f"g {state}", state=state, alert_ms=5)
    near.send("q", "1")
    near.send("q", "2", "3")
    before = near.ask("gateways")
    near.restart()
    after = near.ask("gateways")
    ages = [(each.pop("oldest_age_ms"), then.pop("oldest_age_ms")) for each, then in zip(after, before, strict=True)]
    assert after == before
    assert ages[-1] == (None, None)
    assert all(age_ms >= then_ms for age_ms, then_ms in ages[:-1])
    assert [each["waiting"] for each in before] == [3, 3, 3, 0]
    near.send("q", "4")
    assert [near.gateways(f"g {state}")["received"] for state in STATES] == [4, 4, 4, 4]
    near.broker.close()


def test_what_is_not_persistent_and_waits_leaves_half_of_the_memory_to_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    near = Site(1, tmp_path, max_volatile_bytes=1 << 20)
    near.gateway("g", "queue:q")
    for number in range(2000):
        near.send("q", f"{number:01000}", persistent=False)
        assert near.ask("purge", destination="q") == 1
    found = near.gateways("g")
    assert found["received"] == 2000
    assert 300 < found["waiting"] < 600
    assert found["lost"] == 2000 - found["waiting"]
    assert caplog.text.count("gateway 'g' does not take non-persistent messages") == 1
    near.send("q", "persistent")
    assert near.gateways("g")["waiting"] == found["waiting"] + 1
    near.broker.close()


def test_a_message_that_a_producer_could_send_there_is_taken_however_small_transactions_are() -> None:
    near, far = Site(1), Site(2, max_transaction_bytes=100_000, max_transaction_messages=1)
    near.gateway("g", "queue:q")
    near.send("q", "x" * 200_000, "small")
    pump(near, "g", far)
    assert [len(body) for body in far.bodies("q")] == [200_000, 5]
    near.broker.close()
    far.broker.close()


def test_the_name_of_a_sender_is_bounded() -> None:
    far = Site(2)
    with pytest.raises(MessageFormatException, match="more than 500 characters"):
        far.ask("apply_batch", site=1, sender="x" * 501, after=0, **columns_of([]))
    far.broker.close()


def test_a_gateway_that_sends_to_another_site_from_now_on_expects_nothing_of_it() -> None:
    near, far, other = Site(1), Site(2), Site(3)
    near.gateway("g", "queue:q")
    near.send("q", "1")
    pump(near, "g", far)
    near.send("q", "2")
    near.ask("change_gateway", name="g", url="amqp://other:5672")
    pump(near, "g", other)
    near.send("q", "3")
    near.ask("change_gateway", name="g", url=URL)
    pump(near, "g", far)
    assert (far.bodies("q"), other.bodies("q")) == (["1", "3"], ["2"])
    for site in (near, far, other):
        site.broker.close()


@pytest.fixture
def three_sites(tmp_path: Path) -> Iterator[tuple[Site, Site, Site]]:
    """Site 1 has a way to site 3, and another one that leads over site 2."""
    first, over, last = (Site(number, tmp_path / str(number)) for number in (1, 2, 3))
    with closing(first.broker), closing(over.broker), closing(last.broker):
        first.gateway("direct", "queue:q")
        first.gateway("over", "queue:q")
        over.gateway("g", "queue:q")
        yield first, over, last


def test_what_comes_by_a_second_way_is_left_out_however_late_it_is(three_sites: tuple[Site, Site, Site]) -> None:
    first, over, last = three_sites
    last.gateway("back", "queue:q")
    bodies = [f"{number}" for number in range(500)]
    for number in range(0, 500, 20):
        first.send("q", *bodies[number : number + 20])
        first.send("other", "between")
    pump(first, "direct", last, max_messages=7)
    pump(first, "over", over)
    found = read(over, "g", remote_site=3, max_messages=1000)
    answer = apply(over, last, found)
    assert answer["repeated"] == 500
    end(over, "g", found, answer)
    assert in_queue(last) == bodies
    assert last.gateways("back")["received"] == 500
    assert last.broker.call(c.Statistics(), WAIT).duplicates_rejected == 500


def test_what_spark_publishes_comes_once_by_two_ways_though_later_messages_were_sent_before(
    three_sites: tuple[Site, Site, Site],
) -> None:
    first, over, last = three_sites
    first.send("q", "1")
    payloads = [text_message(body).payload for body in ("a", "b")]
    assert first.ask("stage", transaction="group/1/0", queue="q", first=0, messages=payloads)
    first.send("q", "2")
    pump(first, "direct", last)
    assert first.ask("publish", group="group", number=1, transactions=["group/1/0"])
    first.send("q", "3")
    for sender, name, receiver in ((first, "direct", last), (first, "over", over), (over, "g", last)):
        pump(sender, name, receiver)
    assert in_queue(over) == in_queue(last) == ["1", "2", "a", "b", "3"]


def test_a_way_with_a_selector_hides_nothing_that_another_way_brings(three_sites: tuple[Site, Site, Site]) -> None:
    first, over, last = three_sites
    first.ask("change_gateway", name="direct", selector="JMSCorrelationID = 'much'")
    for number in range(10):
        first.send("q", f"{number}", correlation_id="much" if number % 3 else "little")
    pump(first, "direct", last)
    assert in_queue(last) == [*"124578"]
    pump(first, "over", over)
    pump(over, "g", last)
    assert in_queue(last) == [*"1245780369"]


def test_a_message_of_which_is_not_said_where_it_was_sent_is_new_by_each_way(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    near.send("q", "1")
    ((position, packed, *rest),) = read(near, "g")["entries"]
    kind = msgpack.packb({**msgpack.unpackb(packed), "origin": 0})
    for sender in ("one", "other"):
        far.ask("apply_batch", site=1, sender=sender, after=0, **columns_of([(position, kind, *rest)]))
    assert far.bodies("q") == ["1", "1"]


def test_a_refused_message_has_no_failed_delivery(sites: tuple[Site, Site]) -> None:
    near, _ = sites
    near.gateway("g", "queue:q")
    near.send("q", "1", "2", "3")
    found = read(near, "g")
    answer = {"through": found["through"], "refused": [(found["through"], "no room")], "applied": 0}
    end(near, "g", found, answer)
    ((_, deliveries, _, _, _),) = near.ask("read_range", destination="$gateway/g/refused", first=1, last=9)["messages"]
    assert deliveries == 0


def test_what_was_sent_to_another_url_before_ends_nothing() -> None:
    near, far = Site(1), Site(2)
    near.gateway("g", "queue:q")
    near.send("q", "1")
    found = read(near, "g")
    answer = apply(near, far, found)
    near.ask("change_gateway", name="g", url="amqp://other:5672")
    ended = {"through": found["through"], "applied": answer["applied"], "sender": found["sender"]}
    with pytest.raises(InvalidDestinationException, match="sends to another URL by now"):
        near.ask("end_gateway_batch", name="g", url=URL, **ended)
    assert (near.gateways("g")["waiting"], near.gateways("g")["applied"]) == (1, 0)
    near.broker.close()
    far.broker.close()
