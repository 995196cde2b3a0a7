"""Blocked sends and commits go on when there is room, or are refused when their time is over."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.rules.wait_queues import BlockedSend
from broker_adapter.engine.store.room import Room
from tests.broker_adapter.engine.decisions import FULL, FULL_QUEUE, LARGE, Q, Rules, sent


class Large:
    """A commit, or a batch to publish, of eight messages for a queue that has five, and takes ten."""

    def __init__(self, kind: str) -> None:
        self.rules = Rules(max_queue_messages=10, blocked_send_timeout_seconds=3)
        self.answers: dict[str, Any] = {}
        rules = self.rules
        rules.send(rules.connect(), Q, *[b"x"] * 5)
        self.client = rules.connect()
        eight = [sent(number, persistent=True)._replace(identity=None) for number in range(8)]
        if kind == "commit":
            large: Any = c.Commit(self.client, None, [(Q, each) for each in eight], [])
        else:
            rules.do(c.Stage("g/1/0", Q, 0, eight))
            large = c.Publish("g", 1, ["g/1/0"])
        self.decide(large, "large")
        rules.pass_time(1000)
        self.decide(c.Enqueue(rules.connect(), Q, [c.NewMessage(0, b"small")]), "small")
        assert self.answers == {}

    def decide(self, command: Any, name: str = "") -> None:
        effects = self.rules.state.decide(
            [command._replace(reply=partial(self.answers.__setitem__, name))], self.rules.now_ms
        )
        for reply, result in effects.replies:
            reply(result)


@pytest.mark.parametrize("kind", ["commit", "publication"])
def test_what_is_small_goes_on_when_the_time_of_something_large_is_over(kind: str) -> None:
    large = Large(kind)
    for reply, result in large.rules.pass_time(2000).replies:
        reply(result)
    assert "is full" in str(large.answers.pop("large"))
    assert large.answers == {"small": None}


@pytest.mark.parametrize("kind", ["commit", "publication"])
def test_what_is_small_goes_on_when_something_large_is_given_up(kind: str) -> None:
    large = Large(kind)
    large.decide(c.Disconnect(large.client) if kind == "commit" else c.Discard(["g/1/0"]), "end")
    assert ("was closed" if kind == "commit" else "does not exist") in str(large.answers.pop("large"))
    large.answers.pop("end")
    assert large.answers == {"small": None}


@pytest.mark.parametrize("ends", ["with its client", "because there is no room", "done"])
def test_a_queue_whose_last_deliveries_a_waiting_commit_had_goes_on_when_its_client_is_gone(ends: str) -> None:
    """The client holds more than one cycle gives back, and is gone in parts: ``Inbox.take`` does it so."""
    rules = Rules(max_queue_messages=3)
    leaving, other = rules.connect(), rules.connect()
    big = queue("big")
    for destination in (big, FULL_QUEUE):
        rules.send(other, destination, b"1", b"2", b"3")
    rules.send(other, Q, b"x", b"y")
    rules.attach(leaving, big, 3)
    consumer = rules.attach(leaving, Q, 1)
    told: list[Any] = []
    commit_id = c.CommitId("s", 1)
    commit = c.Commit(leaving, commit_id, [(FULL_QUEUE, c.NewMessage(0, b"z"))], [(consumer, 1, Outcome.ACCEPTED)])
    rules._decide(commit._replace(reply=told.append))
    rules.do(c.GiveBack(leaving, 3))
    if ends == "done":
        rules.attach(other, FULL_QUEUE, 1, presettled=True)
    elif ends == "because there is no room":
        rules.pass_time(60_000)
    rules.do(c.Disconnect(leaving))
    heir = rules.attach(other, Q, 10)
    assert len(rules.delivered[heir]) == (1 if ends == "done" else 2)


def test_a_transaction_that_makes_room_does_not_wait_behind_one_that_wants_more_than_there_is() -> None:
    rules = Rules()
    clients = [rules.connect() for _ in range(3)]
    answers: dict[int, Any] = {}
    for _ in clients:
        rules.send(clients[0], Q, LARGE)
    rules.state.admission.room = Room(0.5, 0, 4096, "the store is full")
    rules.state.admission.blocked_because = FULL
    for index, client in enumerate(clients):
        consumer = rules.attach(client, Q, credit=1)
        settled = [
            (consumer, number, Outcome.ACCEPTED) for number in rules.state.directory.consumers[consumer].unsettled
        ]
        sends = [(queue("other"), c.NewMessage(0, LARGE))] * (1 if index else 9)
        answer = partial(answers.__setitem__, index)
        rules.state.decide([c.Commit(client, c.CommitId(f"s{index}", 1), sends, settled, answer)], rules.now_ms)
    assert not answers
    rules.state.admission.room = Room(0.5, 0, 4096, "the store is full", spare_single_pages=60.0, spare_run_pages=60.0)
    for reply, result in rules.pass_time(1).replies:
        reply(result)
    assert answers == {1: None, 2: None}


def test_so_many_transactions_that_make_room_are_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Rules()
    client = rules.connect()
    for _ in range(100):
        rules.send(client, Q, LARGE)
    rules.state.admission.room = Room(0.5, 0, 4096, "the store is full")
    rules.state.admission.blocked_because = FULL
    consumer = rules.attach(client, Q, credit=100)
    for index, number in enumerate(list(rules.state.directory.consumers[consumer].unsettled)):
        sends = [(queue(f"other {index}"), c.NewMessage(0, LARGE))] * 9
        commit = c.Commit(client, c.CommitId(f"s{index}", 1), sends, [(consumer, number, Outcome.ACCEPTED)])
        assert rules.do(commit) == "held"
    tried: list[BlockedSend] = []
    plain = rules.state.resumption._retry
    monkeypatch.setattr(
        rules.state.resumption, "_retry", lambda blocked, *rest: (tried.append(blocked), plain(blocked, *rest))[1]
    )
    rules.pass_time(1)
    assert not tried, "there is no more room than before"
    rules.state.admission.room = Room(0.75, 0, 4096, "the store is full")
    rules.pass_time(1)
    assert len(tried) == 16
    waiting = [each.arrival for each in rules.state.wait_queues.making_room[0].wait_queue]
    assert waiting == sorted(waiting)
    assert len(waiting) == 100


class Tries:
    """Counts the commits and publications that are decided on."""

    def __init__(self, rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commands: list[c.Command] = []
        resumption = rules.state.resumption
        for part, name in ((resumption._transactions, "commit"), (resumption._staged_batches, "try_to_publish")):
            monkeypatch.setattr(part, name, partial(self._count, getattr(part, name)))

    def _count(self, plain: Any, blocked: BlockedSend, now_ms: int, effects: Any) -> bool:
        self.commands.append(blocked.command)
        return bool(plain(blocked, now_ms, effects))


def small(count: int) -> list[c.NewMessage]:
    return [c.NewMessage(0, b"y", persistent=False)] * count


def decide(rules: Rules, command: Any, answers: list[Any]) -> None:
    for reply, result in rules.state.decide([command._replace(reply=answers.append)], rules.now_ms).replies:
        reply(result)


def passed(rules: Rules, ms: int) -> None:
    for reply, result in rules.pass_time(ms).replies:
        reply(result)


@pytest.mark.parametrize("place", ["engine-wide", "making room"])
def test_a_large_commit_that_waits_is_tried_for_a_part_of_the_time_and_goes_on_by_itself(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = Rules()
    client = rules.connect()
    for _ in range(30):
        rules.send(client, Q, b"x")
    consumer = rules.attach(client, Q, credit=30)
    rules.state.admission.volatile_room = 100_000
    settled = [(consumer, 30, Outcome.ACCEPTED)] if place == "making room" else []
    answers: list[Any] = []
    decide(
        rules, c.Commit(client, c.CommitId("s", 1), [(queue("other"), each) for each in small(1000)], settled), answers
    )
    blocked = next(iter(rules.state.wait_queues))
    tries = Tries(rules, monkeypatch)

    def free_a_little(number: int) -> None:
        rules.state.admission.volatile_room = 100_000 + number
        rules.do(c.Settle(consumer, [number], Outcome.ACCEPTED))

    for number in range(1, 11):
        free_a_little(number)
    assert len(tries.commands) <= 1, "in one millisecond"
    assert blocked.deadline_ms > (rules.state.next_deadline_ms() or 0) > rules.state.time.elapsed_ms
    # There is room now, and nothing else happens.
    for number in range(11, 30):
        free_a_little(number)
    rules.state.admission.volatile_room = None
    assert not answers
    passed(rules, (rules.state.next_deadline_ms() or 0) - rules.state.time.elapsed_ms)
    assert answers == [None]
    assert rules.state.next_deadline_ms() is None


@pytest.mark.parametrize("limit", ["messages", "bytes"])
def test_a_commit_for_a_full_queue_is_tried_when_the_queue_has_room_for_all_of_it(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: dict[str, Any] = {"max_queue_messages": 1010} if limit == "messages" else {"max_queue_bytes": 1010}
    rules = Rules(**limits)
    client = rules.connect()
    rules.send(client, Q, *[b"x"] * 30)
    consumer = rules.attach(client, Q, credit=30)
    answers: list[Any] = []
    sends = [(each, message) for message in small(500) for each in (Q, queue("other"))]
    decide(rules, c.Commit(client, c.CommitId("s", 1), [*sends, *[(Q, small(1)[0])] * 500], []), answers)
    tries = Tries(rules, monkeypatch)
    for number in range(1, 20):
        rules.do(c.Settle(consumer, [number], Outcome.ACCEPTED))
        assert not tries.commands
    assert not answers
    decide(rules, c.Settle(consumer, [20], Outcome.ACCEPTED), [])
    assert len(tries.commands) == 1
    assert answers == [None]


class Greedy:
    """A connection whose large commit waits for more than the engine has, and is tried whenever there is more."""

    def __init__(self, rules: Rules, messages: int = 50_000) -> None:
        self.rules = rules
        self.client = rules.connect()
        self.answers: list[Any] = []
        rules.state.admission.volatile_room = 10_000
        sends = [(queue("greedy"), each) for each in small(messages)]
        decide(rules, c.Commit(self.client, c.CommitId("greedy", 1), sends, []), self.answers)
        self.room = 10_000

    def busy(self, ms: int) -> None:
        """For so long something is freed each millisecond, and never enough."""
        for _ in range(ms):
            self.room += 1
            self.rules.state.admission.volatile_room = self.room
            passed(self.rules, 1)


@pytest.mark.parametrize(("messages", "most_ms"), [(10, 2), (1_900, 2_002)])
def test_a_commit_whose_queue_has_room_does_not_wait_for_a_larger_one_that_is_tried_in_vain(
    messages: int, most_ms: int
) -> None:
    """A large one waits for its turn, two pauses at most, each a second for 50,000 messages; a small one for none."""
    rules = Rules(max_queue_messages=2_000)
    other = rules.connect()
    rules.send(other, Q, *[b"x"] * 2_000)
    consumer = rules.attach(other, Q, credit=2_000)
    answers: list[Any] = []
    persistent = [(Q, c.NewMessage(0, b"y"))] * messages
    decide(rules, c.Commit(other, c.CommitId("s", 1), persistent, []), answers)
    greedy = Greedy(rules)
    greedy.busy(50)
    decide(rules, c.Settle(consumer, list(range(1, 2_000)), Outcome.ACCEPTED), [])
    assert rules.depth("q") == (1 + messages if answers else 1)
    waited = 0
    while not answers:
        greedy.busy(1)
        waited += 1
        assert waited <= most_ms
    assert answers == [None]
    assert not greedy.answers


def test_what_is_refused_at_its_deadline_blocks_no_other_send() -> None:
    rules = Rules(max_queue_messages=10, blocked_send_timeout_seconds=1)
    rules.send(rules.connect(), Q, *[b"x"] * 10)
    told: list[Any] = []
    for number in range(40):
        sends = [(queue(f"other {each}"), message) for each, message in enumerate(small(400))]
        commit = c.Commit(rules.connect(), c.CommitId(f"s{number}", 1), [*sends, (Q, small(1)[0])], [])
        decide(rules, commit, told)
    passed(rules, 1_000)
    assert len(told) == 40
    assert rules.state.next_deadline_ms() is None
    answers: list[Any] = []
    rules.state.admission.volatile_room = 1
    sends = [(queue(f"other {each}"), message) for each, message in enumerate(small(300))]
    decide(rules, c.Commit(rules.connect(), c.CommitId("s", 1), sends, []), answers)
    assert not answers
    rules.state.admission.volatile_room = None
    passed(rules, 1)
    assert answers == [None]


def test_a_publication_that_waits_is_tried_for_a_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Rules(max_queue_messages=2_010)
    client = rules.connect()
    rules.send(client, Q, *[b"x"] * 1_000)
    consumer = rules.attach(client, Q, credit=1_000)
    names = [f"g/1/{number}" for number in range(2_000)]
    for name in names:
        rules.do(c.Stage(name, Q, 0, [c.NewMessage(0, b"y")]))
    answers: list[Any] = []
    decide(rules, c.Publish("g", 1, names), answers)
    tries = Tries(rules, monkeypatch)
    for number in range(1, 500):
        rules.do(c.Settle(consumer, [number], Outcome.ACCEPTED))
    assert len(tries.commands) <= 2, "in one millisecond"
    decide(rules, c.Settle(consumer, list(range(500, 1_001)), Outcome.ACCEPTED), [])
    passed(rules, (rules.state.next_deadline_ms() or 0) - rules.state.time.elapsed_ms)
    assert answers == [True]


@pytest.mark.parametrize("end", ["disconnect", "deadline"])
def test_nothing_is_due_when_what_was_put_off_has_ended(end: str) -> None:
    rules = Rules(blocked_send_timeout_seconds=1)
    greedy = Greedy(rules, 5_000)
    greedy.busy(20)
    assert any(each.put_off for each in rules.state.resumption._pauses)
    if end == "disconnect":
        rules.do(c.Disconnect(greedy.client))
    else:
        passed(rules, 1_000)
    assert len(greedy.answers) == 1
    assert rules.state.next_deadline_ms() is None
    # What waits next is tried as if nothing had been before.
    rules.state.admission.volatile_room = 10
    answers: list[Any] = []
    decide(rules, c.Enqueue(rules.connect(), Q, [c.NewMessage(0, b"x" * 100, persistent=False)]), answers)
    rules.state.admission.volatile_room = 1_000
    passed(rules, 1)
    assert answers == [None]


def making_room(rules: Rules, count: int, *, large: int = 0) -> list[Any]:
    """So many commits of clients that wait for the disk and make room, the first ones large; returns the answers."""
    client = rules.connect()
    rules.send(client, Q, *[b"x"] * count)
    consumer = rules.attach(client, Q, credit=count)
    answers: list[Any] = []
    rules.state.admission.room = Room(0, 0, 4096, "the store is full")
    for index in range(count):
        sends = [(queue(f"to {index}"), c.NewMessage(0, b"z" * 3_000))] * (500 if index < large else 1)
        settled = [(consumer, index + 1, Outcome.ACCEPTED)]
        decide(rules, c.Commit(rules.connect(), None, sends, settled), answers)
    assert answers == []
    return answers


def test_all_commits_that_make_room_go_on_when_there_is_plenty() -> None:
    rules = Rules()
    answers = making_room(rules, 300)
    rules.state.admission.room = None
    passed(rules, 1)
    while rules.state.wait_queues.count:
        assert (rules.state.next_deadline_ms() or 0) <= rules.state.time.elapsed_ms, "another decision is due at once"
        passed(rules, 0)
    assert answers == [None] * 300
    assert rules.state.next_deadline_ms() is None


def test_small_commits_that_make_room_do_not_wait_for_the_pause_of_large_ones() -> None:
    rules = Rules()
    answers = making_room(rules, 10, large=3)
    rules.state.resumption._pauses[1].extend(rules.state.time.elapsed_ms, 1_000)
    rules.state.admission.room = None
    passed(rules, 1)
    assert answers == [None] * 7
    passed(rules, (rules.state.next_deadline_ms() or 0) - rules.state.time.elapsed_ms)
    assert answers == [None] * 10


@pytest.mark.parametrize("order", ["the full queue first", "the other one first"])
def test_room_that_a_commit_makes_which_had_to_wait_itself_is_taken_at_once(order: str) -> None:
    rules = Rules(max_queue_messages=5)
    forwarder, producer, other = (rules.connect() for _ in range(3))
    for each in (Q, FULL_QUEUE) if order == "the full queue first" else (FULL_QUEUE, Q):
        rules.send(forwarder, each, *[b"x"] * 5)
    source, target = rules.attach(forwarder, Q, 5), rules.attach(other, FULL_QUEUE, 5)
    taken, ended = ([number for number, _ in rules.delivered[each]] for each in (source, target))
    sent, committed = list[Any](), list[Any]()
    decide(rules, c.Enqueue(producer, Q, [c.NewMessage(0, b"s")]), sent)
    settled = [(source, taken[0], Outcome.ACCEPTED)]
    decide(rules, c.Commit(forwarder, None, [(FULL_QUEUE, c.NewMessage(0, b"z"))], settled), committed)
    assert (sent, committed) == ([], [])
    # The full queue changes as well, ahead of the room that the commit makes in it.
    both = [c.Credit(source, 1), c.Settle(target, ended, Outcome.ACCEPTED)]
    for reply, result in rules.state.decide(both, rules.now_ms).replies:
        reply(result)
    assert (sent, committed) == ([None], [None])
    assert not rules.state.has_more


def test_a_commit_whose_deliveries_are_gone_blocks_no_other_send() -> None:
    """It waits for more room than there is, and its consumer has gone: smaller sends behind it may go on."""
    rules = Rules(max_queue_messages=10)
    client, other = rules.connect(), rules.connect()
    rules.send(client, queue("in"), b"x")
    rules.send(client, Q, *[b"x"] * 10)
    source, taker = rules.attach(client, queue("in"), 1), rules.attach(other, Q, 10)
    committed, sent = list[Any](), list[Any]()
    settled = [(source, rules.delivered[source][0][0], Outcome.ACCEPTED)]
    decide(rules, c.Commit(client, None, [(Q, c.NewMessage(0, b"y"))] * 5, settled), committed)
    decide(rules, c.Enqueue(other, Q, [c.NewMessage(0, b"small")]), sent)
    decide(rules, c.Detach(source, give_back=True), [])
    for reply, result in rules.state.decide([c.Settle(taker, [1], Outcome.ACCEPTED)], rules.now_ms).replies:
        reply(result)
    assert "not held any more" in str(committed)
    assert sent == [None]


def test_commits_that_make_room_go_on_behind_one_that_needs_more_than_there_is() -> None:
    rules = Rules(blocked_send_timeout_seconds=60)
    client = rules.connect()
    rules.send(client, Q, *[b"x"] * 300)
    consumer = rules.attach(client, Q, credit=300)
    answers: list[Any] = []
    rules.state.admission.volatile_room = 0
    for index in range(300):
        body = b"z" * (100 if index else 1_000_000)
        sends = [(queue(f"to {index}"), c.NewMessage(0, body, persistent=False))]
        settled = [(consumer, index + 1, Outcome.ACCEPTED)]
        decide(rules, c.Commit(rules.connect(), None, sends, settled), answers)
    assert answers == []
    rules.state.admission.volatile_room = 500_000
    passed(rules, 1)
    while (rules.state.next_deadline_ms() or 0) <= rules.state.time.elapsed_ms:
        passed(rules, 0)
    assert answers == [None] * 299


def test_commits_that_make_room_are_examined_when_those_ahead_of_them_are_given_up() -> None:
    rules = Rules(blocked_send_timeout_seconds=60)
    client, leaving = rules.connect(), rules.connect()
    rules.send(client, Q, *[b"x"] * 40)
    consumer, other = rules.attach(leaving, Q, credit=20), rules.attach(client, Q, credit=20)
    answers: list[Any] = []
    rules.state.admission.volatile_room = 0
    for index in range(40):
        holder, owner, body = (consumer, leaving, b"z" * 1_000_000) if index < 20 else (other, client, b"z" * 100)
        number = rules.delivered[holder][index % 20][0]
        sends = [(queue(f"to {index}"), c.NewMessage(0, body, persistent=False))]
        decide(rules, c.Commit(owner, c.CommitId(f"s{index}", 1), sends, [(holder, number, Outcome.ACCEPTED)]), answers)
    rules.state.admission.volatile_room = 500_000
    passed(rules, 1)
    assert answers == [], "so many were tried without success that those behind them were not examined"
    decide(rules, c.Disconnect(leaving), [])
    passed(rules, 1)
    assert answers.count(None) == 20


def commit_of(rules: Rules, consumer: int, index: int, size: int, answers: list[Any], *, messages: int = 1) -> None:
    """Commit of so many bytes, in so many messages, which settles a delivery of the consumer."""
    sends = [(queue(f"to {index}"), c.NewMessage(0, b"z" * (size // messages), persistent=False))] * messages
    decide(rules, c.Commit(rules.connect(), None, sends, [(consumer, index + 1, Outcome.ACCEPTED)]), answers)


def five_in_hand(rules: Rules) -> int:
    """A consumer that holds five messages."""
    client = rules.connect()
    rules.send(client, Q, *[b"x"] * 5)
    return rules.attach(client, Q, credit=5)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_commit_goes_on_that_needs_less_than_there_was_when_another_one_was_tried(is_given_up: bool) -> None:
    rules = Rules(blocked_send_timeout_seconds=60)
    consumer = five_in_hand(rules)
    large, less = list[Any](), list[Any]()
    rules.state.admission.volatile_room = 800_000
    commit_of(rules, consumer, 0, 900_000, large)
    passed(rules, 10)
    if is_given_up:
        rules.do(c.Disconnect(next(iter(rules.state.wait_queues)).command.client))
    rules.state.admission.volatile_room = 100_000
    commit_of(rules, consumer, 1, 300_000, less)
    passed(rules, 10)
    assert (len(large), less) == (is_given_up, [])
    rules.state.admission.volatile_room = 500_000
    passed(rules, 1)
    assert less == [None]


@pytest.mark.parametrize("grows", [False, True])
def test_commits_that_cannot_be_done_keep_no_other_one_from_being_tried(grows: bool) -> None:
    """Their tries without success cost as much as there is for them, also if there is a little more room each time."""
    rules = Rules(blocked_send_timeout_seconds=60)
    consumer = five_in_hand(rules)
    hopeless, other = list[Any](), list[Any]()
    rules.state.admission.volatile_room = 0
    for index in range(4):
        commit_of(rules, consumer, index, 960_000, hopeless, messages=93)
    commit_of(rules, consumer, 4, 300_000, other)
    for number in range(20):
        rules.state.admission.volatile_room = 900_000 + number * grows
        passed(rules, 1 if not number else max(1, (rules.state.next_deadline_ms() or 0) - rules.state.time.elapsed_ms))
        if other:
            break
    assert other == [None]
    assert hopeless == []


def test_small_commits_that_make_room_go_on_behind_many_large_ones() -> None:
    rules = Rules(blocked_send_timeout_seconds=60)
    answers = making_room(rules, 110, large=100)
    rules.state.resumption._pauses[1].extend(rules.state.time.elapsed_ms, 1_000)
    rules.state.admission.room = None
    passed(rules, 1)
    assert answers == [None] * 10


def test_nothing_is_due_when_all_commits_that_make_room_were_tried_in_vain() -> None:
    rules = Rules(blocked_send_timeout_seconds=60)
    making_room(rules, 200)
    rules.state.admission.room = Room(0.01, 0, 4096, "the store is full")
    tries = 0
    while (rules.state.next_deadline_ms() or 0) < rules.state.time.elapsed_ms + 1_000:
        passed(rules, max(0, (rules.state.next_deadline_ms() or 0) - rules.state.time.elapsed_ms))
        tries += 1
        assert tries < 30
    assert rules.state.wait_queues.count == 200
