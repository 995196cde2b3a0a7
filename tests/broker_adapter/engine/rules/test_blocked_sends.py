"""Sends that wait for room stay in order, and none of them is forgotten."""

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
from broker_adapter.envelope import Identity
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.decisions import FULL, FULL_QUEUE, Q, Rules, Sender, sent


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


def test_a_session_that_commits_again_gives_up_the_commit_that_still_waits() -> None:
    rules = Rules(max_queue_messages=1)
    client = rules.connect()
    rules.send(client, Q, b"there")
    other = queue("other")
    answers: dict[int, Any] = {}

    def commit(number: int, *to: Destination) -> None:
        sends = [(each, sent(number)) for each in to]
        reply = partial(answers.__setitem__, number)
        for each, result in rules.state.decide(
            [c.Commit(client, c.CommitId("session", number), sends, [], reply)], rules.now_ms
        ).replies:
            each(result)

    commit(1, Q, other)
    assert answers == {}
    commit(2, other)
    assert "the session made a further commit" in str(answers.pop(1))
    assert answers == {2: None}
    assert (rules.depth("q"), rules.depth("other"), rules.state.totals.duplicates_rejected) == (1, 1, 0)


def test_a_session_that_commits_again_gives_up_a_commit_behind_a_send_that_waits() -> None:
    rules = Rules(max_queue_messages=1, blocked_send_timeout_seconds=100)
    sender = Sender(rules)
    source = queue("source")
    rules.send(sender.client, source, b"work")
    consumer = rules.attach(sender.client, source, credit=1)
    ((taken, _),) = rules.delivered[consumer]
    rules.send(sender.client, Q, b"there")
    sender.send()
    sender._decide(
        c.Commit(
            sender.client,
            c.CommitId("session", 1),
            [(Q, sent(1))],
            [(consumer, taken, Outcome.ACCEPTED)],
            partial(sender.answers.__setitem__, 100),
        )
    )
    assert sender.answers == {}
    sender._decide(
        c.Commit(
            sender.client,
            c.CommitId("session", 2),
            [(queue("other"), sent(2))],
            [],
            partial(sender.answers.__setitem__, 200),
        )
    )
    assert "the session made a further commit" in str(sender.answers.pop(100))
    assert sender.answers == {200: None}
    assert len(rules.state.waiting()) == 1, "the send waits on"
    assert taken not in rules.state.directory.consumers[consumer].unsettled, "what the commit took is not held for ever"
    rules.do(c.Disconnect(sender.client))
    assert rules.state.waiting() == []


def send_that_is_held() -> tuple[Rules, Sender]:
    """A send waits for room on the disk; the queue "full" is full, for what is to wait behind it."""
    rules = Rules(max_queue_messages=4, blocked_send_timeout_seconds=100)
    sender = Sender(rules)
    rules.send(rules.connect(), FULL_QUEUE, b"1", b"2", b"3", b"4")
    rules.state.admission.blocked_because = FULL
    sender.send()
    return rules, sender


def test_a_send_does_not_overtake_one_that_waits_behind_a_commit() -> None:
    rules, sender = send_that_is_held()
    commit = c.Commit(sender.client, None, [(Q, sent(100)), (FULL_QUEUE, sent(101))], [])
    assert rules.do(commit) == "held"  # behind the send
    sender.send()  # behind the commit
    rules.state.admission.blocked_because = None
    sender.pass_time()
    assert list(sender.answers) == [1], "the commit waits for the other queue, and what came after it behind it"
    sender.send()
    assert list(sender.answers) == [1]
    sender.pass_time(100_000)
    assert sender.answers == {1: None, 2: None, 3: None}, "the commit was refused in the end"
    assert (rules.depth("q"), rules.state.waiting(), sender.rejected) == (3, [], 0)
    assert rules.state.wait_queues._routes == {}


