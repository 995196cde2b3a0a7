"""The engine's rules by themselves: commands in, effects out; no store, no clock, no thread."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import Destination, DestinationKind, queue, topic
from broker_adapter.engine import commands as c
from broker_adapter.engine.broker_state import BrokerState
from broker_adapter.engine.effects import Effects
from broker_adapter.engine.records import (
    FIRST_STAGED_QUEUE,
    FIRST_VOLATILE_QUEUE,
    KIND_DELIVER,
    NEXT_QUEUE,
    RawEntry,
    decode_annotations,
    decode_catalog,
    decode_meta,
    stream_key,
    unpack_entry_key,
)
from broker_adapter.envelope import Identity
from broker_adapter.errors import (
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    ResourceAllocationException,
    TransactionRolledBackException,
)
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription

DURABLE = Subscription("s", durable=True, shared=False)
SHARED = Subscription("s", durable=False, shared=True)
SHARED_DURABLE = Subscription("s", durable=True, shared=True)


class Rules:
    """A state whose time is set by hand.  Each call is one ``decide``."""

    def __init__(self, *, durable: bool = True, **settings: Any) -> None:
        self.state = BrokerState(EngineSettings(**settings), durable=durable, secret=b"s")
        self.now_ms = 1_000_000
        self.effects = Effects()
        self.delivered: dict[int, list[tuple[int, int]]] = {}  #: consumer → (number, delivery count)
        self.placed: dict[int, list[tuple[int, int]]] = {}  #: consumer → (position, number)

    def do(self, *commands: Any) -> Any:
        """Decide; the reply to the last command, or raise it."""
        replies: list[Any] = []
        commands = (*commands[:-1], commands[-1]._replace(reply=replies.append))
        self._decide(*commands)
        for reply, result in self.effects.replies:
            reply(result)
        if not replies:
            return "held"
        if isinstance(replies[0], JMSException):
            raise replies[0]
        return replies[0]

    def pass_time(self, ms: int) -> Effects:
        self.now_ms += ms
        self._decide()
        return self.effects

    def _decide(self, *commands: Any) -> None:
        self.effects = self.state.decide(commands, self.now_ms)
        for consumer, messages in self.effects.deliveries:
            self.delivered.setdefault(consumer.id, []).extend((each.number, each.delivery_count) for each in messages)
            self.placed.setdefault(consumer.id, []).extend((each.position, each.number) for each in messages)

    def connect(self, client_id: str | None = None) -> int:
        number: int = self.do(c.Connect(client_id))
        return number

    def send(self, client: int, to: Destination, *bodies: bytes, **fields: Any) -> Any:
        return self.do(c.Enqueue(client, to, [c.NewMessage(0, body, **fields) for body in bodies]))

    def attach(self, client: int, to: Destination, credit: int = 0, **fields: Any) -> int:
        number: int = self.do(c.Attach(client, to, print, **fields))
        if credit:
            self.do(c.Credit(number, credit))
        return number

    def depth(self, name: str) -> int:
        return sum(each.messages for each in self.do(c.Statistics()).queues if each.name == name)


Q = queue("q")


def test_a_client_id_is_for_one_at_a_time() -> None:
    rules = Rules()
    first = rules.connect("me")
    with pytest.raises(InvalidClientIDException, match="'me' is in use"):
        rules.connect("me")
    rules.do(c.Disconnect(first))
    rules.connect("me")


def test_a_command_of_a_client_that_is_not_there_is_refused() -> None:
    with pytest.raises(IllegalStateException, match="not connected"):
        Rules().attach(99, Q)


def test_what_must_be_durable_is_in_the_durable_batch_and_nothing_else() -> None:
    rules = Rules()
    client = rules.connect()
    rules.send(client, Q, b"a", b"b")
    assert len(rules.effects.durable.messages) == len(rules.effects.durable.entries) == 2
    assert not rules.effects.volatile
    rules.send(client, Q, b"c", persistent=False)
    assert not rules.effects.durable.messages
    assert len(rules.effects.volatile.messages) == 1


def test_without_a_disk_nothing_is_durable() -> None:
    rules = Rules(durable=False)
    client = rules.connect("me")
    rules.send(client, Q, b"a", identity=Identity("p", 1, 1))
    assert not rules.effects.durable
    rules.attach(client, topic("t"), subscription=DURABLE)
    assert not rules.effects.durable


def test_commands_of_one_cycle_are_handed_out_after_the_last_of_them() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q)
    rules.do(c.Credit(consumer, 5), c.Enqueue(client, Q, [c.NewMessage(0, b"x")] * 3), c.Credit(consumer, 1))
    assert len(rules.delivered[consumer]) == 3


@pytest.mark.parametrize("fields", [{}, {"selector": "TRUE"}, {"exclusive": True}], ids=["next", "found", "exclusive"])
def test_a_cycle_hands_out_a_bounded_number_and_the_next_one_goes_on(fields: dict[str, Any]) -> None:
    rules = Rules()
    rules.state.directory.memory.cycle_handouts = 10
    client = rules.connect()
    consumers = [rules.attach(client, Q, **fields) for _ in range(3)]
    rules.send(client, Q, *[b"x"] * 45)
    rules.do(*[c.Credit(each, 100) for each in consumers])
    sizes = [sum(map(len, rules.delivered.values()))]
    while rules.state.has_more:
        rules.pass_time(0)
        sizes.append(sum(map(len, rules.delivered.values())))
    if "selector" not in fields:  # the search looks at messages in steps of its own
        assert sizes[:5] == [10, 20, 30, 40, 45]
        assert sizes[-1] == 45
    assert all(after - before <= 10 for before, after in itertools.pairwise(sizes))


def test_a_queue_that_a_cycle_left_out_is_the_first_in_the_next_one() -> None:
    rules = Rules()
    rules.state.directory.memory.cycle_handouts = 10
    client = rules.connect()
    busy, quiet = rules.attach(client, queue("busy")), rules.attach(client, queue("quiet"))
    for name, count in (("busy", 60), ("quiet", 3)):
        rules.send(client, queue(name), *[b"x"] * count)
    rules.do(c.Credit(busy, 100), c.Credit(quiet, 100))
    assert (len(rules.delivered.get(busy, ())), len(rules.delivered.get(quiet, ()))) == (10, 0)
    rules.send(client, queue("busy"), b"y")
    assert (len(rules.delivered[busy]), len(rules.delivered[quiet])) == (17, 3)


def test_a_drain_is_answered_when_all_that_there_is_was_handed_out() -> None:
    rules = Rules()
    rules.state.directory.memory.cycle_handouts = 10
    client = rules.connect()
    consumer = rules.attach(client, Q)
    rules.send(client, Q, *[b"x"] * 25)
    answers: list[int] = []
    rules.do(c.Credit(consumer, 100), c.Drain(consumer, answers.append), c.Due(()))
    assert (len(rules.delivered[consumer]), answers) == (10, [])
    while rules.state.has_more:
        for reply, result in rules.pass_time(0).replies:
            reply(result)
    assert (len(rules.delivered[consumer]), answers) == (25, [75])


def test_a_drain_without_credit_is_answered_however_busy_its_queue_is() -> None:
    rules = Rules()
    rules.state.directory.memory.cycle_handouts = 10
    client = rules.connect()
    busy, drained = rules.attach(client, Q, 10), rules.attach(client, Q)
    answers: list[int] = []
    commands: tuple[Any, ...] = (c.Credit(drained, 1), c.Drain(drained, answers.append))
    for _ in range(3):
        rules.do(*commands, c.Credit(busy, 20), c.Enqueue(client, Q, [c.NewMessage(0, b"x")] * 20))
        commands = ()
    assert rules.state.has_more
    assert (len(rules.delivered[drained]), answers) == (1, [0])


def test_consumers_take_turns() -> None:
    rules = Rules()
    client = rules.connect()
    consumers = [rules.attach(client, Q, 10) for _ in range(3)]
    rules.send(client, Q, *[b"x"] * 9)
    assert [len(rules.delivered[consumer]) for consumer in consumers] == [3, 3, 3]


def test_a_consumer_holds_no_more_than_its_limit() -> None:
    rules = Rules(max_unsettled_messages=2)
    client = rules.connect()
    consumer = rules.attach(client, Q, 10)
    rules.send(client, Q, *[b"x"] * 5)
    assert len(rules.delivered[consumer]) == 2
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    assert len(rules.delivered[consumer]) == 3


def test_credit_that_is_drained_is_gone_after_the_deliveries() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 10)
    rules.send(client, Q, b"x", b"y")
    assert rules.do(c.Drain(consumer)) == 8
    rules.send(client, Q, b"z")
    assert len(rules.delivered[consumer]) == 2


def test_a_consumer_gets_a_slice_of_bytes_at_a_time() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 10, slice_bytes=100)
    rules.send(client, Q, *[b"x" * 40] * 20)
    assert len(rules.delivered[consumer]) == 3
    rules.do(c.Settle(consumer, [1, 2, 3], Outcome.ACCEPTED))
    assert len(rules.delivered[consumer]) == 3
    rules.do(c.Credit(consumer, 0))
    assert len(rules.delivered[consumer]) == 6
    assert rules.do(c.Drain(consumer)) == 1
    assert len(rules.delivered[consumer]) == 9
    rules.do(c.Credit(consumer, 2))
    assert len(rules.delivered[consumer]) == 11


def test_a_message_larger_than_a_slice_is_handed_out_alone() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 10, slice_bytes=100, presettled=True)
    rules.send(client, Q, b"x" * 1000, b"y" * 99, b"z")
    assert len(rules.delivered[consumer]) == 1
    rules.do(c.Credit(consumer, 0))
    assert len(rules.delivered[consumer]) == 3


def test_a_consumer_whose_slice_is_used_up_holds_nobody_up() -> None:
    rules = Rules()
    client = rules.connect()
    small = rules.attach(client, Q, 10, slice_bytes=1)
    large = rules.attach(client, Q, 10)
    rules.send(client, Q, *[b"x"] * 9)
    assert [len(rules.delivered[consumer]) for consumer in (small, large)] == [1, 8]


def test_settling_twice_and_settling_what_is_unknown_is_ignored() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 10)
    rules.send(client, Q, b"x")
    rules.do(c.Settle(consumer, [1, 1, 7], Outcome.ACCEPTED))
    rules.do(c.Settle(99, [1], Outcome.ACCEPTED))
    assert rules.do(c.Statistics()).settled == 1


def test_a_message_that_expires_is_not_handed_out() -> None:
    rules = Rules()
    client = rules.connect()
    rules.send(client, Q, b"at once", expires_at_ms=rules.now_ms)
    rules.send(client, Q, b"soon", expires_at_ms=rules.now_ms + 10)
    rules.pass_time(10)
    consumer = rules.attach(client, Q, 10)
    assert consumer not in rules.delivered
    assert rules.do(c.Statistics()).expired == 2
    assert rules.depth("q") == 0


def test_an_identity_is_taken_once_for_each_destination() -> None:
    rules = Rules()
    client = rules.connect()
    for sequence in (1, 2, 1, 2, 3):
        assert rules.send(client, Q, b"x", identity=Identity("p", 1, sequence)) is None
    rules.send(client, queue("other"), b"x", identity=Identity("p", 1, 1))
    rules.send(client, Q, b"x", identity=Identity("p", 2, 1))
    assert (rules.depth("q"), rules.depth("other")) == (4, 1)
    assert rules.do(c.Statistics()).duplicates_rejected == 2


def test_messages_that_arrive_out_of_their_producers_order_are_all_taken_once() -> None:
    rules = Rules()
    client = rules.connect()
    for sequence in (5, 2, 7, 2, 3, 5, 1, 7, 6, 4, 4):
        rules.send(client, Q, b"%d" % sequence, identity=Identity("p", 1, sequence))
    rules.do(
        c.Commit(
            client, None, [(Q, c.NewMessage(0, b"", identity=Identity("p", 1, number))) for number in (9, 8, 9)], []
        )
    )
    assert rules.depth("q") == 9
    assert rules.do(c.Statistics()).duplicates_rejected == 5


def test_a_producer_with_a_long_name_is_known() -> None:
    rules = Rules()
    client = rules.connect()
    for name in ("x" * 5000, "x" * 5001, "x" * 5000, "\N{SNOWMAN}" * 60, "\ud800"):
        rules.send(client, queue("n" * 400), b"", identity=Identity(name, 1, 1))
    assert rules.depth("n" * 400) == 4
    assert all(len(stream_key(*stream)) <= 511 for stream in rules.state.intake.streams)


def test_the_producer_that_was_silent_longest_is_forgotten_at_the_limit() -> None:
    rules = Rules(max_producers=2)
    client = rules.connect()
    for producer in ("a", "b", "c"):
        rules.send(client, Q, b"x", identity=Identity(producer, 1, 5))
    assert len(rules.state.intake.streams) == 2
    rules.send(client, Q, b"x", identity=Identity("c", 1, 5))
    rules.send(client, Q, b"x", identity=Identity("a", 1, 5))
    assert rules.depth("q") == 4


def test_a_message_above_the_limit_is_refused_and_the_others_are_taken() -> None:
    rules = Rules(max_message_bytes=10)
    errors = rules.send(rules.connect(), Q, b"small", b"x" * 11, b"small too")
    assert [type(error) for error in errors] == [type(None), ResourceAllocationException, type(None)]
    assert "max_message_bytes" in str(errors[1])
    assert rules.depth("q") == 2


def test_held_sends_go_on_in_their_order() -> None:
    rules = Rules(max_queue_messages=2)
    client = rules.connect()
    rules.send(client, Q, b"1", b"2")
    assert rules.send(client, Q, b"3", b"4") == "held"
    assert rules.send(client, Q, b"5") == "held"
    consumer = rules.attach(client, Q, 1)
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    assert rules.depth("q") == 2  # "3" has come in, "4" and "5" still wait
    assert rules.do(c.Credit(consumer, 10)) is None
    rules.do(c.Settle(consumer, [2, 3], Outcome.ACCEPTED))
    assert rules.depth("q") == 2
    assert sum(each.held_producers for each in rules.do(c.Statistics()).queues) in (0, 1)


def test_a_held_send_is_refused_when_its_time_is_over() -> None:
    rules = Rules(max_queue_messages=1, hold_timeout_seconds=5)
    client = rules.connect()
    rules.send(client, Q, b"1")
    told: list[Any] = []
    rules.state.decide([c.Enqueue(client, Q, [c.NewMessage(0, b"2")], told.append)], rules.now_ms)
    assert rules.state.next_deadline_ms() == rules.now_ms + 5000
    assert rules.pass_time(4999).replies == []
    ((reply, errors),) = rules.pass_time(1).replies
    assert reply == told.append
    assert "max_queue_messages" in str(errors[0])
    assert "held back for 5.0 s" in str(errors[0])
    assert rules.state.next_deadline_ms() is None


def test_a_refused_identity_may_be_sent_again() -> None:
    rules = Rules(max_queue_messages=1, hold_timeout_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"1", identity=Identity("p", 1, 1))
    rules.send(client, Q, b"2", identity=Identity("p", 1, 2))
    rules.pass_time(1000)
    consumer = rules.attach(client, Q, 1)
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    assert rules.send(client, Q, b"2", identity=Identity("p", 1, 2)) is None
    assert rules.depth("q") == 1


def test_no_more_sends_are_held_than_the_limit() -> None:
    rules = Rules(max_queue_messages=1, max_held_messages=2)
    client = rules.connect()
    rules.send(client, Q, b"1")
    assert [rules.send(client, Q, b"x"), rules.send(client, Q, b"x")] == ["held", "held"]
    (error,) = rules.send(client, Q, b"x")
    assert "max_held_messages" in str(error)


def test_bytes_of_a_queue_have_a_limit_too() -> None:
    rules = Rules(max_queue_bytes=100)
    client = rules.connect()
    rules.send(client, Q, b"x" * 100)
    assert rules.send(client, Q, b"x") == "held"


def test_bytes_of_a_queue_limit_transactions_as_well() -> None:
    rules = Rules(max_queue_bytes=1000)
    client = rules.connect()
    results = [rules.do(commit(client, number, [(Q, b"x" * 500)], [])) for number in range(1, 5)]
    assert results == [None, None, "held", "held"]


def test_a_broker_that_takes_nothing_holds_everything_persistent() -> None:
    rules = Rules()
    client, other = rules.connect(), rules.connect()
    rules.state.admission.held_because = "the disk is full"
    assert rules.send(client, Q, b"x") == "held"
    assert rules.send(other, Q, b"y", persistent=False) is None
    rules.state.admission.held_because = None
    rules.pass_time(1)
    assert rules.depth("q") == 2


def test_destinations_have_a_limit() -> None:
    rules = Rules(max_destinations=2)
    client = rules.connect()
    rules.send(client, queue("a"), b"x")
    rules.send(client, queue("b"), b"x")
    with pytest.raises(ResourceAllocationException, match="max_destinations"):
        rules.send(client, queue("c"), b"x")
    with pytest.raises(ResourceAllocationException, match="max_destinations"):
        rules.attach(client, topic("t"))


def test_what_is_set_aside_has_its_queues_whatever_the_limit_says() -> None:
    rules = Rules(max_destinations=1, expiry_queue="gone", max_deliveries=1)
    client = rules.connect()
    rules.send(client, Q, b"rejected", b"failed", b"expired", expires_at_ms=rules.now_ms + 10)
    rules.send(client, Q, b"in hand")
    consumer = rules.attach(client, Q, 2)
    rules.do(c.Settle(consumer, [1], Outcome.REJECTED))
    rules.do(c.Disconnect(client))
    rules.pass_time(10)
    rules.attach(rules.connect(), Q, 10)
    assert {each.name for each in rules.state.directory.queues.values() for each in [each.destination]} == {
        "q",
        "DLQ",
        "gone",
    }
    assert (rules.depth("DLQ"), rules.depth("gone"), rules.depth("q")) == (2, 1, 1)


def test_a_topic_is_there_while_it_has_subscriptions() -> None:
    rules = Rules()
    client = rules.connect()
    rules.do(c.Declare(topic("t")))
    rules.send(client, topic("t"), b"to nobody")
    assert not rules.state.directory.topics
    consumer = rules.attach(client, topic("t"))
    assert list(rules.state.directory.topics) == [topic("t")]
    rules.do(c.Detach(consumer))
    assert not rules.state.directory.topics


def test_browsing_makes_no_queue() -> None:
    rules = Rules()
    browser = rules.attach(rules.connect(), queue("nowhere"), browse=True)
    assert [each.name for each in rules.do(c.Statistics()).queues] == ["DLQ"]
    rules.do(c.Detach(browser))
    with pytest.raises(InvalidDestinationException):
        rules.attach(rules.connect(), Destination("x" * 401), browse=True)


# Deleting.


def test_a_queue_is_deleted_with_its_messages_and_made_again_by_the_next_send() -> None:
    rules = Rules()
    client = rules.connect()
    rules.send(client, Q, b"a", b"b")
    first = rules.state.directory.by_destination[Q]
    assert rules.do(c.Delete(Q)) == 2
    assert rules.effects.ended == [first.id]
    assert Q not in rules.state.directory.by_destination
    rules.send(client, Q, b"c")
    assert rules.state.directory.by_destination[Q].id != first.id
    with pytest.raises(InvalidDestinationException, match="there is no queue 'unknown'"):
        rules.do(c.Delete(queue("unknown")))
    with pytest.raises(InvalidDestinationException, match="can be purged"):
        rules.do(c.Delete(queue("DLQ")))


def test_what_is_in_use_is_deleted_by_force_only_and_its_consumers_are_told() -> None:
    rules = Rules(max_queue_messages=2)
    client = rules.connect()
    told: list[Any] = []
    rules.send(client, Q, b"a", b"b")
    consumer = rules.attach(client, Q, 1, ended=told.append)
    with pytest.raises(IllegalStateException, match="1 consumer is attached"):
        rules.do(c.Delete(Q))
    rules.do(c.Detach(consumer))
    with pytest.raises(IllegalStateException, match="sessions hold 1 message"):
        rules.do(c.Delete(Q))
    rules.do(c.Settle(consumer, [1], Outcome.RELEASED))
    browser = rules.attach(client, Q, browse=True)
    with pytest.raises(IllegalStateException, match="a browser looks at it"):
        rules.do(c.Delete(Q))
    rules.do(c.Detach(browser))
    assert rules.send(client, Q, b"c") == "held"
    with pytest.raises(IllegalStateException, match="1 send waits for room"):
        rules.do(c.Delete(Q))
    consumer = rules.attach(client, Q, 1, ended=told.append)
    assert rules.do(c.Delete(Q, force=True)) == 2
    assert [error.reason for error in told] == ["'q' was deleted"]
    assert not rules.state.directory.consumers
    assert rules.state.directory.memory.in_hand == 0
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))  # too late, and harmless
    rules.do(c.Disconnect(client))


def test_a_subscription_or_a_whole_topic_is_deleted() -> None:
    rules = Rules()
    client = rules.connect("me")
    for name in ("one", "two"):
        subscription = Subscription(name, durable=True, shared=False)
        rules.do(c.Detach(rules.attach(client, topic("t"), subscription=subscription)))
    rules.send(client, topic("t"), b"x")
    with pytest.raises(InvalidDestinationException, match="there is one of client id 'me' \\(--client-id"):
        rules.do(c.Delete(topic("t"), "one"))
    assert rules.do(c.Delete(topic("t"), "one", "me")) == 1
    assert [each.record.name for each in rules.state.directory.topics[topic("t")]] == ["two"]
    assert rules.do(c.Delete(topic("t"))) == 1
    assert not rules.state.directory.topics
    assert not rules.state.directory.subscriptions


def test_what_nobody_uses_is_deleted_where_the_options_say_so() -> None:
    day = 86_400
    rules = Rules(delete_idle_queues_seconds=day, delete_idle_subscriptions_seconds=2 * day)
    client = rules.connect("me")
    for name in ("empty", "full", "consumed"):
        rules.send(client, queue(name), b"x")
    rules.do(c.Settle(rules.attach(client, queue("empty"), 1), [1], Outcome.ACCEPTED))
    rules.do(c.Disconnect(client))
    client = rules.connect("me")
    consumer = rules.attach(client, queue("consumed"), 1)
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    for name in ("left", "used"):
        subscription = Subscription(name, durable=True, shared=False)
        number = rules.attach(client, topic("t"), subscription=subscription)
        if name == "left":
            rules.do(c.Detach(number))
    rules.pass_time(day * 1000)
    assert len(rules.do(c.DeleteIdle())) == 1
    assert queue("empty") not in rules.state.directory.by_destination
    rules.send(client, topic("t"), b"x")
    rules.pass_time(day * 1000)
    assert len(rules.do(c.DeleteIdle())) == 1
    assert [each.record.name for each in rules.state.directory.topics[topic("t")]] == ["used"]
    assert {str(each) for each in rules.state.directory.by_destination} == {"full", "consumed", "DLQ"}


def test_a_restart_leaves_whoever_used_a_subscription_its_time_to_come_back() -> None:
    """Also where the consumer left once before, and the crash came while it was there again."""
    rules = Rules(delete_idle_subscriptions_seconds=60)
    client = rules.connect("me")
    catalog: dict[bytes, bytes | None] = {}
    consumer = rules.attach(client, topic("t"), subscription=DURABLE)
    catalog.update(rules.effects.durable.tables.get("catalog", {}))
    rules.do(c.Detach(consumer))
    catalog.update(rules.effects.durable.tables.get("catalog", {}))
    rules.attach(client, topic("t"), subscription=DURABLE)
    records = [(int.from_bytes(key), decode_catalog(key, value), None, []) for key, value in catalog.items() if value]
    rules.pass_time(3_600_000)
    started = Rules(delete_idle_subscriptions_seconds=60)
    started.now_ms = rules.now_ms
    started.state.restore(records, [], 1)
    assert len(started.do(c.DeleteIdle())) == 0
    started.pass_time(59_999)
    assert len(started.do(c.DeleteIdle())) == 0
    started.pass_time(1)
    assert len(started.do(c.DeleteIdle())) == 1


def test_a_subscription_is_idle_from_when_the_last_delivery_of_its_consumer_has_ended() -> None:
    rules = Rules(delete_idle_subscriptions_seconds=60)
    client = rules.connect("me")
    consumer = rules.attach(client, topic("t"), 1, subscription=DURABLE)
    rules.send(client, topic("t"), b"x")
    rules.do(c.Detach(consumer))
    rules.pass_time(60_000)
    assert len(rules.do(c.DeleteIdle())) == 0
    rules.do(c.Settle(consumer, [1], Outcome.RELEASED))
    assert len(rules.do(c.DeleteIdle())) == 0
    rules.pass_time(60_000)
    assert len(rules.do(c.DeleteIdle())) == 1


def test_a_queue_that_is_declared_or_browsed_is_in_use() -> None:
    rules = Rules(delete_idle_queues_seconds=60)
    client = rules.connect()
    rules.do(c.Declare(Q))
    browser = rules.attach(client, Q, browse=True)
    for use in (c.Detach(browser), c.Declare(Q)):
        rules.pass_time(60_000)
        rules.do(use)
        assert len(rules.do(c.DeleteIdle())) == 0
    rules.pass_time(60_000)
    assert len(rules.do(c.DeleteIdle())) == 1


def test_by_default_nothing_is_deleted_by_itself() -> None:
    rules = Rules()
    rules.do(c.Declare(Q))
    rules.pass_time(1 << 50)
    assert len(rules.do(c.DeleteIdle())) == 0


def test_the_number_of_a_staged_transaction_comes_again_and_no_queues_number_does() -> None:
    rules = Rules()
    state = rules.state
    state.directory.numbers._next_staged = FIRST_VOLATILE_QUEUE - 1
    for name in ("g/1/a", "g/1/b", "g/1/c"):
        rules.do(c.Stage(name, Q, 0, [c.NewMessage(0, b"x")]))
    assert [each.id for each in state.directory.staged.values()] == [
        FIRST_VOLATILE_QUEUE - 1,
        FIRST_STAGED_QUEUE,
        FIRST_STAGED_QUEUE + 1,
    ]
    state.directory.numbers._next_staged = FIRST_VOLATILE_QUEUE - 1
    rules.do(c.Stage("g/1/d", Q, 0, [c.NewMessage(0, b"x")]))
    assert state.directory.staged["g/1/d"].id == FIRST_STAGED_QUEUE + 2
    rules.do(c.Declare(Q))
    noted = rules.effects.durable.tables["meta"][NEXT_QUEUE]
    assert noted is not None
    assert decode_meta(NEXT_QUEUE, noted) == state.directory.by_destination[Q].id + 1
    state.directory.numbers.next = FIRST_STAGED_QUEUE - 1
    rules.do(c.Declare(queue("last")))
    with pytest.raises(ResourceAllocationException, match="has no number for another one"):
        rules.do(c.Declare(queue("one too many")))


def test_a_temporary_queue_of_another_run_is_another_incarnation() -> None:
    names = set()
    for secret in (b"one", b"two"):
        state = BrokerState(EngineSettings(), durable=True, secret=secret, unique="u")
        replies: list[Any] = []
        state.decide([c.Connect(None, reply=replies.append)], 0)
        state.decide([c.DeclareTemporary(1, DestinationKind.TEMPORARY_QUEUE)], 0)
        (temporary,) = [each for each in state.directory.queues.values() if each.destination.is_temporary]
        assert temporary.id == FIRST_VOLATILE_QUEUE
        names.add(state.directory.incarnation(temporary))
    assert len(names) == 2


def test_what_was_settled_of_a_temporary_queue_is_forgotten_with_it_and_costs_no_commit_where_nothing_was() -> None:
    rules = Rules()
    client = rules.connect()
    for number in (0, 5):
        temporary = rules.do(c.DeclareTemporary(client, DestinationKind.TEMPORARY_QUEUE))
        group = rules.state.directory.settled_group(rules.state.directory.by_destination[temporary])
        if number:
            rules.do(c.Publish(group, number, ()))
        rules.do(c.DeleteTemporary(client, temporary))
        assert bool(rules.effects.durable) is bool(number)
        assert rules.state.published.last(group) is None


def test_a_fault_in_one_command_is_that_commands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Rules()
    client = rules.connect()
    replies: list[Any] = []
    bad = c.Enqueue(client, Q, [object()], replies.append)  # type: ignore[list-item]
    good = c.Enqueue(client, Q, [c.NewMessage(0, b"x")], replies.append)
    rules.do(bad, good)
    for reply, result in rules.effects.replies:
        if reply == replies.append:
            reply(result)
    assert "could not carry out Enqueue" in str(replies[0])
    assert rules.depth("q") == 1
    assert [type(command) for command, _ in rules.effects.faults] in ([], [c.Enqueue])


@pytest.mark.parametrize("name", ["", "x" * 401, "a\0b"])
def test_names_that_cannot_be_are_refused(name: str) -> None:
    rules = Rules()
    with pytest.raises(InvalidDestinationException):
        rules.do(c.Declare(Destination(name)))


def test_an_invalid_selector_is_refused_and_leaves_nothing_behind() -> None:
    rules = Rules()
    client = rules.connect()
    with pytest.raises(InvalidSelectorException, match="column 4"):
        rules.attach(client, Q, selector="a =")
    assert not rules.state.directory.consumers
    assert Q not in rules.state.directory.by_destination


# Dead letters.


def dead_letter(rules: Rules) -> dict[str, Any]:
    for batch in (rules.effects.durable, rules.effects.volatile):
        for key, value in batch.tables.get("annotations", {}).items():
            if value is not None:
                return decode_annotations(key, value)
    raise AssertionError("no dead letter")


def test_a_message_that_fails_too_often_is_a_dead_letter_with_its_reason() -> None:
    rules = Rules(max_deliveries=2)
    client = rules.connect()
    rules.send(client, Q, b"x")
    consumer = rules.attach(client, Q, 10)
    rules.do(c.Settle(consumer, [1], Outcome.MODIFIED))
    assert rules.delivered[consumer] == [(1, 0), (2, 1)]
    rules.do(c.Settle(consumer, [2], Outcome.MODIFIED))
    assert dead_letter(rules) == {
        "JMS_HOLDFAST_DEAD_LETTER_REASON": "delivered 2 times without success (option max_deliveries)",
        "JMS_HOLDFAST_DEAD_LETTER_QUEUE": "q",
        "JMS_HOLDFAST_DEAD_LETTER_COUNT": 2,
    }
    assert (rules.depth("q"), rules.depth("DLQ")) == (0, 1)


def test_a_dead_letter_of_a_temporary_queue_stays_in_memory() -> None:
    rules = Rules()
    client = rules.connect()
    temporary = rules.do(c.DeclareTemporary(client, DestinationKind.TEMPORARY_QUEUE))
    consumer = rules.attach(client, temporary, 1)
    rules.send(client, temporary, b"x")
    rules.do(c.Settle(consumer, [1], Outcome.REJECTED))
    assert not rules.effects.durable.entries
    assert rules.depth("DLQ") == 1


def test_what_fails_in_the_dead_letter_queue_stays_there() -> None:
    rules = Rules(max_deliveries=1)
    client = rules.connect()
    dead = queue("DLQ")
    rules.send(client, dead, b"x")
    consumer = rules.attach(client, dead, 10)
    for number, outcome in ((1, Outcome.MODIFIED), (2, Outcome.REJECTED), (3, Outcome.MODIFIED)):
        rules.do(c.Settle(consumer, [number], outcome))
    assert rules.depth("DLQ") == 1


def positions(rules: Rules, consumer: int, since: int = 0) -> list[int]:
    """Positions of what a consumer got."""
    return [position for position, *_ in rules.placed.get(consumer, [])[since:]]


def test_what_comes_back_by_a_recover_or_a_loss_comes_in_order_however_often() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"a", b"b", b"c")
    consumer = rules.attach(client, Q, 3)
    for first in range(1, 16, 3):
        rules.do(c.Settle(consumer, [first, first + 1, first + 2], Outcome.MODIFIED), c.Credit(consumer, 3))
    assert positions(rules, consumer) == [1, 2, 3] * 6
    rules.do(c.Disconnect(client, failed=True))
    consumer = rules.attach(rules.connect(), Q, 3)
    assert positions(rules, consumer) == [1, 2, 3]


def test_a_message_whose_listener_raises_again_rests_and_its_consumer_waits_with_it() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"bad", b"good", b"third")
    consumer = rules.attach(client, Q, 1)
    rules.do(c.Settle(consumer, [1], Outcome.FAILED), c.Credit(consumer, 1))
    assert rules.delivered[consumer] == [(1, 0), (2, 1)]  # at once, and before the other ones
    rules.do(c.Settle(consumer, [2], Outcome.FAILED), c.Credit(consumer, 2))
    assert rules.delivered[consumer][2:] == [], "nothing passes it"
    (statistics,) = [each for each in rules.do(c.Statistics()).queues if each.name == "q"]
    assert (statistics.messages, statistics.delayed) == (3, 1)
    assert rules.state.next_deadline_ms() == rules.now_ms + 1000
    other = rules.attach(client, Q, 1)
    assert positions(rules, other) == [2], "another consumer gets what comes next"
    rules.pass_time(999)
    assert len(rules.delivered[consumer]) == 2
    rules.pass_time(1)
    assert positions(rules, consumer, 2) == [1, 3]
    assert rules.state.next_deadline_ms() is None


def test_only_what_its_listener_raised_on_counts_towards_the_pause() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"x")
    consumer = rules.attach(client, Q, 10)
    for number in range(1, 6):
        rules.do(c.Settle(consumer, [number], Outcome.MODIFIED))
    rules.do(c.Settle(consumer, [6], Outcome.FAILED))
    assert rules.delivered[consumer][-1] == (7, 6), "the first time it comes at once"
    rules.do(c.Settle(consumer, [7], Outcome.FAILED))
    assert rules.state.next_deadline_ms() == rules.now_ms + 1000


def test_nothing_of_a_group_passes_the_message_that_its_consumer_failed_on() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    owner, other = rules.attach(client, Q, 1), rules.attach(client, Q)
    rules.send(client, Q, b"1", b"2", b"3", group=c.group_number("g"))
    for number in (1, 2):
        rules.do(c.Settle(owner, [number], Outcome.FAILED), c.Credit(owner, 5 if number == 2 else 1))
    rules.do(c.Credit(other, 10))
    assert (positions(rules, owner), positions(rules, other)) == ([1, 1], [])
    rules.pass_time(1000)
    assert (positions(rules, owner), positions(rules, other)) == ([1, 1, 1, 2, 3], [])


def test_an_exclusive_consumer_that_waits_lets_nobody_pass() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"1", b"2", b"3")
    first, second = (rules.attach(client, Q, 1, exclusive=True) for _ in range(2))
    for number in (1, 2):
        rules.do(c.Settle(first, [number], Outcome.FAILED), c.Credit(first, 5 if number == 2 else 1))
    assert (positions(rules, first), positions(rules, second)) == ([1, 1], [])
    rules.pass_time(1000)
    assert (positions(rules, first), positions(rules, second)) == ([1, 1, 1, 2, 3], [])


def test_what_rests_comes_at_once_when_its_consumer_has_ended() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"1", b"2")
    consumer = rules.attach(client, Q, 5)
    rules.do(c.Settle(consumer, [1, 2], Outcome.FAILED))
    rules.do(c.Settle(consumer, [3, 4], Outcome.FAILED))
    assert len(rules.delivered[consumer]) == 4
    rules.do(c.Detach(consumer))
    other = rules.attach(client, Q, 5)
    assert positions(rules, other) == [1, 2]
    assert rules.state.next_deadline_ms() is None


def test_beyond_the_limit_of_resting_messages_the_next_one_does_not_rest() -> None:
    rules = Rules(redelivery_delay_seconds=1, max_delayed_redeliveries=1)
    client = rules.connect()
    rules.send(client, Q, b"a", b"b")
    consumers = [rules.attach(client, Q, 1) for _ in range(2)]
    for number in (1, 2):
        for each in consumers:
            rules.do(c.Settle(each, [number], Outcome.FAILED), c.Credit(each, 1))
    assert [len(rules.delivered[each]) for each in consumers] == [2, 3]


def test_a_resting_message_is_gone_with_its_queue() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    temporary = rules.do(c.DeclareTemporary(client, DestinationKind.TEMPORARY_QUEUE))
    rules.send(client, temporary, b"x")
    consumer = rules.attach(client, temporary, 3)
    for number in (1, 2):
        rules.do(c.Settle(consumer, [number], Outcome.FAILED))
    rules.do(c.Disconnect(client))
    assert rules.state.next_deadline_ms() is None
    rules.pass_time(5000)


def test_what_expires_goes_to_the_expiry_queue_where_it_stays() -> None:
    rules = Rules(expiry_queue="expired")
    client = rules.connect()
    rules.send(client, Q, b"soon", expires_at_ms=rules.now_ms + 10)
    consumer = rules.attach(client, Q)
    rules.now_ms += 20
    rules.do(c.Credit(consumer, 1))
    assert not rules.delivered.get(consumer)
    assert dead_letter(rules) == {
        "JMS_HOLDFAST_DEAD_LETTER_REASON": "expired",
        "JMS_HOLDFAST_DEAD_LETTER_QUEUE": "q",
        "JMS_HOLDFAST_DEAD_LETTER_COUNT": 0,
    }
    (entry,) = [entry for entry in rules.effects.durable.entries.values() if entry is not None]
    assert entry.expires_at_ms == 0
    assert (rules.depth("q"), rules.depth("expired")) == (0, 1)
    assert rules.do(c.Statistics()).expired == 1


def test_what_expires_in_the_expiry_queue_is_dropped() -> None:
    rules = Rules(expiry_queue="q")
    client = rules.connect()
    rules.send(client, Q, b"soon", expires_at_ms=rules.now_ms + 10)
    rules.now_ms += 20
    rules.attach(client, Q, 1)
    assert rules.depth("q") == 0


# Topics and subscriptions.


def test_a_topic_stores_one_copy_with_a_count_of_who_holds_it() -> None:
    rules = Rules()
    client = rules.connect("me")
    for name in "ab":
        rules.attach(client, topic("t"), subscription=Subscription(name, durable=True, shared=False))
    rules.attach(client, topic("t"))
    rules.send(client, topic("t"), b"x")
    effects = rules.effects
    assert (len(effects.durable.messages), len(effects.durable.entries)) == (1, 2)
    assert [count for _, count in effects.durable.references] == [2]
    assert (len(effects.volatile.messages), len(effects.volatile.entries), effects.volatile.references) == (1, 1, [])


def test_a_durable_subscription_needs_a_client_id_and_is_used_by_one_consumer() -> None:
    rules = Rules()
    with pytest.raises(IllegalStateException, match="needs a client id"):
        rules.attach(rules.connect(), topic("t"), subscription=DURABLE)
    client = rules.connect("me")
    rules.attach(client, topic("t"), subscription=DURABLE)
    with pytest.raises(IllegalStateException, match="in use"):
        rules.attach(client, topic("t"), subscription=DURABLE)


def test_a_name_is_not_shared_and_unshared_at_once() -> None:
    rules = Rules()
    client = rules.connect("me")
    rules.attach(client, topic("t"), subscription=DURABLE)
    with pytest.raises(IllegalStateException, match="is an unshared durable one"):
        rules.attach(client, topic("t"), subscription=SHARED_DURABLE)


def test_a_durable_subscription_and_another_one_may_have_the_same_name() -> None:
    """Jakarta Messaging 3.1 sections 8.3.2 and 8.3.3: such subscriptions are completely separate."""
    for durable in (True, False):
        rules = Rules(durable=durable)
        client = rules.connect("me")
        consumers = [rules.attach(client, topic("t"), 5, subscription=each) for each in (DURABLE, SHARED)]
        rules.send(client, topic("t"), b"x")
        assert [len(rules.delivered[consumer]) for consumer in consumers] == [1, 1]
        for consumer in consumers:
            rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED), c.Detach(consumer))
        assert list(rules.state.directory.subscriptions) == [("me", "s", True)]


def test_a_durable_subscription_moved_to_another_topic_begins_anew() -> None:
    rules = Rules()
    client = rules.connect("me")
    consumer = rules.attach(client, topic("t"), subscription=DURABLE)
    rules.do(c.Detach(consumer))
    rules.send(client, topic("t"), b"old")
    consumer = rules.attach(client, topic("other"), 10, subscription=DURABLE)
    rules.send(client, topic("t"), b"nobody hears")
    rules.send(client, topic("other"), b"new")
    assert len(rules.delivered[consumer]) == 1


def test_a_shared_subscription_that_is_in_use_does_not_move() -> None:
    rules = Rules()
    client = rules.connect()
    rules.attach(client, topic("t"), subscription=SHARED)
    with pytest.raises(IllegalStateException, match="in use on topic 't'"):
        rules.attach(client, topic("other"), subscription=SHARED)


@pytest.mark.parametrize("subscription", [None, SHARED], ids=["plain", "shared"])
def test_a_subscription_that_is_not_durable_ends_with_its_last_consumer(subscription: Subscription | None) -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, topic("t"), subscription=subscription)
    rules.do(c.Detach(consumer))
    assert len(rules.effects.ended) == 1
    rules.send(client, topic("t"), b"nobody hears")
    assert not rules.effects.volatile
    assert rules.state.directory.subscriptions == {}


def test_a_durable_subscription_does_not_end_with_its_consumer_or_client() -> None:
    rules = Rules()
    client = rules.connect("me")
    rules.attach(client, topic("t"), subscription=DURABLE)
    rules.do(c.Disconnect(client))
    assert rules.effects.ended == []
    rules.send(rules.connect(), topic("t"), b"x")
    assert len(rules.effects.durable.entries) == 1


def test_unsubscribing_needs_a_subscription_that_nobody_uses() -> None:
    rules = Rules()
    client = rules.connect("me")
    with pytest.raises(InvalidDestinationException, match="no durable subscription 's'"):
        rules.do(c.Unsubscribe(client, "s"))
    consumer = rules.attach(client, topic("t"), subscription=DURABLE)
    with pytest.raises(IllegalStateException, match="close it first"):
        rules.do(c.Unsubscribe(client, "s"))
    rules.do(c.Credit(consumer, 1), c.Enqueue(client, topic("t"), [c.NewMessage(0, b"x")]))
    rules.do(c.Detach(consumer))
    with pytest.raises(IllegalStateException, match="holds messages of it"):
        rules.do(c.Unsubscribe(client, "s"))
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    rules.do(c.Unsubscribe(client, "s"))
    assert len(rules.effects.ended) == 1


@pytest.mark.parametrize("durable", [True, False])
def test_what_falls_due_in_a_queue_that_has_ended_is_dropped(durable: bool) -> None:
    """Else it would come in behind those who clear the queue up, and stay in the store for ever."""
    rules = Rules(durable=durable, expiry_queue="expired")
    client = rules.connect("me")
    rules.do(c.Detach(rules.attach(client, topic("t"), subscription=DURABLE)))
    rules.send(client, topic("t"), b"later", deliver_at_ms=rules.now_ms + 10)
    batch = rules.effects.durable if durable else rules.effects.volatile
    ((key, entry),) = batch.entries.items()
    (schedule,) = batch.tables["schedule"]
    assert entry is not None
    rules.do(c.Unsubscribe(client, "s"))
    queue_number, lane, position = unpack_entry_key(key)
    raw = RawEntry(queue_number, lane, position, entry.number, 0, entry.flags, 0, entry.size)
    rules.do(c.Due([(KIND_DELIVER, raw, schedule)]))
    batch = rules.effects.durable if durable else rules.effects.volatile
    assert batch.entries == {key: None}


def test_no_local_leaves_out_a_connections_own_messages() -> None:
    rules = Rules()
    mine, other = rules.connect(), rules.connect()
    consumer = rules.attach(mine, topic("t"), 10, no_local=True)
    rules.send(mine, topic("t"), b"mine")
    rules.send(other, topic("t"), b"theirs")
    assert len(rules.delivered[consumer]) == 1


# Temporary destinations.


@pytest.mark.parametrize("kind", [DestinationKind.TEMPORARY_QUEUE, DestinationKind.TEMPORARY_TOPIC])
def test_a_temporary_destination_is_its_connections_own(kind: DestinationKind) -> None:
    rules = Rules()
    owner, other = rules.connect(), rules.connect()
    temporary = rules.do(c.DeclareTemporary(owner, kind))
    consumer = rules.attach(owner, temporary, 10)
    rules.send(other, temporary, b"x")
    assert len(rules.delivered[consumer]) == 1
    with pytest.raises(InvalidDestinationException, match="only by the connection that made it"):
        rules.attach(other, temporary)
    with pytest.raises(InvalidDestinationException, match="no temporary destination of this connection"):
        rules.do(c.DeleteTemporary(other, temporary))
    with pytest.raises(IllegalStateException, match="close it first"):
        rules.do(c.DeleteTemporary(owner, temporary))
    rules.do(c.Disconnect(owner))
    with pytest.raises(InvalidDestinationException, match="does not exist any more"):
        rules.send(other, temporary, b"x")


# Transactions.


def commit(client: int, number: int, sends: list[Any], settlements: list[Any]) -> c.Commit:
    messages = [(to, c.NewMessage(0, body)) for to, body in sends]
    return c.Commit(client, c.CommitId("session", number), messages, settlements)


def test_a_commit_is_all_or_nothing() -> None:
    rules = Rules()
    client = rules.connect()
    rules.send(client, Q, b"a", b"b")
    consumer = rules.attach(client, Q, 10)
    with pytest.raises(TransactionRolledBackException, match="not held any more"):
        rules.do(
            commit(
                client, 1, [(queue("out"), b"x")], [(consumer, 1, Outcome.ACCEPTED), (consumer, 9, Outcome.ACCEPTED)]
            )
        )
    assert not rules.effects.durable.messages
    # The first message has failed, and has come again as delivery 3.
    rules.do(
        commit(client, 2, [(queue("out"), b"x")], [(consumer, 3, Outcome.ACCEPTED), (consumer, 2, Outcome.ACCEPTED)])
    )
    assert (rules.depth("q"), rules.depth("out")) == (0, 1)


def test_a_commit_is_done_once() -> None:
    rules = Rules()
    client = rules.connect()
    for _ in range(3):
        rules.do(commit(client, 1, [(Q, b"x")], []))
    assert rules.depth("q") == 1


def test_a_commit_waits_for_room_and_is_rolled_back_when_there_is_none() -> None:
    rules = Rules(max_queue_messages=2, hold_timeout_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"a")
    assert rules.do(commit(client, 1, [(Q, b"b"), (Q, b"c")], [])) == "held"
    assert rules.depth("q") == 1
    ((_, error),) = rules.pass_time(1000).replies
    assert isinstance(error, TransactionRolledBackException)
    assert rules.do(commit(client, 2, [(Q, b"b"), (Q, b"c")], [])) == "held"
    consumer = rules.attach(client, Q, 1)
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    assert rules.depth("q") == 2


@pytest.mark.parametrize(
    ("settings", "sends"),
    [({"max_transaction_messages": 2}, [b"x"] * 3), ({"max_transaction_bytes": 10}, [b"x" * 6] * 2)],
)
def test_a_transaction_has_limits(settings: dict[str, int], sends: list[bytes]) -> None:
    rules = Rules(**settings)
    client = rules.connect()
    with pytest.raises(TransactionRolledBackException, match=next(iter(settings))):
        rules.do(commit(client, 1, [(Q, body) for body in sends], []))
    rules.do(commit(client, 2, [(Q, body) for body in sends[1:]], []))


def test_a_client_that_goes_leaves_its_deliveries_and_takes_its_held_sends() -> None:
    rules = Rules(max_queue_messages=1)
    client, other = rules.connect(), rules.connect()
    rules.send(client, Q, b"a")
    rules.attach(client, Q, 1)
    assert rules.send(client, Q, b"never taken") == "held"
    rules.do(c.Disconnect(client))
    consumer = rules.attach(other, Q, 10)
    assert rules.delivered[consumer] == [(1, 1)]
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    assert rules.depth("q") == 0


def test_a_closed_consumer_whose_last_message_is_damaged_is_forgotten() -> None:
    rules = Rules()
    client = rules.connect("me")
    news = topic("news")
    consumer = rules.attach(client, news, 1, subscription=DURABLE)
    rules.send(client, news, b"x")
    rules.do(c.Detach(consumer))
    rules.do(c.Quarantined(consumer, 1, False))
    rules.do(c.Unsubscribe(client, DURABLE.name))
