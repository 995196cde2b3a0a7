"""A durable subscription that is full and that nobody reads: what gives way (option full_subscription)."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.destination import topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.statistics import BrokerStatistics, QueueStatistics
from broker_adapter.envelope import Identity
from broker_adapter.errors import InvalidDestinationException, TransactionRolledBackException
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.decisions import Q, Rules
from tests.broker_adapter.engine.driving import (
    WAIT,
    Engines,
    attach,
    connect,
    drained,
    eventually,
    payloads,
    send,
)

NEWS = topic("news")
LIMIT = 3
WAYS = ["drop_oldest", "drop_new", "end_subscription"]


def shared(name: str, *, durable: bool = True) -> Subscription:
    return Subscription(name, durable=durable, shared=True, of_client=False)


class Topic:
    """A topic with a subscription that nobody reads, and one that is read.  Each call is one decision."""

    def __init__(self, way: str, seconds: float = 0, **settings: Any) -> None:
        self.rules = Rules(
            full_subscription=way, max_queue_messages=LIMIT, blocked_send_timeout_seconds=seconds, **settings
        )
        self.client = self.rules.connect()
        consumer = self.attach("unread")
        self.attach("read", credit=1000)
        self.rules.do(c.Detach(consumer))
        self._commits = 0

    def attach(self, name: str, credit: int = 0, **fields: Any) -> int:
        return self.rules.attach(self.client, NEWS, credit, subscription=shared(name), presettled=True, **fields)

    def send(self, *bodies: bytes) -> Any:
        return self.rules.send(self.client, NEWS, *bodies)

    def commit(self, *bodies: bytes) -> Any:
        self._commits += 1
        messages = [(NEWS, c.NewMessage(0, body)) for body in bodies]
        return self.rules.do(c.Commit(self.client, c.CommitId("session", self._commits), messages, []))

    def publish(self, how: str, *bodies: bytes) -> Any:
        return self.send(*bodies) if how == "send" else self.commit(*bodies)

    @property
    def warnings(self) -> list[str]:
        return [each.text % each.arguments for each in self.rules.effects.warnings]

    @property
    def statistics(self) -> BrokerStatistics:
        found: BrokerStatistics = self.rules.do(c.Statistics())
        return found

    def of(self, name: str) -> QueueStatistics | None:
        return next((each for each in self.statistics.queues if each.name == f"news:{name}"), None)

    @property
    def got(self) -> int:
        """Messages that the reader got."""
        return sum(map(len, self.rules.delivered.values()))


# The rules.


def test_by_default_producers_are_blocked_and_commits_refused() -> None:
    news = Topic("block", 10)
    news.send(b"1", b"2", b"3")
    with pytest.raises(TransactionRolledBackException, match="max_queue_messages"):
        news.commit(b"4")
    assert news.send(b"4") == "held"
    assert news.got == LIMIT


@pytest.mark.parametrize("how", ["send", "commit"])
@pytest.mark.parametrize("way", WAYS)
def test_a_subscription_that_gives_way_keeps_nothing_from_the_others(way: str, how: str) -> None:
    news = Topic(way)
    for number in range(10):
        assert news.publish(how, b"%d" % number, b"%d too" % number) is None
    assert news.got == 20


@pytest.mark.parametrize("how", ["send", "commit"])
def test_what_is_sent_to_it_is_dropped_and_counted(how: str) -> None:
    news = Topic("drop_new")
    news.publish(how, b"1", b"2")
    assert news.warnings == []
    news.publish(how, b"3", b"4", b"5")
    (warning,) = news.warnings
    assert warning == (
        "! subscription 'unread' on 'news' is full, and nobody reads it: 2 messages were dropped since the start"
        " (option full_subscription)"
    )
    unread = news.of("unread")
    assert unread is not None
    assert (unread.messages, unread.dropped, news.statistics.dropped) == (LIMIT, 2, 2)
    assert news.rules.effects.overfull == []


@pytest.mark.parametrize("how", ["send", "commit"])
def test_it_takes_what_is_sent_and_its_oldest_messages_are_to_be_dropped(how: str) -> None:
    news = Topic("drop_oldest")
    news.publish(how, b"1", b"2", b"3")
    assert news.rules.effects.overfull == []
    news.publish(how, b"4", b"5")
    (number,) = news.rules.effects.overfull
    assert news.rules.state.directory.queues[number].label == "unread"
    unread = news.of("unread")
    assert unread is not None
    assert unread.messages == LIMIT + 2


@pytest.mark.parametrize("how", ["send", "commit"])
def test_it_is_deleted_and_that_is_told(how: str) -> None:
    news = Topic("end_subscription")
    news.publish(how, b"1", b"2", b"3")
    news.publish(how, b"4", b"5")
    (warning,) = news.warnings
    assert warning == (
        "! subscription 'unread' on 'news' was full, and nobody read it: it was deleted, with 3 messages (option"
        " full_subscription)"
    )
    assert news.of("unread") is None
    assert (news.statistics.dropped, news.statistics.subscriptions_ended) == (5, 1)
    with pytest.raises(InvalidDestinationException, match="no subscription 'unread'"):
        news.rules.do(c.Delete(NEWS, "unread"))


@pytest.mark.parametrize("way", WAYS)
def test_it_does_not_give_way_before_nobody_has_read_it_for_as_long_as_a_send_may_wait(way: str) -> None:
    news = Topic(way, 10)
    news.send(b"1", b"2", b"3")
    assert news.send(b"4") == "held"
    news.rules.pass_time(9_999)
    assert news.got == LIMIT
    news.rules.pass_time(1)
    assert news.got == LIMIT + 1, "a send that waited is taken when its time is over, and not refused"
    assert news.send(b"5") is None
    assert news.statistics.refused == 0


@pytest.mark.parametrize("way", WAYS)
def test_what_waits_is_taken_as_soon_as_it_gives_way(way: str) -> None:
    news = Topic(way, 10)
    news.send(b"1", b"2", b"3")
    news.rules.pass_time(5_000)
    assert news.send(b"4") == "held"
    assert news.rules.state.next_deadline_ms() == news.rules.now_ms + 5_000
    news.rules.pass_time(5_000)
    assert news.got == LIMIT + 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reader", ["consumer", "one that holds messages", "reader of ranges"])
def test_it_does_not_give_way_while_somebody_reads_it(way: str, reader: str) -> None:
    news = Topic(way, 10)
    rules = news.rules
    news.send(b"1", b"2", b"3")
    rules.pass_time(10_000)
    if reader == "reader of ranges":
        rules.state.directory.subscription(NEWS, "unread", None).note_use(rules.now_ms)
    else:
        consumer = rules.attach(news.client, NEWS, 1, subscription=shared("unread"))
        if reader != "consumer":
            rules.do(c.Detach(consumer))
    assert news.send(b"4") == "held"


@pytest.mark.parametrize("how", ["send", "commit"])
def test_a_reader_that_attaches_in_the_same_decision_keeps_the_subscription(how: str) -> None:
    news = Topic("end_subscription")
    news.send(b"1", b"2", b"3")
    message = c.NewMessage(0, b"4")
    send: c.Command = c.Enqueue(news.client, NEWS, [message])
    if how == "commit":
        send = c.Commit(news.client, c.CommitId("session", 1), [(NEWS, message)], [])
    consumer = news.rules.do(send, c.Attach(news.client, NEWS, print, subscription=shared("unread")))
    (warning,) = news.warnings
    assert "1 message was dropped since the start" in warning
    news.rules.do(c.Credit(consumer, 10))
    assert [number for _, number in news.rules.placed[consumer]] == [1, 2, 3]
    assert news.statistics.subscriptions_ended == 0


def test_a_subscription_that_is_deleted_in_the_same_decision_ends_once() -> None:
    news = Topic("end_subscription")
    news.send(b"1", b"2", b"3")
    news.rules.do(c.Enqueue(news.client, NEWS, [c.NewMessage(0, b"4")]), c.Delete(NEWS, "unread"))
    assert len(news.rules.effects.ended) == 1
    assert news.warnings == []
    assert news.statistics.subscriptions_ended == 0


def test_a_new_subscription_of_its_name_in_the_same_decision_stays() -> None:
    news = Topic("end_subscription")
    news.send(b"1", b"2", b"3")
    attach = c.Attach(news.client, NEWS, print, subscription=shared("unread"), selector="TRUE = TRUE")
    consumer = news.rules.do(c.Enqueue(news.client, NEWS, [c.NewMessage(0, b"4")]), attach)
    assert len(news.rules.effects.ended) == 1
    news.rules.do(c.Detach(consumer))
    assert news.rules.do(c.Delete(NEWS, "unread")) == 0
    assert news.of("unread") is None


@pytest.mark.parametrize("way", WAYS)
def test_the_time_before_a_restart_does_not_count(way: str) -> None:
    news = Topic(way, 10)
    news.send(b"1", b"2", b"3")
    news.rules.state.directory.subscription(NEWS, "unread", None).left_ms = 0  # as a start makes it
    assert news.send(b"4") == "held"
    news.rules.pass_time(10_000)
    assert news.got == LIMIT + 1


@pytest.mark.parametrize("way", WAYS)
def test_other_queues_block_their_producers(way: str) -> None:
    rules = Rules(full_subscription=way, max_queue_messages=1, blocked_send_timeout_seconds=10)
    client = rules.connect()
    rules.send(client, Q, b"1")
    rules.attach(client, NEWS, subscription=shared("volatile", durable=False))
    rules.send(client, NEWS, b"1")
    rules.pass_time(20_000)
    assert rules.send(client, Q, b"2") == "held"
    assert rules.send(client, NEWS, b"2") == "held"


def test_it_takes_only_so_many_more_until_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.engine.rules.admission.OVER_MESSAGES", 5)
    news = Topic("drop_oldest", 10)
    news.send(b"1", b"2", b"3")
    news.rules.pass_time(10_000)
    assert news.send(*[b"x"] * 5) is None
    assert news.send(b"y") == "held"
    with pytest.raises(TransactionRolledBackException, match="max_queue_messages"):
        news.commit(b"z")


def test_a_commit_that_is_not_done_drops_nothing() -> None:
    news = Topic("drop_new", max_message_bytes=10)
    news.send(b"1", b"2", b"3")
    with pytest.raises(TransactionRolledBackException):
        news.commit(b"4", b"x" * 11)
    assert (news.statistics.dropped, news.warnings) == (0, [])
    unread = news.of("unread")
    assert unread is not None
    assert unread.dropped == 0


def test_a_duplicate_is_not_counted_as_dropped() -> None:
    news = Topic("drop_new")
    for _ in range(2):
        for number in range(1, 6):
            message = c.NewMessage(0, b"%d" % number, identity=Identity("p", 1, number))
            news.rules.do(c.Enqueue(news.client, NEWS, [message]))
    assert (news.statistics.dropped, news.statistics.duplicates_rejected) == (2, 5)


# A real engine.


def unread(broker: Broker) -> QueueStatistics | None:
    found: BrokerStatistics = broker.call(c.Statistics(), WAIT)
    return next((each for each in found.queues if each.name == "news:unread"), None)


def start(engines: Engines, way: str, **settings: Any) -> tuple[Broker, int]:
    broker = engines.start(full_subscription=way, blocked_send_timeout_seconds=0, **settings)
    client = connect(broker)
    consumer, _ = attach(broker, client, NEWS, subscription=shared("unread"))
    broker.call(c.Detach(consumer), WAIT)
    return broker, client


def left(broker: Broker, client: int) -> list[bytes]:
    return payloads(drained(broker, client, NEWS, subscription=shared("unread")))


@pytest.mark.parametrize("option", ["max_queue_messages", "max_queue_bytes"])
def test_the_last_messages_are_kept_and_the_oldest_are_dropped(
    engines: Engines, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker, client = start(engines, "drop_oldest", window_messages=10, **{option: 100})
    for number in range(1000):
        assert send(broker, client, NEWS, f"{number:010}", priority=number % 10) is None
    most = 100 if option == "max_queue_messages" else 10
    eventually(lambda: (found := unread(broker)) is not None and found.messages <= most)
    found = unread(broker)
    assert found is not None
    assert (found.messages, found.dropped) == (most, 1000 - most)
    assert sorted(left(broker, client)) == [b"%010d" % number for number in range(1000 - most, 1000)]
    assert len([each for each in caplog.messages if "dropped since the start" in each]) == 1


def test_delayed_messages_are_dropped_like_others(engines: Engines) -> None:
    broker, client = start(engines, "drop_oldest", max_queue_messages=5)
    for number in range(20):
        send(broker, client, NEWS, number, deliver_at_ms=1 << 47 if number % 2 else None)
    eventually(lambda: (found := unread(broker)) is not None and found.messages == 5)
    found = unread(broker)
    assert found is not None
    assert (found.delayed, found.dropped) == (3, 15)
    assert left(broker, client) == [b"16", b"18"]


def test_what_a_consumer_that_comes_meanwhile_holds_is_not_dropped(engines: Engines) -> None:
    broker, client = start(engines, "drop_oldest", max_queue_messages=5)
    send(broker, client, NEWS, *range(5))
    with broker.reading():  # no cycle until both are there
        consumers: list[Any] = []
        broker.submit(c.Enqueue(client, NEWS, [c.NewMessage(0, b"last")]))
        broker.submit(c.Attach(client, NEWS, lambda _: None, shared("unread"), reply=consumers.append))
    eventually(lambda: bool(consumers))
    broker.call(c.Credit(consumers[0], 100), WAIT)
    eventually(lambda: not broker._jobs)
    found = unread(broker)
    assert found is not None
    assert found.messages + found.dropped == 6


def test_nothing_more_is_dropped_once_it_is_read(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.engine.cycle.background.CHUNK_ENTRIES", 1)
    broker, client = start(engines, "drop_oldest", max_queue_messages=5)
    sends = [(NEWS, c.NewMessage(0, b"%d" % number)) for number in range(3_000)]
    broker.call(c.Commit(client, c.CommitId("s", 1), sends, []), WAIT)
    eventually(lambda: (found := unread(broker)) is not None and found.dropped > 0)
    attach(broker, client, NEWS, subscription=shared("unread"))
    eventually(lambda: not broker._jobs)
    found = unread(broker)
    assert found is not None
    assert found.messages > 5
    assert found.messages + found.dropped == 3_000


def test_a_large_transaction_leaves_its_last_messages(engines: Engines) -> None:
    broker, client = start(engines, "drop_oldest", max_queue_messages=5)
    sends = [(NEWS, c.NewMessage(0, b"%d" % number)) for number in range(50)]
    broker.call(c.Commit(client, c.CommitId("s", 1), sends, []), WAIT)
    eventually(lambda: (found := unread(broker)) is not None and found.messages == 5)
    assert left(broker, client) == [b"%d" % number for number in range(45, 50)]


def test_the_messages_of_a_subscription_that_ended_are_gone_and_the_others_stay(engines: Engines) -> None:
    broker, client = start(engines, "end_subscription", max_queue_messages=3)
    _, inbox = attach(broker, client, NEWS, credit=100, subscription=shared("read"), presettled=True)
    for number in range(10):
        assert send(broker, client, NEWS, number) is None
    assert payloads(inbox.wait_for(10)) == [b"%d" % number for number in range(10)]
    assert unread(broker) is None
    eventually(lambda: not broker._jobs)
    if engines.path is not None:
        broker = engines.start()
        assert unread(broker) is None
    assert left(broker, connect(broker)) == [], "a new one of that name has nothing of it"


def test_many_full_subscriptions_of_one_topic_stay_within_their_limit(engines: Engines) -> None:
    broker, client = start(engines, "drop_oldest", max_queue_messages=10)
    for name in range(20):
        consumer, _ = attach(broker, client, NEWS, subscription=shared(f"unread {name}"))
        broker.call(c.Detach(consumer), WAIT)
    for number in range(200):
        assert send(broker, client, NEWS, number) is None
    eventually(lambda: not broker._jobs)
    found: BrokerStatistics = broker.call(c.Statistics(), WAIT)
    assert {each.messages for each in found.queues if each.kind == "subscription"} == {10}
    assert found.dropped == 21 * 190
