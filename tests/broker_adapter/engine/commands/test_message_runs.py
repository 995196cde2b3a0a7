"""Messages that are taken in one step: which ones are, and that it changes nothing but the time it takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ack_modes import Outcome
from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects, StoreBatch
from broker_adapter.engine.commands.message_runs import MessageRun, run_of
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.rules import sends, transactions
from broker_adapter.engine.store.room import Room
from broker_adapter.envelope import Identity
from broker_adapter.errors import JMSException
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.decisions import Q, Rules, positions

#: It has five subscriptions, two of them durable.
SEVERAL = topic("several")


def numbered(count: int, first: int = 1, **fields: Any) -> list[c.NewMessage]:
    return [c.NewMessage(0, b"x", identity=Identity("p", 1, first + each), **fields) for each in range(count)]


def test_messages_of_one_producer_that_follow_each_other_are_a_run() -> None:
    messages = [each._replace(group=place) for place, each in enumerate(numbered(3, first=7, priority=2))]
    run = run_of(messages)
    assert run == MessageRun(messages, [1, 1, 1], 2, True, Identity("p", 1, 7))
    assert run.last_sequence == 9
    plain = run_of([c.NewMessage(0, b"ab", persistent=False), c.NewMessage(1, b"", persistent=False)])
    assert plain is not None
    assert (plain.sizes, plain.identity, plain.last_sequence, plain.persistent) == ([2, 0], None, 0, False)


@pytest.mark.parametrize(
    "other",
    [
        {"expires_at_ms": 1},
        {"deliver_at_ms": 1},
        {"priority": 5},
        {"persistent": False},
        {"identity": None},
        {"identity": Identity("p", 1, 4)},
        {"identity": Identity("p", 1, 2)},
        {"identity": Identity("q", 1, 3)},
        {"identity": Identity("p", 2, 3)},
    ],
    ids=str,
)
def test_one_that_differs_in_more_than_its_payload_ends_it(other: dict[str, Any]) -> None:
    messages = numbered(3)
    assert run_of(messages) is not None
    messages[2] = messages[2]._replace(**other)
    assert run_of(messages) is None
    assert run_of(messages[::-1]) is None
    assert run_of(messages[:1]) is None
    assert run_of([]) is None


# With and without.


def of_batch(batch: StoreBatch) -> Any:
    """All that a batch changes."""
    entries = {
        key: entry and (entry.number, entry.delivery_count, entry.flags, entry.expires_at_ms, entry.size, entry.group)
        for key, entry in batch.entries.items()
    }
    return list(batch.messages.items()), sorted(batch.references), entries, batch.gone, batch.tables


def of_queue(found: QueueState) -> Any:
    """All that a queue knows of its entries."""
    lanes = [
        (lane.number, sorted(lane.heap), lane.loaded_through, lane.at_end, lane.behind, lane.stored, lane.cursor)
        for lane in (*found.lanes, found.delayed)
    ]
    counts = found.depth, found.bytes, found.stored_bytes, found.next_position, found.reserved, found.counters_due
    return lanes, counts, sorted(found.ready)


class Follower:
    """One engine's rules, and what each decision of theirs has brought about."""

    def __init__(self, **options: Any) -> None:
        self.rules = Rules(**options)
        self.client = self.rules.connect("client")
        self.consumers = [self.rules.attach(self.client, Q), self.rules.attach(self.client, topic("t"))]
        for number in range(2):
            self.rules.attach(self.client, SEVERAL, subscription=Subscription(f"s{number}", durable=True, shared=False))
        for no_local in (False, False, True):
            self.consumers.append(self.rules.attach(self.client, SEVERAL, no_local=no_local))
        self.answers: list[Any] = []

    def decide(self, command: Any) -> Any:
        effects: Effects = self.rules.state.decide((command._replace(reply=self.answers.append),), 1_000_000)
        for reply, result in effects.replies:
            reply([_text(each) for each in result] if isinstance(result, list) else _text(result))
        deliveries = [(consumer.id, messages) for consumer, messages in effects.deliveries]
        state = self.rules.state
        return (
            (of_batch(effects.durable), of_batch(effects.volatile), deliveries, self.answers.copy()),
            [of_queue(each) for each in state.directory.queues.values()],
            list(state.intake.streams),
            [(each.last, each.solid, each.mask) for each in state.intake.streams.values()],
            (state.totals.enqueued, state.totals.duplicates_rejected, state.intake.next_message),
            state.admission.volatile_room,
        )


def _text(result: Any) -> Any:
    return str(result) if isinstance(result, JMSException) else result


