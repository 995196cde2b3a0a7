"""The rules of gateways, without stores."""

from __future__ import annotations

import pytest

from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine.commands import gateways as g
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.queues.gateway_queue import GatewayQueue, came_at_ms
from broker_adapter.engine.records.gateway_records import (
    GatewayRecord,
    decode_gateway,
    decode_progress,
    gateway_key,
    progress_key,
)
from broker_adapter.engine.records.layout import FLAG_SHARED
from broker_adapter.engine.regions.event_records import LANE
from broker_adapter.engine.regions.key_records import KeyState, Wanted, decode_key_record, region_key
from broker_adapter.engine.regions.stamps import Stamp
from broker_adapter.envelope import Identity
from broker_adapter.errors import (
    InvalidDestinationException,
    ResourceAllocationException,
    TransactionRolledBackException,
)
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.decisions import Rules
from tests.broker_adapter.engine.sites import text_message

Q = queue("q")


def gateway(rules: Rules, name: str, *destinations: str) -> GatewayQueue:
    rules.do(g.CreateGateway(name, GatewayRecord("amqp://far", list(destinations), state="running")))
    return rules.state.directory.gateways[name]


def entries(rules: Rules, gateway: GatewayQueue) -> list[tuple[int, int, bool]]:
    """(lane, number of the destination, whether the message is shared) of each entry of the last decision, in order."""
    batch = rules.effects.durable.entries
    return [
        (key[4], entry.group, bool(entry.flags & FLAG_SHARED))
        for key, entry in sorted(batch.items())
        if entry is not None and int.from_bytes(key[:4]) == gateway.id
    ]


@pytest.mark.parametrize("bodies", [(b"1",), (b"1", b"2", b"3")])
@pytest.mark.parametrize("priority", [0, 4, 9])
def test_all_are_in_one_lane_with_the_number_of_their_destination(bodies: tuple[bytes, ...], priority: int) -> None:
    rules = Rules()
    found = gateway(rules, "g", "queue:other", "topic:news", "queue:q")
    client = rules.connect()
    for to, number, is_shared in ((Q, 3, True), (topic("news"), 2, False), (queue("other"), 1, True)):
        messages = [text_message(str(body), to, priority=priority) for body in bodies]
        rules.do(c.Enqueue(client, to, messages))
        assert entries(rules, found) == [(LANE, number, is_shared)] * len(bodies)
    rules.do(c.Enqueue(client, queue("not carried"), [text_message("x")]))
    assert entries(rules, found) == []
    assert found.depth == 3 * len(bodies)


def test_what_is_delayed_or_expires_has_no_line_of_the_schedule_here() -> None:
    rules = Rules()
    found = gateway(rules, "g", "topic:news")
    late = text_message("x", topic("news"), deliver_at_ms=rules.now_ms + 5_000, expires_at_ms=rules.now_ms + 9_000)
    rules.do(c.Enqueue(rules.connect(), topic("news"), [late]))
    assert entries(rules, found) == [(LANE, 1, False)]
    assert "schedule" not in rules.effects.durable.tables


def test_nothing_is_kept_in_memory_of_what_waits() -> None:
    rules = Rules()
    found = gateway(rules, "g", "queue:q")
    client = rules.connect()
    for count in (1, 1, 50):
        rules.do(c.Enqueue(client, Q, [text_message("x")] * count))
    assert (found.depth, len(found.ready)) == (52, 0)


def test_two_gateways_share_a_message_with_its_queue() -> None:
    rules = Rules()
    gateways = [gateway(rules, name, "queue:q") for name in ("a", "b")]
    for count in (1, 3):
        rules.do(c.Enqueue(rules.connect(), Q, [text_message("x")] * count))
        assert [copies for _, copies in rules.effects.durable.references] == [3] * count
        assert len(rules.effects.durable.messages) == count
        assert [len(entries(rules, each)) for each in gateways] == [count] * 2


