"""The limits of a queue: one rule for sends, commits, staged and published batches, and dead letters put back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.limits import never, refusal
from broker_adapter.engine.queues.policies import QueueSettings
from broker_adapter.errors import ResourceAllocationException, TransactionRolledBackException
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.decisions import Rules
from tests.broker_adapter.engine.driving import WAIT, attach, connect, depth, message, send, settle

Q = queue("q")
FULL = 5


@attrs.define
class Some:
    settings: QueueSettings
    depth: int
    bytes: int
    consumers: tuple[object, ...] = ()

    def called(self) -> tuple[str, str]:
        return "queue 'some'", "holdfast purge some"


def limited(messages: int | None, size: int | None, policy: str | None = None) -> QueueSettings:
    patterns = {} if policy is None else {"max_messages": policy, "max_bytes": policy}
    return QueueSettings(max_messages=messages, max_bytes=size, patterns=patterns)


@pytest.mark.parametrize(
    ("settings", "more", "refused"),
    [
        (limited(None, None), (10**9, 10**12), None),
        (limited(4, None), (0, 0), None),
        (limited(3, None), (0, 0), "3 messages, limit 3 (option max_queue_messages), 0 consumers"),
        (limited(3, None), (-1, -100), None),
        (limited(5, None), (2, 20), "3 messages and 2 more, limit 5"),
        (limited(None, 300), (0, 0), "300 bytes, limit 300 (option max_queue_bytes)"),
        (limited(None, 301), (0, 0), None),
        (limited(None, 300), (-1, -1), None),
        (limited(2, None), (-1, 0), "3 messages less 1 that are taken with it, limit 2"),
        (limited(3, None, "s.>"), (0, 0), "limit 3 (max_messages of policy 's.>'), 0 consumers; receive its messages"),
        (limited(None, 3, "s.>"), (0, 0), "limit 3 (max_bytes of policy 's.>')"),
    ],
)
def test_a_queue_takes_a_message_below_its_limits(
    settings: QueueSettings, more: tuple[int, int], refused: str | None
) -> None:
    why = refusal(Some(settings, 3, 300), *more)
    assert (why is None) is (refused is None)
    assert refused is None or (why is not None and refused in why and "'some' is full" in why)
    assert why is None or why.endswith("or raise the limit" if settings.patterns else "or raise the option")


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        (limited(1, None), "1 message, limit 1 (option max_queue_messages), 1 consumer;"),
        (limited(None, 1), "1 byte, limit 1 (option max_queue_bytes)"),
    ],
)
def test_one_message_byte_or_consumer_is_singular_in_the_error(settings: QueueSettings, refused: str) -> None:
    assert refused in str(refusal(Some(settings, 1, 1, consumers=(object(),))))
    assert "it has 2 messages for one queue" in str(never(limited(1, None), "it", 2, 0))


def test_what_is_larger_than_an_empty_queue_never_finds_room() -> None:
    limits = limited(10, 1000)
    assert never(limits, "it", 10, 999) is None
    assert "11 messages" in str(never(limits, "it", 11, 0))
    assert "more than 1000 bytes" in str(never(limits, "it", 1, 1000))
    assert "limit 10 (max_messages of policy 'x')" in str(never(limited(10, None, "x"), "it", 11, 0))
    assert never(limited(None, None), "it", 10**9, 10**12) is None


@pytest.fixture(params=["messages", "bytes"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """An engine whose queues take five messages."""
    limit = {"max_queue_messages": FULL} if request.param == "messages" else {"max_queue_bytes": FULL * SIZE - SIZE + 1}
    made = Broker(EngineSettings(blocked_send_timeout_seconds=0.3, max_deliveries=1, **limit), str(tmp_path))
    yield made
    made.close()


SIZE = len(message("x").payload)


def fill(broker: Broker, client: int, count: int = FULL) -> None:
    assert send(broker, client, "q", *("x" * count)) is None


def commit(broker: Broker, client: int, sends: int, settlements: list[tuple[int, int, Outcome]] | None = None) -> Any:
    return broker.call(c.Commit(client, None, [(Q, message("x"))] * sends, settlements or []), WAIT)


def test_a_send_into_a_full_queue_is_refused_in_the_end(broker: Broker) -> None:
    client = connect(broker)
    fill(broker, client)
    (error,) = send(broker, client, "q", "y")
    assert isinstance(error, ResourceAllocationException)
    assert depth(broker, "q") == FULL


def test_a_commit_into_a_full_queue_is_rolled_back_in_the_end(broker: Broker) -> None:
    client = connect(broker)
    fill(broker, client, FULL - 1)
    assert commit(broker, client, 1) is None
    with pytest.raises(TransactionRolledBackException, match="is full"):
        commit(broker, client, 1)
    assert depth(broker, "q") == FULL


def test_what_a_transaction_takes_from_a_queue_is_room_for_what_it_puts_there(broker: Broker) -> None:
    """Else a consumer that answers into its own queue waits for itself."""
    client = connect(broker)
    fill(broker, client)
    consumer, inbox = attach(broker, client, "q", credit=2)
    taken = [(consumer, each.number, Outcome.ACCEPTED) for each in inbox.wait_for(2)]
    assert commit(broker, client, 2, taken) is None
    assert depth(broker, "q") == FULL
    broker.call(c.Credit(consumer, 1), WAIT)
    more = [(consumer, each.number, Outcome.ACCEPTED) for each in inbox.wait_for(3)[2:]]
    with pytest.raises(TransactionRolledBackException, match="is full"):
        commit(broker, client, 2, more)


def test_a_commit_larger_than_a_queue_may_be_is_rolled_back_at_once(broker: Broker) -> None:
    client = connect(broker)
    with pytest.raises(TransactionRolledBackException, match=r"the transaction has .* for one queue"):
        commit(broker, client, FULL + 1)
    assert depth(broker, "q") == 0


def stage(broker: Broker, name: str, count: int) -> None:
    messages = [message("x")._replace(persistent=True) for _ in range(count)]
    broker.call(c.Stage(name, Q, 0, messages), WAIT)


def publish(broker: Broker, number: int, *names: str) -> Any:
    return broker.request("publish", {"group": "g", "number": number, "transactions": list(names)}, WAIT)


def test_a_batch_is_published_where_the_queue_has_room_for_all_of_it(broker: Broker) -> None:
    client = connect(broker)
    fill(broker, client, 2)
    stage(broker, "g/1/0", 2)
    stage(broker, "g/1/1", 1)
    assert publish(broker, 1, "g/1/0", "g/1/1") is True
    assert depth(broker, "q") == FULL
    stage(broker, "g/2/0", 1)
    with pytest.raises(ResourceAllocationException, match="is full"):
        publish(broker, 2, "g/2/0")
    assert depth(broker, "q") == FULL
    consumer, inbox = attach(broker, client, "q", credit=1)
    settle(broker, consumer, inbox.wait_for(1))
    assert publish(broker, 2, "g/2/0") is True, "it is still staged"
    assert depth(broker, "q") == FULL


def test_a_batch_larger_than_a_queue_may_be_is_refused_as_it_is_staged(broker: Broker) -> None:
    with pytest.raises(ResourceAllocationException, match=r"the staged transaction has .* for one queue"):
        stage(broker, "g/1/0", FULL + 1)
    stage(broker, "g/1/1", FULL)
    stage(broker, "g/1/2", 1)
    with pytest.raises(ResourceAllocationException, match=r"the batch has .* for one queue"):
        publish(broker, 1, "g/1/1", "g/1/2")
    assert depth(broker, "q") == 0


def test_what_is_published_counts_before_it_is_moved() -> None:
    rules = Rules(max_queue_messages=FULL, blocked_send_timeout_seconds=1)
    client = rules.connect()
    message_ = c.NewMessage(0, b"x", persistent=True)
    rules.do(c.Stage("g/1/0", Q, 0, [message_] * 4))
    assert rules.do(c.Publish("g", 1, ["g/1/0"])) is True
    assert rules.send(client, Q, b"a") is None
    assert rules.send(client, Q, b"b") == "held"
    with pytest.raises(TransactionRolledBackException, match="1 message and 4 more, limit 5"):
        rules.do(c.Commit(rules.connect(), None, [(Q, message_)], []))
    rules.do(c.Stage("g/2/0", Q, 0, [message_]))
    with pytest.raises(ResourceAllocationException, match="1 message and 4 more, limit 5"):
        rules.do(c.Publish("g", 2, ["g/2/0"]))
    assert rules.depth("q") == 1, "nothing was moved yet"


def test_dead_letters_go_back_as_far_as_there_is_room(broker: Broker) -> None:
    client = connect(broker)
    fill(broker, client)
    consumer, inbox = attach(broker, client, "q", credit=FULL)
    settle(broker, consumer, inbox.wait_for(FULL), Outcome.REJECTED)
    broker.call(c.Detach(consumer), WAIT)
    assert depth(broker, "DLQ") == FULL
    fill(broker, client, 3)
    assert broker.request("redrive", {}, WAIT) == {"moved": 2, "left": 3}
    assert depth(broker, "q") == FULL


def test_a_subscription_that_is_full_is_named_with_the_command_that_purges_it() -> None:
    rules = Rules(max_queue_messages=1)
    client = rules.connect("my app")
    rules.attach(client, topic("news"), subscription=Subscription("reader", durable=True, shared=False))
    rules.send(client, topic("news"), b"1")
    (full,) = rules.state.directory.topics[topic("news")]
    assert rules.state.admission.refusal(full) == (
        "subscription 'reader' of client id 'my app' on topic 'news' is full: 1 message, limit 1 (option"
        " max_queue_messages), 1 consumer; receive its messages or purge it (holdfast purge --topic news --subscription"
        " reader --client-id 'my app'), or raise the option; option full_subscription says what gives way"
    )
    rules.send(client, Q, b"1")
    assert "purge it (holdfast purge q), or raise" in str(
        rules.state.admission.refusal(rules.state.directory.by_destination[Q])
    )