def test_what_waits_behind_a_commit_that_is_given_up_goes_on() -> None:
    """It is another session's, and has done nothing that would end it."""
    rules, sender = send_that_is_held()
    first = c.Commit(sender.client, c.CommitId("session", 1), [(Q, sent(100)), (FULL_QUEUE, sent(101))], [])
    sender._decide(first._replace(reply=partial(sender.answers.__setitem__, 100)))
    sender.send()
    rules.state.admission.blocked_because = None
    sender.pass_time()
    assert list(sender.answers) == [1], "the commit leads, and waits for the other queue"
    second = c.Commit(sender.client, c.CommitId("session", 2), [(queue("other"), sent(200))], [])
    sender._decide(second._replace(reply=partial(sender.answers.__setitem__, 200)))
    assert "the session made a further commit" in str(sender.answers.pop(100))
    assert sender.answers == {1: None, 2: None, 200: None}
    assert (rules.depth("q"), rules.state.waiting(), rules.state.wait_queues.count) == (2, [], 0)


class Observed:
    """Two queues that are full, each with a consumer that has all of it; the sends that are answered, in order."""

    def __init__(self, **limits: Any) -> None:
        self.rules = Rules(max_queue_messages=2, **limits)
        self.client = self.rules.connect()
        self.answered: list[str] = []
        self.takers = [self.rules.attach(self.rules.connect(), each, 100) for each in (Q, FULL_QUEUE)]
        for each in (Q, FULL_QUEUE):
            self.rules.send(self.client, each, b"1", b"2")

    def decide(self, *commands: c.Command) -> None:
        for reply, result in self.rules.state.decide(commands, self.rules.now_ms).replies:
            reply(result)

    def _answer(self, name: str) -> c.Reply:
        return lambda result: self.answered.append(name)

    def send(self, name: str, to: Destination = Q, **fields: Any) -> None:
        self.decide(c.Enqueue(self.client, to, [c.NewMessage(0, name.encode(), **fields)], self._answer(name)))

    def commit(self, name: str, *to: Destination, of: str = "session") -> None:
        sends = [(each, c.NewMessage(0, name.encode())) for each in to]
        self.decide(c.Commit(self.client, c.CommitId(of, 1), sends, [], self._answer(name)))

    def make_room(self, *queues: int) -> None:
        for each in queues:
            self.decide(c.Settle(self.takers[each], list(range(1, 100)), Outcome.ACCEPTED))
        self.decide()


def test_what_waits_behind_a_commit_that_waits_behind_another_send_stays_there() -> None:
    seen = Observed()
    seen.send("1")
    seen.send("2", FULL_QUEUE)
    seen.commit("commit", Q, FULL_QUEUE)
    seen.send("3")
    seen.send("4", FULL_QUEUE)
    seen.make_room(0)
    assert seen.answered == ["1"], "the commit waits for the other queue, and what came after it waits for the commit"
    seen.make_room(1, 0, 1, 0)
    assert seen.answered == ["1", "2", "commit", "3", "4"] or seen.answered == ["1", "2", "commit", "4", "3"]
    assert (seen.rules.state.waiting(), seen.rules.state.wait_queues._routes) == ([], {})


def test_a_session_that_ends_gives_up_its_commits_that_wait_and_no_others() -> None:
    seen = Observed()
    seen.commit("of another", Q, of="other")
    seen.commit("waits", FULL_QUEUE)
    seen.send("behind", FULL_QUEUE)
    seen.decide(c.EndSession("session"), c.EndSession("unknown"))
    assert seen.answered == ["waits"]
    seen.make_room(0, 1)
    assert seen.answered == ["waits", "of another", "behind"]
    assert (seen.rules.state.waiting(), seen.rules.state.wait_queues._routes) == ([], {})