MESSAGES = st.builds(
    lambda size, priority, persistent, expires, identity, group: c.NewMessage(
        0, bytes(size), priority, persistent, expires, None, identity, group
    ),
    st.integers(0, 12),
    st.sampled_from([4, 4, 4, 9]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([None, None, None, 999_999, 2_000_000]),
    st.none() | st.builds(Identity, st.just("p"), st.just(1), st.integers(1, 12)),
    st.sampled_from([0, 0, 3]),
)
RUNS = st.builds(
    lambda count, first, persistent, sizes: [
        each._replace(payload=bytes(sizes)) for each in numbered(count, first, persistent=persistent)
    ],
    st.integers(1, 9),
    st.integers(1, 12),
    st.booleans(),
    st.integers(0, 12),
)
SENDS = st.lists(MESSAGES, max_size=4) | RUNS
TARGETS = st.sampled_from([Q, Q, Q, queue("other"), topic("t"), SEVERAL, SEVERAL, topic("nobody")])
STEPS = st.lists(
    st.tuples(st.just("send"), TARGETS, SENDS)
    | st.tuples(st.just("commit"), TARGETS, SENDS)
    | st.tuples(st.just("credit"), st.integers(0, 3), st.integers(1, 5))
    | st.tuples(st.just("settle"), st.integers(0, 3), st.sampled_from([Outcome.ACCEPTED, Outcome.RELEASED])),
    min_size=1,
    max_size=12,
)
OPTIONS = st.fixed_dictionaries(
    {"durable": st.booleans()},
    optional={
        "max_queue_messages": st.integers(3, 12),
        "max_queue_bytes": st.integers(10, 60),
        "max_message_bytes": st.just(10),
        "max_volatile_bytes": st.integers(1_000, 6_000),
        "max_producers": st.just(1),
    },
)


@settings(max_examples=150)
@given(OPTIONS, STEPS)
def test_it_is_as_if_they_were_taken_one_by_one(options: dict[str, Any], steps: list[Any]) -> None:
    at_once, one_by_one = Follower(**options), Follower(**options)
    held: dict[int, list[int]] = {number: [] for number in range(5)}
    commits = 0
    for what, where, how in steps:
        if what == "send":
            command: Any = c.Enqueue(at_once.client, where, how)
        elif what == "commit":
            commits += 1
            command = c.Commit(at_once.client, c.CommitId("s", commits), [(where, each) for each in how], [])
        elif what == "credit":
            command = c.Credit(at_once.consumers[where], how)
        else:
            command = c.Settle(at_once.consumers[where], held[where], how)
            held[where] = []
        found = at_once.decide(command)
        with pytest.MonkeyPatch.context() as patch:
            for module in (sends, transactions):
                patch.setattr(module, "run_of", lambda _messages: None)
            assert found == one_by_one.decide(command)
        for consumer, messages in found[0][2]:
            held[at_once.consumers.index(consumer)] += [each.number for each in messages]


def taken_at_once(rules: Rules, *commands: Any) -> int:
    """How many runs were taken in one step."""
    taken: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        append = QueueState.append_run

        def noted(self: QueueState, number: int, run: MessageRun, shared: bool, batch: StoreBatch) -> None:
            taken.append(len(run.messages))
            append(self, number, run, shared, batch)

        patch.setattr(QueueState, "append_run", noted)
        for command in commands:
            rules.do(command)
    return len(taken)


@pytest.mark.parametrize("durable", [True, False])
def test_a_send_and_a_commit_of_one_producer_are_taken_in_one_step(durable: bool) -> None:
    rules = Rules(durable=durable)
    client = rules.connect()
    commit = c.Commit(client, None, [(Q, each) for each in numbered(3, first=4)], [])
    assert taken_at_once(rules, c.Enqueue(client, Q, numbered(3)), commit, c.Enqueue(client, Q, numbered(3, 7))) == 3
    assert rules.depth("q") == 9
    assert taken_at_once(rules, c.Enqueue(client, Q, numbered(3, 8))) == 0, "two of them were sent before"
    assert rules.depth("q") == 10


@pytest.mark.parametrize("to", [topic("t"), queue("q2")], ids=str)
def test_for_a_selector_each_is_taken_by_itself(to: Destination) -> None:
    rules = Rules()
    client = rules.connect()
    rules.attach(client, to, 5, selector="TRUE")
    assert taken_at_once(rules, c.Enqueue(client, to, numbered(3))) == 0
    assert rules.state.totals.enqueued == 3


def test_all_subscriptions_of_a_topic_take_it_in_one_step() -> None:
    rules = Rules()
    client = rules.connect()
    consumers = [rules.attach(client, SEVERAL, 5, no_local=no_local) for no_local in (False, False, True)]
    assert taken_at_once(rules, c.Enqueue(client, SEVERAL, numbered(3))) == 2
    assert [positions(rules, each) for each in consumers] == [[1, 2, 3], [1, 2, 3], []]
    commit = c.Commit(client, None, [(SEVERAL, each) for each in numbered(2, first=4)], [])
    assert taken_at_once(rules, commit) == 2


def test_where_room_is_scarce_each_is_taken_by_itself() -> None:
    rules = Rules()
    client = rules.connect()
    rules.state.admission.room = Room(100.0, 100, 4096, "the store is full")
    assert taken_at_once(rules, c.Enqueue(client, Q, numbered(3))) == 0
    assert rules.depth("q") == 3
    assert rules.state.admission.room.single_pages < 100


@pytest.mark.parametrize("options", [{"max_queue_messages": 5}, {"max_queue_bytes": 5}], ids=str)
def test_a_queue_takes_no_more_than_its_limit(options: dict[str, Any]) -> None:
    rules = Rules(**options)
    client = rules.connect()
    assert taken_at_once(rules, c.Enqueue(client, Q, numbered(5))) == 1
    answers: list[Any] = []
    rules.state.decide((c.Enqueue(client, Q, numbered(2, 6), answers.append),), rules.now_ms)
    assert rules.depth("q") == 5
    assert answers == []
