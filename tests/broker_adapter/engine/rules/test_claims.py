"""Claims of streaming queries to queues and subscriptions: who may settle by position."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.destination import MAX_NAME_BYTES, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.errors import InvalidDestinationException, QueueClaimedException
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.asking import ask
from tests.broker_adapter.engine.driving import Engines, attach, connect, send

MINE, OTHER = "claim-a", "claim-b"


def claimed(broker: Broker, claim: str = MINE, **arguments: Any) -> None:
    ask(broker, "claim", destination="q", claim=claim, holder=f"query {claim}", **arguments)


@pytest.fixture
def filled(broker: Broker) -> Broker:
    send(broker, connect(broker), "q", "a", "b", "c")
    return broker


def test_another_query_settles_nothing_of_a_claimed_queue(filled: Broker) -> None:
    claimed(filled)
    with pytest.raises(QueueClaimedException, match=r"queue 'q' is claimed by another streaming query \('claim-a' of "):
        ask(filled, "settle_through", destination="q", position=3, claim=OTHER)
    assert ask(filled, "settle_through", destination="q", position=2, claim=MINE) == 2


def test_the_refusal_says_who_has_it_whether_that_query_is_alive_and_what_to_do(filled: Broker) -> None:
    claimed(filled)
    with pytest.raises(QueueClaimedException) as refused:
        claimed(filled, OTHER)
    text = str(refused.value)
    assert "query claim-a" in text
    assert "; last request 0" in text
    assert "takeOver=true" in text


def test_positions_are_not_told_to_another_query(filled: Broker) -> None:
    claimed(filled)
    with pytest.raises(QueueClaimedException, match="'q' is claimed by another streaming query"):
        ask(filled, "bounds", destination="q", claim=OTHER)
    with pytest.raises(QueueClaimedException, match="'q' is claimed by another streaming query"):
        ask(filled, "bounds_of_queues", destinations=["free", "q"], runs=["", ""], make=True, claim=OTHER)
    assert ask(filled, "bounds", destination="q", claim=MINE)["next"] == 4
    assert len(ask(filled, "bounds_of_queues", destinations=["q"], runs=[""], claim=MINE)) == 1


def test_a_queue_without_a_claim_is_open_to_any_query(filled: Broker) -> None:
    assert ask(filled, "bounds", destination="q", claim=OTHER)["next"] == 4
    assert ask(filled, "settle_through", destination="q", position=1, claim=MINE) == 1


def test_what_names_no_claim_is_not_asked_for_one(filled: Broker) -> None:
    claimed(filled)
    assert ask(filled, "bounds", destination="q")["next"] == 4
    assert ask(filled, "settle_through", destination="q", position=1) == 1
    _, sink = attach(filled, connect(filled), "q", credit=2)
    sink.wait_for(2)


def test_a_queue_is_taken_over_on_demand_and_its_former_owner_is_refused(filled: Broker) -> None:
    claimed(filled)
    claimed(filled, OTHER, take_over=True)
    with pytest.raises(QueueClaimedException, match="'claim-b' of 'query claim-b'"):
        ask(filled, "settle_through", destination="q", position=1, claim=MINE)
    with pytest.raises(QueueClaimedException, match="'claim-b' of 'query claim-b'"):
        claimed(filled)
    assert ask(filled, "settle_through", destination="q", position=3, claim=OTHER) == 3


def test_the_refusal_names_who_has_continued_the_query_last(filled: Broker) -> None:
    claimed(filled)
    ask(filled, "claim", destination="q", claim=MINE, holder="the application of today")
    with pytest.raises(QueueClaimedException, match="of 'the application of today'"):
        claimed(filled, OTHER)


def test_a_claim_ends_by_its_own_word_only(filled: Broker) -> None:
    claimed(filled)
    ask(filled, "end_claim", destination="q", claim=OTHER)
    with pytest.raises(QueueClaimedException):
        claimed(filled, OTHER)
    for _ in range(2):
        ask(filled, "end_claim", destination="q", claim=MINE)
    claimed(filled, OTHER)


def test_a_claim_outlives_a_restart_of_the_engine(disk: Engines) -> None:
    broker = disk.start()
    send(broker, connect(broker), "q", "a")
    claimed(broker)
    broker = disk.start()
    with pytest.raises(QueueClaimedException, match="'query claim-a'; no request since the broker started"):
        claimed(broker, OTHER)
    claimed(broker)
    assert ask(broker, "settle_through", destination="q", position=1, claim=MINE) == 1


def test_a_queue_that_was_made_again_has_no_claim(filled: Broker) -> None:
    claimed(filled)
    ask(filled, "delete", destination="q")
    ask(filled, "bounds", destination="q", make=True)
    claimed(filled, OTHER)


@pytest.mark.parametrize("durable", [True, False])
def test_a_subscription_has_a_claim_of_its_own(broker: Broker, durable: bool) -> None:
    client = connect(broker)
    for name in ("one", "two"):
        attach(broker, client, topic("t"), subscription=Subscription(name, durable=durable, shared=True))
    named = {"destination": "t", "kind": "topic"}
    ask(broker, "claim", **named, subscription="one", claim=MINE, holder="query a")
    ask(broker, "claim", **named, subscription="two", claim=OTHER, holder="query b")
    with pytest.raises(QueueClaimedException, match="subscription 'one' on topic 't' is claimed by another"):
        ask(broker, "bounds", **named, subscription="one", claim=OTHER)
    ask(broker, "end_claim", **named, subscription="one", claim=MINE)
    ask(broker, "claim", **named, subscription="one", claim=OTHER, holder="query b")


@pytest.mark.parametrize("operation", ["claim", "end_claim"])
def test_a_queue_that_does_not_exist_is_not_claimed(broker: Broker, operation: str) -> None:
    more = {"holder": "query a"} if operation == "claim" else {}
    with pytest.raises(InvalidDestinationException, match="there is no queue 'q'"):
        ask(broker, operation, destination="q", claim=MINE, **more)


@pytest.mark.parametrize(
    ("claim", "holder"),
    [("", "a"), ("a" * (MAX_NAME_BYTES + 1), "a"), (MINE, "a" * (MAX_NAME_BYTES + 1)), ("\udc00", "a")],
)
def test_a_claim_has_a_limit(filled: Broker, claim: str, holder: str) -> None:
    with pytest.raises(InvalidDestinationException):
        ask(filled, "claim", destination="q", claim=claim, holder=holder)
    claimed(filled, OTHER)
    ask(filled, "end_claim", destination="q", claim=OTHER)
    ask(filled, "claim", destination="q", claim="a" * MAX_NAME_BYTES, holder="h" * MAX_NAME_BYTES)