def test_the_counters_are_stored_with_the_commit_that_changes_them() -> None:
    rules = Rules()
    gateway(rules, "g", "queue:q")
    client = rules.connect()
    key = progress_key("g")
    for received in (1, 2):
        rules.do(c.Enqueue(client, Q, [text_message("x")]))
        ((name, value),) = rules.effects.durable.tables["gateways"].items()  # and not the rest, which is as it was
        assert (name, decode_progress(key, value or b"")[1].received) == (key, received)
    rules.do(g.ChangeGateway("g", {"selector": "a = 1"}))
    stored = rules.effects.durable.tables["gateways"]
    assert decode_gateway(gateway_key("g"), stored[gateway_key("g")] or b"").selector == "a = 1"
    assert decode_progress(key, stored[key] or b"")[1].received == 2
    rules.do(c.Enqueue(client, queue("other"), [text_message("x")]))
    assert "gateways" not in rules.effects.durable.tables


def test_a_message_that_is_rejected_as_known_is_not_received() -> None:
    rules = Rules()
    found = gateway(rules, "g", "queue:q")
    again = text_message("x")._replace(identity=Identity("p", 1, 1))
    for _ in range(2):
        rules.do(c.Enqueue(rules.connect(), Q, [again]))
    assert found.noted().counters.received == 1


def test_a_commit_that_is_rolled_back_is_not_received() -> None:
    rules = Rules(max_queue_messages=1)
    found = gateway(rules, "g", "queue:q")
    with pytest.raises(TransactionRolledBackException, match="nothing was committed"):
        rules.do(c.Commit(rules.connect(), None, [(Q, text_message("x"))] * 3, []))
    assert found.noted().counters.received == 0


def test_gateways_count_among_the_destinations() -> None:
    rules = Rules(max_destinations=2)
    gateway(rules, "a", "queue:q")
    gateway(rules, "b", "queue:q")
    with pytest.raises(ResourceAllocationException, match="max_destinations"):
        gateway(rules, "c", "queue:q")
    rules.do(g.DestroyGateway("a"))
    with pytest.raises(InvalidDestinationException, match="no gateway 'a'"):
        rules.do(g.DestroyGateway("a"))


def arriving(stamp: Stamp, wanted: Wanted = Wanted.PUT, sites: tuple[int, ...] = (1,)) -> e.ChangeKeys:
    change = e.KeyChange("k", wanted, text_message(str(stamp)), stamp=stamp, sites=sites)
    return e.ChangeKeys("quotes", [change])


def test_of_two_changes_the_one_with_the_greater_stamp_and_site_holds() -> None:
    rules = Rules(site=2)
    rules.do(e.MakeRegion("quotes"))
    region = rules.state.events.regions["quotes"].id
    key = region_key(region, "k")

    def stored() -> tuple[Stamp, KeyState] | None:
        value = rules.effects.durable.tables.get("keys", {}).get(key)
        record = None if value is None else decode_key_record(key, value)
        return None if record is None else (record.stamp, record.state)

    taken: list[Stamp | None] = []
    record = None
    for stamp, wanted in (
        (Stamp(50, 1), Wanted.PUT),
        (Stamp(50, 1), Wanted.PUT),
        (Stamp(49, 200), Wanted.PUT),
        (Stamp(50, 3), Wanted.PUT),
        (Stamp(50, 2), Wanted.DESTROY),
        (Stamp(60, 1), Wanted.DESTROY),
        (Stamp(59, 3), Wanted.PUT),
        (Stamp(61, 1), Wanted.DESTROY),
        (Stamp(61, 3), Wanted.PUT),
    ):
        (change,) = arriving(stamp, wanted).changes
        rules.do(e.ChangeKeys("quotes", [change._replace(before=record)]))
        found = stored()
        taken.append(None if found is None else found[0])
        if found is not None:
            record = decode_key_record(key, rules.effects.durable.tables["keys"][key] or b"")
    assert taken == [Stamp(50, 1), None, None, Stamp(50, 3), None, Stamp(60, 1), None, Stamp(61, 1), Stamp(61, 3)]


def test_what_is_changed_here_is_newer_than_anything_that_was_seen() -> None:
    rules = Rules(site=2)
    rules.do(e.MakeRegion("quotes"))
    ahead = (rules.now_ms + 3_600_000) << 16
    rules.do(arriving(Stamp(ahead, 1)))
    rules.do(e.ChangeKeys("quotes", [e.KeyChange("other", Wanted.PUT, text_message("here"))]))
    assert rules.state.events.last_stamp == ahead + 1


