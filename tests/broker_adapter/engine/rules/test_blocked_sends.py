"""Blocked sends stay in order, and none of them is forgotten; commits do not wait for room."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine.broker_state import BrokerState
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.selection import SMALL_BYTES
from broker_adapter.engine.rules.blocked_sends import BlockedSend
from broker_adapter.envelope import Identity
from broker_adapter.errors import LIMIT_REACHED, ResourceAllocationException, TransactionRolledBackException
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.decisions import FULL, Q, Rules, Sender, sent


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
    assert sum(each.blocked_sends for each in rules.do(c.Statistics()).queues) in (0, 1)


def test_a_held_send_is_refused_when_its_time_is_over() -> None:
    rules = Rules(max_queue_messages=1, blocked_send_timeout_seconds=5)
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
    rules = Rules(max_queue_messages=1, blocked_send_timeout_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"1", identity=Identity("p", 1, 1))
    rules.send(client, Q, b"2", identity=Identity("p", 1, 2))
    rules.pass_time(1000)
    consumer = rules.attach(client, Q, 1)
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    assert rules.send(client, Q, b"2", identity=Identity("p", 1, 2)) is None
    assert rules.depth("q") == 1


def test_a_send_that_is_repeated_is_there_although_its_queue_is_full_with_it() -> None:
    rules = Rules(max_queue_messages=1, blocked_send_timeout_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"1", identity=Identity("p", 1, 1))
    assert rules.send(client, Q, b"1", identity=Identity("p", 1, 1)) is None
    assert rules.send(client, Q, b"2", identity=Identity("p", 1, 2)) == "held"
    assert rules.send(client, Q, b"1", identity=Identity("p", 1, 1)) is None, "it waits behind nothing"
    told: list[Any] = []
    both = [c.NewMessage(0, b"1", identity=Identity("p", 1, 1)), c.NewMessage(0, b"3", identity=Identity("p", 1, 3))]
    rules.state.decide([c.Enqueue(client, Q, both, told.append)], rules.now_ms)
    answers = [errors for reply, errors in rules.pass_time(1000).replies if reply == told.append]
    assert [[error is None for error in errors] for errors in answers] == [[True, False]]
    assert rules.depth("q") == 1
    assert rules.state.totals.duplicates_rejected >= 2


def test_no_more_sends_are_held_than_the_limit() -> None:
    rules = Rules(max_queue_messages=1, max_blocked_sends=2)
    client = rules.connect()
    rules.send(client, Q, b"1")
    assert [rules.send(client, Q, b"x"), rules.send(client, Q, b"x")] == ["held", "held"]
    (error,) = rules.send(client, Q, b"x")
    assert "max_blocked_sends" in str(error)


def test_what_could_go_on_does_not_overtake_what_waits_of_the_same_producer() -> None:
    """Were the second one taken first, the first would count as one that is there already, and be dropped."""
    sender = Sender(Rules())
    sender.rules.state.admission.blocked_because = FULL
    sender.send()
    sender.send(persistent=False)
    assert sender.answers == {}
    sender.rules.state.admission.blocked_because = None
    sender.pass_time()
    assert sender.answers == {1: None, 2: None}
    assert (sender.rejected, sender.rules.depth("q")) == (0, 2)


def test_a_persistent_message_does_not_overtake_a_volatile_one_that_waits_for_memory() -> None:
    sender = Sender(Rules())
    sender.rules.state.admission.volatile_room = 0
    sender.send(persistent=False)
    sender.send()
    sender.rules.state.admission.volatile_room = None
    sender.pass_time()
    assert sender.answers == {1: None, 2: None}
    assert sender.rejected == 0


def test_order_holds_where_one_waits_first_for_a_queue_and_then_for_the_disk() -> None:
    sender = Sender(Rules(max_queue_messages=1))
    rules = sender.rules
    consumer = rules.attach(sender.client, Q, 10)
    sender.send()
    sender.send()
    sender.send(persistent=False)
    rules.state.admission.blocked_because = FULL
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))  # there is room in the queue, and none on the disk
    sender.pass_time()
    assert sender.answers == {1: None}
    rules.state.admission.blocked_because = None
    sender.pass_time()
    assert sender.answers == {1: None, 2: None}
    rules.do(c.Settle(consumer, [2], Outcome.ACCEPTED))
    sender.pass_time()
    assert sender.answers == {1: None, 2: None, 3: None}
    assert sender.rejected == 0


def test_a_send_that_has_to_wait_elsewhere_blocks_no_other_one() -> None:
    rules = Rules(max_queue_messages=1)
    first, second = Sender(rules), Sender(rules)
    consumer = rules.attach(first.client, Q, 10)
    first.send()
    first.send()
    second.send(persistent=False)
    rules.state.admission.blocked_because = FULL
    first._decide(c.Settle(consumer, [1], Outcome.ACCEPTED))
    assert (first.answers, second.answers) == ({1: None}, {1: None})


def test_sends_that_wait_behind_a_refused_one_have_their_own_time_out() -> None:
    sender = Sender(Rules(blocked_send_timeout_seconds=5))
    sender.rules.state.admission.blocked_because = FULL
    sender.send()
    sender.pass_time(2000)
    sender.send()
    sender.send(persistent=False)
    sender.pass_time(3000)
    assert "held back for 5.0 s" in str(sender.answers.pop(1)[0])
    assert sender.answers == {}, "the second one waits for the disk, and the third one for the second"
    sender.pass_time(2000)
    assert "held back for 5.0 s" in str(sender.answers.pop(2)[0])
    assert set(sender.answers) == {3}
    assert sender.rules.state.next_deadline_ms() is None


def test_a_connection_that_waits_with_many_is_no_nearer_than_its_first() -> None:
    rules = Rules(max_queue_messages=1)
    many, one = Sender(rules), Sender(rules)
    consumer = rules.attach(many.client, Q, 10)
    for _ in range(3):
        many.send()
    one.send()
    for number in range(1, 4):
        rules.do(c.Settle(consumer, [number], Outcome.ACCEPTED))
        many.pass_time()
    assert (many.answers, one.answers) == ({1: None, 2: None, 3: None}, {1: None}), "in the order of arrival"


def test_one_send_that_waits_is_singular_in_the_error() -> None:
    rules = Rules(max_blocked_sends=1)
    sender = Sender(rules)
    rules.state.admission.blocked_because = FULL
    for _ in range(2):
        sender.send()
    assert "1 send waits already (the limit max_blocked_sends)" in str(sender.answers.pop(2)[0])


def test_followers_count_towards_the_limit_and_go_with_their_queue_and_their_connection() -> None:
    rules = Rules(max_blocked_sends=3)
    sender = Sender(rules)
    rules.state.admission.blocked_because = FULL
    for _ in range(4):
        sender.send()
    assert "3 sends wait already (the limit max_blocked_sends)" in str(sender.answers.pop(4)[0])
    assert len(rules.state.waiting()) == 3
    sender._decide(c.Disconnect(sender.client))
    assert [type(sender.answers[number][0]).__name__ for number in (1, 2, 3)] == ["IllegalStateException"] * 3
    assert rules.state.waiting() == []
    other = Sender(rules)
    for _ in range(3):
        other.send()
    assert other.answers == {}


def test_sends_that_wait_for_a_queue_that_is_deleted_are_refused() -> None:
    rules = Rules(max_queue_messages=1)
    owner = rules.connect()
    temporary = rules.do(c.DeclareTemporary(owner, queue("x").kind.TEMPORARY_QUEUE))
    sender = Sender(rules, temporary)
    for _ in range(3):
        sender.send()
    assert sum(each.blocked_sends for each in rules.do(c.Statistics()).queues) == 2
    sender._decide(c.DeleteTemporary(owner, temporary))
    assert ["was deleted" in str(sender.answers[number][0]) for number in (2, 3)] == [True, True]
    assert rules.state.waiting() == []


class Slow:
    """Subscriptions with selectors that take longer than a decision may, until ``go_on``."""

    def __init__(self, **limits: Any) -> None:
        self.rules = Rules(**limits)
        self.news = topic("news")
        self.client = self.rules.connect()
        self.answers: dict[str, Any] = {}
        for number in range(3):
            subscription = Subscription(f"s{number}", durable=True, shared=True, of_client=False)
            self.rules.attach(self.rules.connect(), self.news, subscription=subscription, selector="price IS NULL")
        self.rules.state.matching.new_slice = lambda: lambda: True

    def decide(self, command: Any, name: str) -> None:
        self.replies(
            self.rules.state.decide(
                [command._replace(reply=partial(self.answers.__setitem__, name))], self.rules.now_ms
            ).replies
        )

    def replies(self, replies: Any) -> None:
        for reply, result in replies:
            reply(result)

    def send(self, name: str) -> None:
        self.decide(c.Enqueue(self.client, self.news, [c.NewMessage(0, b"x" * (SMALL_BYTES + 1))] * 10), name)

    def commit(self, name: str, number: int, *to: Destination, session: str = "session") -> None:
        sends = [(each, c.NewMessage(0, b"x" * (SMALL_BYTES + 1))) for each in to or [self.news] * 10]
        self.decide(c.Commit(self.client, c.CommitId(session, number), sends, []), name)

    def pass_time(self, ms: int = 1) -> None:
        self.replies(self.rules.pass_time(ms).replies)

    def go_on(self) -> None:
        self.rules.state.matching.new_slice = lambda: lambda: False
        self.pass_time()


def test_a_commit_that_finds_no_room_is_refused_at_once_and_leaves_nothing() -> None:
    rules = Rules(max_queue_messages=1)
    sender = Sender(rules)
    rules.send(sender.client, Q, b"there")
    commit = c.Commit(sender.client, c.CommitId("session", 1), [(queue("made"), sent(1)), (Q, sent(2))], [])
    with pytest.raises(TransactionRolledBackException) as raised:
        rules.do(commit)
    error = raised.value
    assert isinstance(error.__cause__, ResourceAllocationException)
    assert error.error_code == LIMIT_REACHED
    assert "max_queue_messages" in str(error)
    assert "a commit does not wait for room: do the transaction again later" in str(error)
    assert rules.state.totals.refused == 1
    assert [each.name for each in rules.do(c.Statistics()).queues if each.name == "made"] == []
    rules.attach(sender.client, Q, 10, presettled=True)
    assert rules.do(commit._replace(commit_id=c.CommitId("session", 2))) is None
    assert rules.state.totals.duplicates_rejected == 0


def test_a_commit_that_would_overtake_a_blocked_send_is_refused_at_once() -> None:
    rules = Rules(max_queue_messages=4, blocked_send_timeout_seconds=100)
    sender = Sender(rules)
    rules.state.admission.blocked_because = FULL
    sender.send()
    rules.state.admission.blocked_because = None
    commit = c.Commit(sender.client, None, [(queue("other"), sent(100)), (Q, sent(101))], [])
    with pytest.raises(TransactionRolledBackException, match=FULL):
        rules.do(commit)
    sender.pass_time()
    assert sender.answers == {1: None}
    assert rules.do(commit) is None
    assert (rules.depth("q"), rules.depth("other"), rules.state.totals.refused) == (2, 1, 1)


def test_a_commit_of_another_connection_is_not_behind_a_blocked_send() -> None:
    rules = Rules()
    sender = Sender(rules)
    rules.state.admission.volatile_room = 0
    sender.send(persistent=False)
    assert rules.do(c.Commit(rules.connect(), None, [(Q, sent(1, persistent=True))], [])) is None
    assert sender.answers == {}


def test_a_session_that_commits_again_gives_up_the_commit_that_still_waits_for_selectors() -> None:
    slow = Slow()
    slow.commit("first", 1)
    slow.commit("of another", 1, session="other")
    assert slow.answers == {}
    slow.commit("second", 2, Q)
    assert "the session made a further commit" in str(slow.answers.pop("first"))
    assert slow.answers == {"second": None}
    slow.go_on()
    assert slow.answers == {"second": None, "of another": None}
    assert slow.rules.state.waiting() == []


def test_a_commit_behind_a_send_that_waits_for_selectors_waits_as_well() -> None:
    slow = Slow(blocked_send_timeout_seconds=1)
    slow.send("send")
    slow.commit("commit", 1)
    slow.pass_time(5_000)
    assert slow.answers == {}, "nothing is refused for the time that selectors take"
    slow.go_on()
    assert list(slow.answers.items()) == [("send", None), ("commit", None)]
    assert slow.rules.state.waiting() == []


def test_a_commit_behind_a_send_that_waited_for_selectors_and_finds_no_room_is_refused() -> None:
    slow = Slow(blocked_send_timeout_seconds=100)
    slow.send("send")
    slow.commit("commit", 1)
    slow.rules.state.admission.blocked_because = FULL
    slow.go_on()
    assert FULL in str(slow.answers.pop("commit"))
    assert slow.answers == {}
    slow.rules.state.admission.blocked_because = None
    slow.pass_time()
    assert slow.answers == {"send": None}


def test_a_send_behind_one_that_waits_for_selectors_is_not_refused_for_the_time_that_they_take() -> None:
    slow = Slow(blocked_send_timeout_seconds=1)
    slow.send("1")
    slow.send("2")
    for _ in range(5):
        slow.pass_time(700)
    assert slow.answers == {}
    assert (slow.rules.state.next_deadline_ms() or 0) > slow.rules.state.time.elapsed_ms
    slow.go_on()
    assert list(slow.answers.items()) == [("1", None), ("2", None)]


@pytest.mark.parametrize("end", ["session", "connection"])
def test_a_commit_that_waits_for_selectors_ends_with_its_session_and_its_connection(end: str) -> None:
    slow = Slow()
    slow.send("send")
    slow.commit("commit", 1)
    slow.commit("of another", 1, session="other")
    slow.decide(c.EndSession("session") if end == "session" else c.Disconnect(slow.client), "end")
    assert "was closed" in str(slow.answers.pop("commit"))
    if end == "session":
        assert slow.answers == {"end": None}
        slow.go_on()
        assert slow.answers == {"end": None, "send": None, "of another": None}
    else:
        assert set(slow.answers) == {"send", "of another", "end"}
    assert slow.rules.state.waiting() == []
    assert not slow.rules.state.has_more


def test_what_is_small_goes_on_when_the_time_of_something_large_is_over() -> None:
    rules = Rules(blocked_send_timeout_seconds=3)
    large, small = Sender(rules), Sender(rules)
    rules.state.admission.volatile_room = 0
    large._decide(
        c.Enqueue(
            large.client, Q, [c.NewMessage(0, b"x" * 10_000, persistent=False)], partial(large.answers.__setitem__, 1)
        )
    )
    rules.pass_time(1000)
    small.send(persistent=False)
    rules.state.admission.volatile_room = 5_000
    small.pass_time(0)
    assert small.answers == {}, "first come, first served"
    small.pass_time(2000)
    assert small.answers == {1: None}
    assert rules.state.totals.refused == 1


def test_so_many_blocked_sends_are_tried_in_one_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.engine.rules.blocked_sends.MOST_TRIES", 1)
    rules = Rules(blocked_send_timeout_seconds=100)
    rules.state.admission.blocked_because = FULL
    senders = [Sender(rules) for _ in range(20)]
    for each in senders:
        each.send()
    rules.state.admission.blocked_because = None
    answered = []
    for _ in range(2):
        senders[0].pass_time(0)
        answered.append(sum(1 for each in senders if each.answers))
        assert rules.state.has_more
    senders[0].pass_time(0)
    assert answered == [8, 16], "one in each round"
    assert all(each.answers == {1: None} for each in senders)
    assert not rules.state.has_more


def test_so_many_blocked_sends_are_refused_in_one_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.engine.rules.blocked_sends.MOST_TRIES", 4)
    rules = Rules(blocked_send_timeout_seconds=1)
    rules.state.admission.blocked_because = FULL
    senders = [Sender(rules) for _ in range(10)]
    for each in senders:
        each.send()
    senders[0].pass_time(1000)
    assert sum(1 for each in senders if each.answers) == 4
    assert (rules.state.next_deadline_ms() or 0) <= rules.state.time.elapsed_ms, "the next decision is due at once"
    senders[0].pass_time(0)
    senders[0].pass_time(0)
    assert all(each.answers for each in senders)
    assert rules.state.next_deadline_ms() is None


def test_a_connection_with_many_blocked_sends_goes_in_time_that_grows_as_they_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them is examined a few times, however many there are."""
    looked = 0

    class Counted(BlockedSend):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return self is other

        __hash__ = object.__hash__

    monkeypatch.setattr("broker_adapter.engine.rules.blocked_sends.BlockedSend", Counted)
    rules = Rules()
    sender = Sender(rules)
    rules.state.admission.blocked_because = FULL
    for _ in range(2_000):
        sender.send()
    sender._decide(c.Disconnect(sender.client))
    assert len(sender.answers) == 2_000
    assert looked < 10_000
    assert (rules.state.waiting(), rules.state.blocked_sends._routes) == ([], {})