@pytest.mark.parametrize("fields", [{}, {"persistent": False}])
def test_a_commit_that_waits_is_not_overtaken(fields: dict[str, Any]) -> None:
    seen = Observed()
    seen.rules.state.admission.blocked_because = FULL
    seen.commit("commit", queue("empty"))
    seen.send("after", queue("empty"), **fields)
    assert seen.answered == []
    seen.rules.state.admission.blocked_because = None
    seen.decide()
    assert seen.answered == ["commit", "after"]


def test_a_commit_that_waits_in_one_line_after_the_other_is_not_overtaken() -> None:
    seen = Observed()
    seen.commit("commit", Q, FULL_QUEUE)
    seen.send("after")
    seen.make_room(0)
    assert seen.answered == []
    seen.make_room(1)
    assert seen.answered == ["commit", "after"]


def test_two_commits_in_the_opposite_order_of_queues_wait_for_each_other_in_one_direction() -> None:
    seen = Observed()
    seen.commit("first", Q, FULL_QUEUE, of="one")
    seen.commit("second", FULL_QUEUE, Q, of="other")
    seen.make_room(1)
    assert seen.answered == []
    seen.make_room(0)
    assert seen.answered == ["first", "second"]


def test_what_waits_for_a_subscription_that_ends_goes_on_without_it() -> None:
    rules, news, answers = Rules(max_queue_messages=2), topic("news"), []
    publisher, slow, quick = rules.connect(), rules.connect(), rules.connect()
    rules.attach(slow, news)
    consumer = rules.attach(quick, news, 100)
    rules.send(publisher, news, b"1", b"2")
    rules.do(c.Settle(consumer, [1, 2], Outcome.ACCEPTED))
    send = c.Enqueue(publisher, news, [c.NewMessage(0, b"3")], answers.append)
    commit = c.Commit(publisher, c.CommitId("session", 1), [(news, c.NewMessage(0, b"4"))], [], answers.append)
    rules._decide(send)
    rules._decide(commit)
    rules._decide(c.Disconnect(slow))
    for reply, result in rules.effects.replies:
        reply(result)
    assert answers == [None, None]
    assert [number for number, _ in rules.delivered[consumer]] == [1, 2, 3, 4]


def test_what_waits_for_a_queue_that_is_deleted_is_refused_and_what_waited_for_that_goes_on() -> None:
    seen = Observed()
    seen.send("1")
    seen.commit("commit", Q, queue("other"))
    seen.send("2", queue("other"))
    answers: list[Any] = []
    seen.decide(c.Delete(Q, None, force=True, reply=answers.append))
    seen.decide()
    assert seen.answered == ["1", "commit", "2"]
    assert seen.rules.depth("other") == 1, "what the commit would have sent there is not there"
    assert seen.rules.state.waiting() == []


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
        self.asked = self.answered = 0  #: commits
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
        self.asked += 1

        def reply(result: Any) -> None:
            self.answered += 1

        self.decide(c.Commit(client, commit_id, sends, settlements, reply))

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
        wait_queues = self.state.wait_queues
        waiting = list(wait_queues)
        assert wait_queues.count == len(waiting) <= 30
        for blocked in waiting:
            behind = sum(wait_queues._routes[route][0] is not blocked for route in blocked.routes or ())
            assert blocked.behind == behind
            assert (blocked.wait_queue is None) == bool(behind), (
                "a send is in a wait queue if, and only if, it is the first of all its routes"
            )
        found = {id(blocked.wait_queue): blocked.wait_queue for blocked in waiting if blocked.wait_queue is not None}
        for wait_queue in (*found.values(), *wait_queues._routes.values()):
            arrivals = [blocked.arrival for blocked in wait_queue]
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
        history.settle()
        history.decide()
    history.check()
    # A commit may make the room that a send of its connection waits for, and wait behind that send.
    for _ in range(20):
        history.now_ms += 11_000
        history.decide()
        history.settle()
    assert history.state.waiting() == []
    history.check_order()
    assert history.answered == history.asked
    assert len(history.taken) == history.state.totals.enqueued > 0
    assert history.state.wait_queues._routes == {}


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