@pytest.mark.parametrize(("site", "seconds"), [(0, 7), (2, 100)])
def test_a_site_remembers_a_destroyed_key_for_longer(site: int, seconds: int) -> None:
    rules = Rules(site=site, tombstone_seconds=7, site_tombstone_seconds=100)
    rules.do(e.MakeRegion("quotes"))
    change = e.KeyChange("k", Wanted.PUT, text_message("here"))
    rules.do(e.ChangeKeys("quotes", [change, change._replace(wanted=Wanted.DESTROY)]))
    assert rules.state.events.next_tombstone_ms == rules.state.time.age_ms + seconds * 1000


def test_a_change_that_is_older_than_tombstones_get_is_a_warning_where_the_key_is_not_known() -> None:
    rules = Rules(site=2, site_tombstone_seconds=100)
    rules.do(e.MakeRegion("quotes"))
    warnings = []
    for age_ms in (99_000, 101_000):
        rules.do(arriving(Stamp((rules.now_ms - age_ms) << 16, 1)))
        warnings += [each.text % each.arguments for each in rules.effects.warnings]
    assert len(warnings) == 1
    assert "'quotes' takes changes of another site that are older than site_tombstone_seconds" in warnings[0]


def batch(known: int, position: int, *to: Destination) -> c.Commit:
    sends = [(each, text_message("x", each)) for each in to]
    return c.Commit(0, None, sends, [], batch=c.SiteBatch("$gateway/1/g", known, position, [(1,)] * len(to)))


def test_a_batch_is_done_once_and_says_what_is_known_where_it_is_not() -> None:
    rules = Rules(site=2)
    assert rules.do(batch(0, 5, Q, Q)) == c.Applied(5)
    assert rules.do(batch(0, 5, Q, Q)) == c.Applied(5)
    assert rules.do(batch(0, 9, Q)) == c.Applied(5), "another one was faster"
    assert rules.do(batch(5, 9, Q)) == c.Applied(9)
    assert rules.state.directory.by_destination[Q].depth == 3


def test_a_batch_for_which_there_is_no_room_changes_nothing_and_says_why() -> None:
    rules = Rules(site=2, max_queue_messages=2)
    with pytest.raises(ResourceAllocationException):
        rules.do(batch(0, 5, Q, queue("other"), Q, Q))
    assert Q not in rules.state.directory.by_destination
    assert rules.do(batch(0, 3, Q, queue("other"), Q)) == c.Applied(3)


def test_a_batch_waits_for_selectors_that_take_their_time_and_is_done_once() -> None:
    rules = Rules(site=2)
    client = rules.connect("me")
    subscription = Subscription("s", durable=True, shared=False)
    rules.attach(client, topic("news"), subscription=subscription, selector="a IS NULL")
    matching = rules.state.matching
    in_time, matching.new_slice = matching.new_slice, lambda: lambda: True
    done: list[object] = []

    def decide(*commands: c.Commit) -> None:
        for reply, result in rules.state.decide(commands, rules.now_ms).replies:
            reply(result)

    command = batch(0, 5, topic("news"))._replace(client=client, reply=done.append)
    decide(command)
    assert done == []
    matching.new_slice = in_time
    decide(command)  # its sender did not wait for the answer
    decide()
    assert done == [c.Applied(5), c.Applied(5)]
    (queue_of,) = rules.state.directory.topics[topic("news")]
    assert queue_of.depth == 1


def test_a_position_says_when_its_message_came_and_none_is_given_again_where_the_clock_is_set_back() -> None:
    rules = Rules(site=1)
    found = gateway(rules, "g", "queue:q")
    client, positions = rules.connect(), []

    def send(*bodies: str) -> None:
        rules.do(c.Enqueue(client, Q, [text_message(each) for each in bodies]))
        keys = [key for key in rules.effects.durable.entries if int.from_bytes(key[:4]) == found.id]
        positions.extend(sorted(int.from_bytes(key[5:]) for key in keys))

    send("1")
    rules.pass_time(60_000)
    send("2", "3")
    rules.pass_time(-30_000)
    send("4")
    assert [came_at_ms(each) - rules.now_ms for each in positions] == [-30_000, 30_000, 30_000, 30_000]
    assert positions == sorted(set(positions))
    assert positions[1:] == [*range(positions[1], positions[1] + 3)], "what comes at once follows each other"