def test_what_waits_for_a_subscription_that_ends_goes_on_without_it() -> None:
    rules, news, answers = Rules(max_queue_messages=2), topic("news"), []
    publisher, slow, quick = rules.connect(), rules.connect(), rules.connect()
    rules.attach(slow, news)
    consumer = rules.attach(quick, news, 100)
    rules.send(publisher, news, b"1", b"2")
    rules.do(c.Settle(consumer, [1, 2], Outcome.ACCEPTED))
    for body in (b"3", b"4"):
        rules._decide(c.Enqueue(publisher, news, [c.NewMessage(0, body)], answers.append))
    rules._decide(c.Disconnect(slow))
    for reply, result in rules.effects.replies:
        reply(result)
    assert answers == [None, None]
    assert [number for number, _ in rules.delivered[consumer]] == [1, 2, 3, 4]


class History:
    """Two connections with a producer for each of three destinations, and limits that come and go."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        settings = EngineSettings(max_queue_messages=2, blocked_send_timeout_seconds=10, max_blocked_sends=30)
        self.state = BrokerState(settings, durable=True, secret=b"s")
        self.now_ms = 1_000_000
        self.answers: dict[tuple[int, Destination, int], Any] = {}
        self.next: Counter[tuple[int, Destination]] = Counter()
        self.handed_out: list[tuple[int, int]] = []  #: (consumer, number)
        self.taken: dict[int, tuple[str, int]] = {}  #: number of a message → (connection and destination, sequence)
        self.refused = 0  #: commits
        self.commits: Counter[str] = Counter()
        self.results: list[Any] = []
        self.clients = [self.do(c.Connect(None)), self.do(c.Connect("durable"))]
        news = topic("news")
        self.destinations = [queue("a"), queue("b"), news]
        consumers = [
            self.do(c.Attach(self.clients[1], to, self._deliver(index), subscription))
            for index, (to, subscription) in enumerate(
                [
                    (queue("a"), None),
                    (queue("b"), None),
                    (news, Subscription("one", durable=True, shared=False)),
                    (news, Subscription("two", durable=True, shared=False)),
                ]
            )
        ]
        for consumer in consumers:
            self.do(c.Credit(consumer, 1_000_000))

    def _deliver(self, _index: int) -> Any:
        return lambda _handouts: None

    def do(self, command: Any) -> Any:
        self.results = []
        self.decide(command._replace(reply=self.results.append))
        return self.results[0] if self.results else None

    def decide(self, *commands: Any) -> None:
        effects: Effects = self.state.decide(commands, self.now_ms)
        for consumer, messages in effects.deliveries:
            self.handed_out += [(consumer.id, each.number) for each in messages]
        for batch in (effects.durable, effects.volatile):
            for number, message in batch.messages.items():
                if message.identity is not None:
                    self.taken[number] = message.identity.producer_id, message.identity.sequence
        for reply, result in effects.replies:
            reply(result)

    def message(self, key: tuple[int, Destination]) -> c.NewMessage:
        self.next[key] += 1
        identity = Identity(f"{key[0]} {key[1].name}", 1, self.next[key])
        return c.NewMessage(0, b"x" * 10, persistent=self.chance.random() < 0.6, identity=identity)

    def commit(self) -> None:
        client = self.chance.choice(self.clients)
        destinations = self.chance.sample(self.destinations, self.chance.randint(1, 3))
        sends = [(each, self.message((client, each))) for each in destinations]
        settlements = []
        if client == self.clients[1]:
            for _ in range(min(len(self.handed_out), self.chance.randint(0, 2))):
                consumer, number = self.handed_out.pop()
                settlements += [(consumer, number, Outcome.ACCEPTED)]
        session = f"{client} {self.chance.randint(0, 1)}"
        self.commits[session] += 1
        commit_id = c.CommitId(session, self.commits[session]) if self.chance.random() < 0.8 else None
        (result,) = self.asked(c.Commit(client, commit_id, sends, settlements))
        if result is not None:
            assert isinstance(result, TransactionRolledBackException)
            self.refused += 1

    def asked(self, command: Any) -> list[Any]:
        """Return the answers that a command gets at once."""
        results: list[Any] = []
        self.decide(command._replace(reply=results.append))
        return results

    def reconnect(self) -> None:
        """One of the connections goes, and what it has waiting; another one comes."""
        self.decide(c.Disconnect(self.clients[0]))
        self.clients[0] = self.do(c.Connect(None))

    def send(self) -> None:
        key = (self.chance.choice(self.clients), self.chance.choice(self.destinations))
        first = self.next[key] + 1
        messages = [self.message(key) for _ in range(self.chance.randint(1, 3))]

        def reply(result: Any) -> None:
            assert (*key, first) not in self.answers, "answered twice"
            self.answers[*key, first] = [None] * len(messages) if result is None else result

        self.decide(c.Enqueue(*key, messages, reply))

    def settle(self) -> None:
        self.chance.shuffle(self.handed_out)
        for _ in range(min(len(self.handed_out), self.chance.randint(1, 3))):
            consumer, number = self.handed_out.pop()
            self.decide(c.Settle(consumer, [number], Outcome.ACCEPTED))

    def step(self) -> None:
        acts = {"send": 6, "settle": 4, "commit": 3, "disk": 1, "memory": 1, "time": 1, "reconnect": 0.3}
        act = self.chance.choices(list(acts), list(acts.values()))[0]
        if act == "send":
            self.send()
        elif act == "commit":
            self.commit()
        elif act == "reconnect":
            self.reconnect()
        elif act == "settle":
            self.settle()
        elif act == "disk":
            admission = self.state.admission
            admission.blocked_because = None if admission.blocked_because else FULL
        elif act == "memory":
            admission = self.state.admission
            admission.volatile_room = None if admission.volatile_room is not None else self.chance.choice([0, 25])
        else:
            self.now_ms += self.chance.choice([1, 100, 3000])
            self.decide()

    def check(self) -> None:
        blocked_sends = self.state.blocked_sends
        waiting = blocked_sends.all
        assert len(waiting) <= 30
        deadlines = [blocked.deadline_ms for blocked in waiting]
        assert deadlines == sorted(deadlines)
        routes = [route for routes in blocked_sends._routes.values() for route in routes.values()]
        assert sorted(blocked.arrival for route in routes for blocked in route) == sorted(
            blocked.arrival for blocked in waiting
        )
        for route in routes:
            assert [blocked.line is not None for blocked in route] == [True] + [False] * (len(route) - 1), (
                "the first send of a route, and no other one, stands in a line"
            )
        lines = [blocked_sends.engine_wide, *(each.wait_queue for each in self.state.directory.queues.values())]
        assert sum(map(len, lines)) == len(routes)
        for line in (*lines, *routes):
            arrivals = [blocked.arrival for blocked in line]
            assert arrivals == sorted(arrivals)
        assert self.state.totals.duplicates_rejected == 0

    def check_order(self) -> None:
        last: dict[str, int] = {}
        for _, (key, sequence) in sorted(self.taken.items()):
            assert last.get(key, 0) < sequence, f"{key}: {sequence} came after {last[key]}"
            last[key] = sequence


@pytest.mark.parametrize("seed", range(60))
def test_over_random_histories_nothing_overtakes_and_every_send_is_answered_once(seed: int) -> None:
    history = History(seed)
    for _ in range(150):
        history.step()
        history.check()
    history.state.admission.blocked_because = history.state.admission.volatile_room = None
    for _ in range(400):
        history.now_ms += 100  # messages of commits that were refused come again after a while
        history.settle()
        history.decide()
    history.check()
    assert history.state.waiting() == []
    history.check_order()
    assert history.refused
    assert len(history.taken) == history.state.totals.enqueued > 0
    assert history.state.blocked_sends._routes == {}


def test_a_producer_that_is_blocked_is_a_warning_that_says_why() -> None:
    rules = Rules(max_queue_messages=1, blocked_send_timeout_seconds=5)
    first, second = rules.connect(), rules.connect()
    rules.send(first, Q, b"1")
    assert rules.effects.warnings == []
    full = "queue 'q' is full: 1 message, limit 1 (option max_queue_messages), 0 consumers"
    for client in (first, second):
        assert rules.send(client, Q, b"2") == "held"
        (warning,) = rules.effects.warnings
        assert (warning.text % warning.arguments).startswith(f"! producers are blocked: {full}"), "the second one too"
    rules.pass_time(1)
    assert rules.effects.warnings == [], "it is told once of each producer"
    rules.state.admission.blocked_because = FULL
    assert rules.send(rules.connect(), queue("other"), b"x") == "held"
    (engine_wide,) = rules.effects.warnings
    assert engine_wide.text % engine_wide.arguments == f"! producers are blocked: {FULL}"
    assert engine_wide.kind != warning.kind


def test_a_send_that_waits_for_its_selectors_is_no_warning() -> None:
    rules = Rules()
    client = rules.connect()
    news = topic("news")
    for number in range(3):
        subscription = Subscription(f"s{number}", durable=True, shared=True, of_client=False)
        rules.attach(client, news, subscription=subscription, selector="price > 1")
    rules.state.matching.new_slice = lambda: lambda: True
    assert rules.send(client, news, *[b"x"] * 10) == "held"
    assert rules.effects.warnings == []
