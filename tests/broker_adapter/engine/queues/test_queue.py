"""Message groups and exclusive consumers: which consumer gets what."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ack_modes import Outcome
from broker_adapter.destination import Destination
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack, unpack
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.decisions import Rules
from tests.broker_adapter.engine.driving import WAIT, Inbox, attach, come_to_rest, connect, drained, settle

Q = Destination("q")


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker(EngineSettings(window_messages=10))
    yield broker
    broker.close()


def grouped(number: int, group: str | None, colour: str = "red") -> c.NewMessage:
    envelope = Envelope(Q, BodyKind.TEXT, f"{group} {number}", {"colour": colour}, group_id=group)
    return c.NewMessage(ENVELOPE_FORMAT, pack(envelope), group=c.group_number(group))


def send(broker: Broker, client: int, *groups: str | None) -> None:
    broker.call(c.Enqueue(client, Q, [grouped(number, group) for number, group in enumerate(groups)]), WAIT)


def bodies(handouts: list[c.Handout]) -> list[Any]:
    return [unpack(each.payload).body for each in handouts]


def test_the_number_of_a_group_is_the_same_for_ever() -> None:
    assert c.group_number(None) == c.group_number("") == 0
    assert c.group_number("orders") == 58_143
    assert all(1 <= c.group_number(str(number)) <= c.MAX_GROUP_NUMBER for number in range(1000))


def test_a_group_stays_with_one_consumer(broker: Broker) -> None:
    client = connect(broker)
    _, first = attach(broker, client, Q, 100)
    _, second = attach(broker, client, Q, 100)
    send(broker, client, *"abababab")
    send(broker, client, *"bbbbaa")
    assert {body[0] for body in bodies(first.wait_for(6))} == {"a"}
    assert {body[0] for body in bodies(second.wait_for(8))} == {"b"}


def test_messages_without_a_group_go_to_all_consumers(broker: Broker) -> None:
    client = connect(broker)
    _, first = attach(broker, client, Q, 100)
    _, second = attach(broker, client, Q, 100)
    send(broker, client, *[None] * 10)
    assert len(first.wait_for(5)) == len(second.wait_for(5)) == 5


def test_messages_of_a_group_wait_for_their_consumer_and_others_pass(broker: Broker) -> None:
    client = connect(broker)
    busy, first = attach(broker, client, Q, 1)
    _, second = attach(broker, client, Q, 100)
    send(broker, client, "a", "a", "a", "b")
    assert bodies(first.wait_for(1)) == ["a 0"]
    assert bodies(second.wait_for(1)) == ["b 3"]
    broker.call(c.Credit(busy, 10), WAIT)
    assert bodies(first.wait_for(3)) == ["a 0", "a 1", "a 2"]


def test_the_groups_of_a_consumer_that_goes_are_for_others(broker: Broker) -> None:
    client = connect(broker)
    gone, first = attach(broker, client, Q, 1)
    _, second = attach(broker, client, Q, 100)
    send(broker, client, "a", "a", "a")
    first.wait_for(1)
    assert second.handouts == []
    broker.call(c.Detach(gone, give_back=True), WAIT)
    assert bodies(second.wait_for(3)) == ["a 0", "a 1", "a 2"]


def test_no_more_than_the_window_is_kept_for_the_consumers_of_groups(broker: Broker) -> None:
    client = connect(broker)
    attach(broker, client, Q, 1)
    _, second = attach(broker, client, Q, 100)
    send(broker, client, *["a"] * 11, "b")
    assert bodies(second.wait_for(1)) == ["b 11"]  # ten are kept
    send(broker, client, "a", "b")
    broker.call(c.Statistics(), WAIT)
    assert len(second.handouts) == 1  # an eleventh is not, and nothing passes it


def test_consumers_with_one_selector_have_groups_of_their_own(broker: Broker) -> None:
    client = connect(broker)
    one, first = attach(broker, client, Q, 100, selector="colour = 'red'")
    _, second = attach(broker, client, Q, 100, selector="colour = 'red'")
    send(broker, client, *"ababab")
    by_group = {frozenset(body[0] for body in bodies(inbox.wait_for(3))) for inbox in (first, second)}
    assert by_group == {frozenset("a"), frozenset("b")}
    settle(broker, one, first.handouts, Outcome.ACCEPTED)
    group = bodies(first.handouts)[0][0]
    send(broker, client, group)
    assert len(first.wait_for(4)) == 4
    broker.call(c.Detach(one, give_back=True), WAIT)
    assert bodies(second.wait_for(4))[-1] == f"{group} 0"


def test_groups_last_over_a_restart(tmp_path: Any) -> None:
    for life in range(2):
        broker = Broker(EngineSettings(), str(tmp_path))
        client = connect(broker)
        if life == 0:
            send(broker, client, *"abab")
        else:
            _, first = attach(broker, client, Q)
            _, second = attach(broker, client, Q)
            for number in (1, 2, 1, 2):
                broker.call(c.Credit(number, 1), WAIT)
            assert bodies(first.wait_for(2)) == ["a 0", "a 2"]
            assert bodies(second.wait_for(2)) == ["b 1", "b 3"]
        broker.close()


def test_the_first_exclusive_consumer_gets_everything_until_it_goes(broker: Broker) -> None:
    client = connect(broker)
    _, plain = attach(broker, client, Q, 100)
    master, first = attach(broker, client, Q, 100, exclusive=True)
    _, second = attach(broker, client, Q, 100, exclusive=True)
    send(broker, client, *[None] * 4)
    assert len(first.wait_for(4)) == 4
    broker.call(c.Detach(master), WAIT)
    send(broker, client, *[None] * 3)
    assert len(second.wait_for(3)) == 3
    assert plain.handouts == []


def test_an_exclusive_consumer_without_credit_keeps_the_others_waiting(broker: Broker) -> None:
    client = connect(broker)
    attach(broker, client, Q, 0, exclusive=True)
    _, plain = attach(broker, client, Q, 100)
    send(broker, client, None)
    broker.call(c.Statistics(), WAIT)
    assert plain.handouts == []


_steps = st.one_of(
    st.tuples(st.just("send"), st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=12)),
    st.tuples(st.just("credit"), st.integers(0, 2), st.integers(1, 8)),
    st.tuples(st.just("settle"), st.integers(0, 2), st.sampled_from([Outcome.ACCEPTED, Outcome.RELEASED])),
    st.tuples(st.just("fail"), st.integers(0, 2)),
    st.tuples(st.just("replace"), st.integers(0, 2)),
)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(_steps, max_size=30))
def test_a_group_is_in_one_hand_at_a_time_and_goes_on_where_it_was(steps: list[Any]) -> None:
    delays: dict[str, Any] = {"redelivery_delay_seconds": 0.002, "max_redelivery_delay_seconds": 0.01}
    broker = Broker(EngineSettings(window_messages=10, max_deliveries=None, **delays))
    try:
        client = connect(broker)
        takers: list[tuple[int, Inbox, list[c.Handout]]] = [(*attach(broker, client, Q), []) for _ in range(3)]
        sent: list[str] = []
        accepted: list[str] = []
        for name, *arguments in steps:
            if name == "send":
                messages = [grouped(len(sent) + index, group) for index, group in enumerate(arguments[0])]
                sent += [unpack(message.payload).body for message in messages]
                broker.call(c.Enqueue(client, Q, messages), WAIT)
            elif name == "credit":
                broker.call(c.Credit(takers[arguments[0]][0], arguments[1]), WAIT)
            elif name == "settle":
                number, _, held = takers[arguments[0]]
                if arguments[1] is Outcome.ACCEPTED:
                    accepted += bodies(held)
                settle(broker, number, held, arguments[1])
                held.clear()
            elif name == "fail":  # as the SDK does: what it has prefetched behind it goes back
                number, _, held = takers[arguments[0]]
                settle(broker, number, held[:1], Outcome.FAILED)
                settle(broker, number, held[1:], Outcome.RELEASED)
                held.clear()
            else:
                number, _, _ = takers[arguments[0]]
                broker.call(c.Detach(number, give_back=True), WAIT)
                takers[arguments[0]] = (*attach(broker, client, Q), [])
            broker.call(c.Statistics(), WAIT)
            for _, inbox, held in takers:
                held += inbox.handouts
                inbox.handouts.clear()
            for group in "abc":
                in_hands = [[body for body in bodies(held) if body[0] == group] for _, _, held in takers]
                (in_hand,) = [each for each in in_hands if each] or [[]]
                left = [body for body in sent if body[0] == group and body not in accepted]
                assert in_hand == left[: len(in_hand)]
        broker.call(c.Disconnect(client), WAIT)
        other, left = connect(broker), list[str]()
        while len(accepted) + len(left) < len(sent):  # what waits comes later
            left += bodies(drained(broker, other, Q))
        assert sorted(accepted + left) == sorted(sent)
        for group in "abc":
            assert [each for each in left if each[0] == group] == [
                each for each in sent if each[0] == group and each not in accepted
            ]
    finally:
        broker.close()


@pytest.mark.parametrize("goes_on", [False, True], ids=["kept", "handed out later"])
@pytest.mark.parametrize("selector", [None, "colour = 'red'"])
def test_what_was_handed_out_is_marked_after_a_crash_also_where_it_was_kept_first(
    tmp_path: Path, selector: str | None, goes_on: bool
) -> None:
    """Messages that are kept for the owner of their group are passed by others, so no cursor tells of them."""
    broker = Broker(EngineSettings(window_messages=10), str(tmp_path / "before"))
    client = connect(broker)
    (owner, first), (_, second) = (attach(broker, client, Q, credit, selector=selector) for credit in (1, 5))
    messages = [
        grouped(number, group)._replace(persistent=True) for number, group in enumerate(["g", "g", None, "g", "h"])
    ]
    broker.call(c.Enqueue(client, Q, messages), WAIT)
    settled = 0
    if goes_on:
        settle(broker, owner, first.wait_for(1))
        settled = 1
        broker.call(c.Credit(owner, 1), WAIT)
    come_to_rest(broker)
    in_hand = {*bodies(first.handouts)[settled:], *bodies(second.handouts)}
    assert ("g 1" in in_hand) is goes_on
    shutil.copytree(tmp_path / "before", tmp_path / "after", ignore=shutil.ignore_patterns("lock.mdb"))
    again = Broker(EngineSettings(window_messages=10), str(tmp_path / "after"))
    _, inbox = attach(again, connect(again), Q, 100)
    come_to_rest(again)
    marked = {unpack(each.payload).body for each in inbox.handouts if each.delivery_count}
    assert in_hand <= marked
    assert len(inbox.handouts) == 5 - settled
    again.close()
    broker.close()


# An exclusive consumer that comes to others.


@pytest.mark.parametrize("kept", [3, 10, 50])
def test_an_exclusive_consumer_gets_what_was_kept_for_the_groups_of_others(broker: Broker, kept: int) -> None:
    client, other = connect(broker), connect(broker)
    owner, had = attach(broker, client, Q, 1)
    third, _ = attach(broker, connect(broker), Q, 1)  # two take turns, so that messages of groups are kept
    send(broker, client, *["a"] * (kept + 1))
    had.wait_for(1)
    exclusive, inbox = attach(broker, other, Q, 1000, exclusive=True)
    send(broker, client, *["a"] * kept, None)
    broker.call(c.Credit(owner, 5), WAIT)
    expected = [*(f"a {number}" for number in range(1, kept + 1)), *(f"a {number}" for number in range(kept))]
    assert bodies(inbox.wait_for(2 * kept + 1)) == [*expected, f"None {kept}"]
    broker.call(c.Detach(third), WAIT)
    broker.call(c.Detach(exclusive, give_back=True, failed=False), WAIT)
    broker.call(c.Credit(owner, 1000), WAIT)
    assert bodies(had.wait_for(2 * kept + 2))[1:] == [*expected, f"None {kept}"], "the others are served again"


@pytest.mark.parametrize("ending", [Outcome.FAILED, Outcome.MODIFIED])
def test_an_exclusive_consumer_gets_what_another_failed_on(ending: Outcome) -> None:
    rules = Rules(redelivery_delay_seconds=1)
    other = rules.attach(rules.connect(), Q, 2)
    rules.send(rules.connect(), Q, *[b"x"] * 6)
    rules.do(c.Settle(other, [1], Outcome.FAILED))  # is kept
    rules.do(c.Credit(other, 1))
    rules.do(c.Settle(other, [3], ending))  # is delayed
    assert [position for position, _ in rules.placed[other]] == [1, 2, 1]
    exclusive = rules.attach(rules.connect(), Q, 100, exclusive=True)
    rules.do(c.Settle(other, [2], Outcome.FAILED))
    rules.pass_time(5_000)
    waits_alone = ending is Outcome.FAILED
    assert [position for position, _ in rules.placed[exclusive]] == (
        [3, 4, 5, 6, 2, 1] if waits_alone else [1, 3, 4, 5, 6, 2]
    )


def test_an_exclusive_consumer_with_a_selector_gets_what_was_in_the_groups_of_another() -> None:
    broker = Broker(EngineSettings(window_messages=10))
    try:
        client = connect(broker)
        _, first = attach(broker, client, Q, 1, selector="colour = 'red'")
        send(broker, client, *"aaaa")
        first.wait_for(1)
        _, exclusive = attach(broker, client, Q, 100, selector="colour = 'red'", exclusive=True)
        assert bodies(exclusive.wait_for(3)) == ["a 1", "a 2", "a 3"]
    finally:
        broker.close()


# A client that goes.


@pytest.mark.parametrize("fields", [{"exclusive": True}, {}], ids=["exclusive", "group"])
@pytest.mark.parametrize(("many", "before"), [(0, True), (12_000, True), (12_000, False)])
def test_an_heir_gets_what_a_lost_client_had_ahead_of_the_rest(fields: dict[str, Any], many: int, before: bool) -> None:
    """What it holds may be more than one cycle gives back; its queues wait for that."""
    broker = Broker(EngineSettings())

    def take_many() -> None:
        messages = [grouped(number, None) for number in range(many)]
        broker.call(c.Enqueue(lost, Destination("big"), messages), WAIT)
        attach(broker, lost, Destination("big"), many)[1].wait_for(many)

    try:
        lost, other = connect(broker), connect(broker)
        if before:
            take_many()
        number, mine = attach(broker, lost, Q, 500, **fields)
        if not before:
            take_many()
        send(broker, lost, *["g"] * 2000)
        mine.wait_for(500)
        _, heir = attach(broker, other, Q, 2000, **fields)
        never_delivered = {number: ({499, 500}, range(501, 600))}
        broker.call(c.Disconnect(lost, never_delivered=never_delivered), WAIT)
        handouts = heir.wait_for(2000)
        assert bodies(handouts) == [f"g {index}" for index in range(2000)]
        assert [each.delivery_count for each in handouts[:500]] == [1] * 498 + [0] * 2
    finally:
        broker.close()


def test_a_consumer_that_goes_leaves_what_no_application_saw_ahead_of_the_rest() -> None:
    rules = Rules()
    client = rules.connect()
    first, second = (rules.attach(client, Q, 10, exclusive=True) for _ in range(2))
    rules.send(client, Q, *[b"x"] * 20)
    assert rules.do(c.Detach(first, never_delivered=({9}, range(10, 30)))) == 8
    assert [position for position, _ in rules.placed[second]][:3] == [9, 10, 11]
    rules.do(c.Detach(first, give_back=True, never_delivered=({1, 2},)))
    rules.do(c.Credit(second, 20))
    counts = [delivery.delivery_count for delivery in rules.state.directory.consumers[second].unsettled.values()]
    assert sorted(counts) == [0] * 14 + [1] * 6


# Groups are shared out.


class Working:
    """Consumers that each process what they hold, in order, one message a round."""

    def __init__(self, prefetch: int, **settings: Any) -> None:
        self.rules = Rules(**settings)
        self.client = self.rules.connect()
        self.prefetch = prefetch
        self.held: dict[int, list[tuple[int, int]]] = {}  #: consumer → (position, number)
        self.read: dict[int, int] = {}
        self.group_of: list[int] = [0]  #: by position
        self.done: dict[int, list[int]] = {}  #: group → positions, as they were processed
        self.by: dict[int, set[int]] = {}  #: consumer → groups of which it has processed something
        self.owner: dict[int, int] = {}
        self.moves = 0

    def join(self) -> int:
        consumer = self.rules.attach(self.client, Q, self.prefetch)
        self.held[consumer], self.read[consumer], self.by[consumer] = [], 0, set()
        self.look()
        return consumer

    def send(self, groups: list[int]) -> None:
        self.group_of += groups
        self.rules.do(c.Enqueue(self.client, Q, [c.NewMessage(0, b"x", group=group) for group in groups]))
        self.look()

    def look(self) -> None:
        for consumer, held in self.held.items():
            placed = self.rules.placed.get(consumer, [])
            held += placed[self.read[consumer] :]
            self.read[consumer] = len(placed)

    def work(self, consumer: int, ending: Outcome = Outcome.ACCEPTED) -> None:
        held = self.held[consumer]
        if not held:
            return
        position, number = held.pop(0)
        if ending is Outcome.ACCEPTED:
            group = self.group_of[position]
            self.by[consumer].add(group)
            self.done.setdefault(group, []).append(position)
            self.moves += self.owner.setdefault(group, consumer) != consumer
            self.owner[group] = consumer
            self.rules.do(c.Settle(consumer, [number], ending), c.Credit(consumer, 1))
        else:
            rest = [number for _, number in held]
            held.clear()
            self.rules.do(c.Settle(consumer, [number], ending), c.Settle(consumer, rest, Outcome.RELEASED))
            self.rules.do(c.Credit(consumer, 1 + len(rest)))
        self.look()

    def kill(self, consumer: int) -> None:
        del self.held[consumer]
        self.rules.do(c.Detach(consumer, give_back=True))
        self.look()

    def check_order(self) -> None:
        assert all(positions == sorted(set(positions)) for positions in self.done.values())


def test_consumers_that_join_later_get_their_part_of_twelve_groups() -> None:
    working = Working(prefetch=50)
    consumers = [working.join()]
    working.send([1 + number % 12 for number in range(1200)])
    consumers += [working.join() for _ in range(3)]
    for _ in range(100):  # two buffers of the first one
        for each in consumers:
            working.work(each)
    working.by = {each: set() for each in consumers}
    for _ in range(100):
        for each in consumers:
            working.work(each)
    assert [len(working.by[each]) for each in consumers] == [3, 3, 3, 3]
    working.check_order()


def test_groups_without_much_to_do_are_shared_out_too() -> None:
    working = Working(prefetch=50)
    consumers = [working.join()]
    for round_number in range(5):
        for group in range(1, 13):
            working.send([group])
            for each in consumers:
                working.work(each)
        if not round_number:
            consumers += [working.join() for _ in range(3)]
            working.by = {each: set() for each in consumers}
    assert min(len(working.by[each]) for each in consumers) >= 3
    working.check_order()


@pytest.mark.parametrize("seed", range(5))
def test_order_is_exact_over_thousands_of_moves_with_kills(seed: int) -> None:
    chance = random.Random(seed)
    working = Working(prefetch=8, redelivery_delay_seconds=0.001, max_deliveries=None)
    consumers = [working.join() for _ in range(3)]
    for _ in range(6000):
        step = chance.random()
        waiting = len(working.group_of) - 1 - sum(map(len, working.done.values()))
        if step < 0.2 and waiting < 1500:  # which are in memory
            working.send([chance.randint(1, 12) for _ in range(chance.randint(1, 12))])
        elif step < 0.23 and len(consumers) < 6:
            consumers.append(working.join())
        elif step < 0.26 and len(consumers) > 1:
            working.kill(consumers.pop(chance.randrange(len(consumers))))
        elif step < 0.28:
            working.work(chance.choice(consumers), Outcome.FAILED)
        elif step < 0.3:
            working.rules.pass_time(chance.choice((1, 2, 40_000)))
            working.look()
        else:
            working.work(chance.choice(consumers))
        for held in working.held.values():
            groups: dict[int, list[int]] = {}
            for position, _ in held:
                groups.setdefault(working.group_of[position], []).append(position)
            assert all(each == sorted(each) for each in groups.values())
    while working.rules.depth("q"):
        working.rules.pass_time(40_000)
        working.look()
        for consumer in consumers:
            working.work(consumer)
    assert working.moves > 500
    working.check_order()
    assert sum(map(len, working.done.values())) == len(working.group_of) - 1


def test_what_moves_to_a_consumer_that_goes_before_stays_where_it_is() -> None:
    working = Working(prefetch=20)
    first = working.join()
    working.send([1, 2, 3, 4] * 5)
    second = working.join()
    working.send([1, 2, 3, 4])
    working.rules.do(c.Credit(first, 4))
    working.kill(second)
    third = working.join()
    for _ in range(30):
        working.work(first)
        working.work(third)
    working.check_order()
    assert working.rules.depth("q") == 0
