"""Requests to the engine: ranges, staging, repetitions, wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.destination import queue, topic
from broker_adapter.envelope import pack
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
)
from broker_adapter.transport import Subscription
from tests.contracts.calls import Caller, Q, texts
from tests.contracts.transports import WAIT, Client, Engine, message


def test_a_range_is_read_in_pieces_and_again_until_it_is_settled(client: Client) -> None:
    request = client.transport.request
    client.send("q", *["x" * 1000] * 10)
    bounds = request("bounds", {"destination": "q"}, WAIT)
    for _ in range(2):
        position, found = bounds["first"], []
        while position < bounds["next"]:
            answer = request(
                "read_range",
                {
                    "destination": "q",
                    "first": position,
                    "last": bounds["next"] - 1,
                    "max_bytes": 3500,
                    "incarnation": bounds["incarnation"],
                },
                WAIT,
            )
            assert 0 < len(answer["messages"]) <= 4
            found += [each[0] for each in answer["messages"]]
            position = answer["next"]
        assert found == list(range(bounds["first"], bounds["next"]))
    settle = {"destination": "q", "position": bounds["first"] + 3, "incarnation": bounds["incarnation"]}
    assert request("settle_through", settle, WAIT) == 4
    assert request("settle_through", settle, WAIT) == 0
    assert request("bounds", {"destination": "q"}, WAIT)["first"] == bounds["first"] + 4


def test_a_range_is_not_settled_under_the_hands_of_consumers(client: Client) -> None:
    client.send("q", "a")
    receiver = client.receiver(Q)
    with pytest.raises(IllegalStateException, match="1 consumer is attached"):
        client.transport.request("settle_through", {"destination": "q", "position": 1}, WAIT)
    client.transport.detach(receiver.link, WAIT)
    assert client.transport.request("settle_through", {"destination": "q", "position": 1}, WAIT) == 1


def test_another_incarnation_of_a_queue_is_noticed(client: Client) -> None:
    client.send("q", "a")
    for operation, further in (("read_range", {"first": 1, "last": 1}), ("settle_through", {"position": 1})):
        with pytest.raises(InvalidDestinationException, match="was deleted and made again"):
            client.transport.request(operation, {"destination": "q", "incarnation": "gone", **further}, WAIT)
    assert client.bodies("q") == ["a"]


def test_the_queue_of_a_subscription_is_read_like_any_other(engine: Engine) -> None:
    client = engine.open("me")
    receiver = client.receiver(topic("t"), subscription=Subscription("s", durable=True, shared=False))
    client.transport.detach(receiver.link, WAIT)
    client.send(topic("t"), "a", "b")
    named = {"destination": "t", "kind": "topic", "subscription": "s", "client_id": "me"}
    bounds = client.transport.request("bounds", named, WAIT)
    assert bounds["next"] - bounds["first"] == 2
    assert client.transport.request("purge", named, WAIT) == 2
    with pytest.raises(InvalidDestinationException, match="there is one of client id 'me'"):
        client.transport.request("bounds", {**named, "client_id": "you"}, WAIT)


def test_staging_is_idempotent_and_publishing_all_or_nothing(client: Client) -> None:
    request = client.transport.request
    payloads = [pack(message(queue("out"), body)) for body in texts(4)]
    for first, last in ((0, 2), (0, 2), (1, 3), (3, 4)):
        stage = {"transaction": "t", "queue": "out", "first": first, "messages": payloads[first:last]}
        request("stage", stage, WAIT)
    with pytest.raises(IllegalStateException, match="has 4 messages"):
        request("stage", {"transaction": "t", "queue": "out", "first": 9, "messages": payloads}, WAIT)
    with pytest.raises(InvalidDestinationException, match="'unknown' does not exist"):
        request("publish", {"group": "g", "number": 1, "transactions": ["t", "unknown"]}, WAIT)
    assert client.bodies("out") == []
    assert request("publish", {"group": "g", "number": 1, "transactions": ["t"]}, WAIT) is True
    assert request("publish", {"group": "g", "number": 1, "transactions": ["t"]}, WAIT) is False
    assert client.bodies("out") == texts(4)
    assert request("discard", {"transactions": ["unknown"]}, WAIT) == 0


@pytest.mark.parametrize("arguments", [{}, {"destination": 7}, {"destination": "q", "first": "x", "last": 1}])
def test_a_request_with_wrong_arguments_is_refused(client: Client, arguments: dict[str, Any]) -> None:
    with pytest.raises(JMSException, match="needs the argument"):
        client.transport.request("read_range", arguments, WAIT)


def test_a_request_is_carried_out_once_under_the_id_and_run_of_its_caller(engine: Engine) -> None:
    client = engine.open()
    client.send("q", "a", "b")
    run = client.transport.request("bounds", {"destination": "q"}, WAIT)["run"]
    purge = {"destination": "q", "request_id": "mine", "request_run": run}
    assert client.transport.request("purge", purge, WAIT) == 2
    client.send("q", "c")
    assert client.transport.request("purge", purge, WAIT) == 2
    assert engine.open().transport.request("purge", purge, WAIT) == 2
    with pytest.raises(IllegalStateException, match="started again"):
        client.transport.request("purge", {**purge, "request_id": "other", "request_run": "earlier"}, WAIT)
    for name, value in (("request_id", 7), ("request_run", 7)):
        with pytest.raises(MessageFormatException, match=f"'{name}' of type str, not 7"):
            client.transport.request("purge", {**purge, name: value}, WAIT)
    assert client.bodies("q") == ["c"]
    assert client.transport.request("purge", {**purge, "request_id": "other"}, WAIT) == 1


def test_requests_of_many_threads_get_their_own_answers(client: Client) -> None:
    for number in range(4):
        client.send(f"q{number}", *texts(number + 1))

    def ask(number: int) -> list[int]:
        bounds = [client.transport.request("bounds", {"destination": f"q{number}"}, WAIT) for _ in range(20)]
        return [each["next"] - each["first"] for each in bounds]

    callers = [Caller(lambda number=number: ask(number)) for number in range(4)]  # type: ignore[misc]
    assert [each.ended().result for each in callers] == [[number + 1] * 20 for number in range(4)]
