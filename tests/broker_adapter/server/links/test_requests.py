"""Requests beyond messaging at the protocol in memory: links to the management node, answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    LinkRemoteClose,
)
from broker_adapter.amqp.management import ManagementRequest, pack_request, unpack_answer
from broker_adapter.amqp.wire import (
    MANAGEMENT_ADDRESS,
)
from broker_adapter.engine.broker import Broker
from tests.broker_adapter.server.protocol_client import (
    Client,
    encoded,
)


def test_requests_are_answered_and_errors_are_answers(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    answers = client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    for number, operation in enumerate(("statistics", "nonsense")):
        client.peer.send(asking, pack_request(ManagementRequest(number, operation, {})), settled=True)
    found = [unpack_answer(each.payload) for each in client.receive(answers, 2)]
    first, second = sorted(found, key=lambda answer: answer.number)
    assert (first.number, first.error) == (0, None)
    assert second.error is not None
    assert "nonsense" in second.error[1]


class OddClient(Client):
    """Of a server whose operations give what cannot be carried."""

    def _request(self, operation: str, arguments: Callable[[], dict[str, Any]], done: Callable[[Any], None]) -> None:
        done({"odd": object()} if operation == "check" else "x" * 100_000_000)


def test_a_result_that_cannot_be_carried_is_an_error(broker: Broker) -> None:
    client = OddClient(broker).open()
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    answers = client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    for number, operation in enumerate(("check", "statistics")):
        client.peer.send(asking, pack_request(ManagementRequest(number, operation, {})), settled=True)
    for number, delivery in enumerate(client.receive(answers, 2)):
        answer = unpack_answer(delivery.payload)
        assert (answer.number, answer.result) == (number, None)
        assert answer.error is not None
        assert answer.error[0] == "MessageFormatException"


def test_an_answer_for_a_connection_that_is_gone_is_dropped(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    client.peer.send(asking, pack_request(ManagementRequest(1, "statistics", {})), settled=True)
    client.to_server()  # the answer is there, and not taken yet
    client.server.receive_end()
    client.rest()


def test_answers_wait_for_credit(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    client.peer.send(asking, pack_request(ManagementRequest(1, "statistics", {})), settled=True)
    client.rest()
    answers = client.receiver(MANAGEMENT_ADDRESS, name="answers")
    client.rest()
    assert client.messages(answers) == []
    client.peer.credit(answers, 1)
    assert unpack_answer(client.receive(answers, 1)[0].payload).number == 1


def test_a_client_that_takes_no_answers_gets_no_credit_for_requests(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    most = client.peer.remaining_credit(asking)
    for number in range(most):
        client.peer.send(asking, pack_request(ManagementRequest(number, "statistics", {})), settled=True)
    client.rest()
    assert client.peer.remaining_credit(asking) == 0
    answers = client.receiver(MANAGEMENT_ADDRESS, 1, name="answers")
    client.receive(answers, 1)
    client.until(lambda: client.peer.remaining_credit(asking) == 1)
    client.close_link(asking)
    client.peer.credit(answers, most)
    client.rest()
    assert len(client.messages(answers)) == 1


def test_a_request_comes_after_what_was_sent_before_it_in_the_same_breath(client: Client) -> None:
    asking, sending = client.sender(MANAGEMENT_ADDRESS, name="ask"), client.sender("q")
    answers = client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    for number in (1, 2):
        client.peer.send(sending, encoded(f"message {number}"))
        client.peer.send(asking, pack_request(ManagementRequest(number, "statistics", {})), settled=True)
        client.to_server()
    found = [unpack_answer(each.payload).result["queues"] for each in client.receive(answers, 2)]
    depths = [sum(each["messages"] for each in queues if each["name"] == "q") for queues in found]
    assert depths == [1, 2]


def test_a_request_that_cannot_be_decoded_closes_its_link(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    client.peer.send(asking, b"nonsense", settled=True)
    error = client.until(lambda: client.of(LinkRemoteClose, asking))[0].error
    assert error.condition == "amqp:decode-error"
    assert client.send(client.sender("q"), "the connection goes on") == [ACCEPTED_STATE]


class BusyClient(Client):
    """Of a server whose workers are busy: requests wait."""

    def __init__(self, *arguments: Any, **limits: Any) -> None:
        super().__init__(*arguments, **limits)
        self.waiting: list[tuple[str, Callable[[], dict[str, Any]], Callable[[Any], None]]] = []

    def _request(self, operation: str, arguments: Callable[[], dict[str, Any]], done: Callable[[Any], None]) -> None:
        self.waiting.append((operation, arguments, done))


def test_a_request_that_waits_is_kept_as_bytes_and_unpacked_when_it_is_its_turn(broker: Broker) -> None:
    client = BusyClient(broker).open()
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    answers = client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    names = [f"t{number}" for number in range(10_000)]
    packed = pack_request(ManagementRequest(1, "discard", {"transactions": names}))
    client.peer.send(asking, packed, settled=True)
    client.rest()
    ((operation, arguments, done),) = client.waiting
    assert client.server._budget.requests == len(packed)
    assert (operation, arguments()) == ("discard", {"transactions": names})
    done(5)
    assert unpack_answer(client.receive(answers, 1)[0].payload).result == 5
    assert client.server._budget.requests == 0


@pytest.mark.parametrize(
    ("operation", "arguments", "reason"),
    [
        ("purge", {"destination": "nope", "junk": ["ab"] * 100_000}, "'purge' has no argument 'junk'"),
        ("purge", {"x": 1, "y": 2, "destination": "nope"}, "'purge' has no arguments 'x' and 'y'"),
        ("purge", {"destination": ["ab"] * 100_000}, "'destination' of type str, not a list of 100000 values"),
        ("discard", {"prefixes": ["z"] * 1_000_000}, "'prefixes' of operation 'discard' has 1000000 values"),
        (
            "announce_servers",
            {"servers": ["h:1"] * 10_000},
            "'servers' of operation 'announce_servers' has 10000 values",
        ),
        ("nonsense", {"list": ["ab"] * 100_000}, "unknown operation 'nonsense'"),
    ],
)
def test_what_no_operation_takes_is_refused_before_it_waits(
    broker: Broker, operation: str, arguments: dict[str, Any], reason: str
) -> None:
    client = BusyClient(broker).open()
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    answers = client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    client.peer.send(asking, pack_request(ManagementRequest(1, operation, arguments)), settled=True)
    error = unpack_answer(client.receive(answers, 1)[0].payload).error
    assert error is not None
    assert error[0] == "MessageFormatException"
    assert reason in error[1]
    assert not client.waiting
    assert client.server._budget.requests == 0


def test_lists_in_the_places_of_values_are_not_unpacked_beyond_the_limit_of_the_operation(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    answers = client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    given = {"destination": "q", "given": [[0] * 1_000] * 1_000}
    client.peer.send(asking, pack_request(ManagementRequest(1, "uncount", given)), settled=True)
    error = unpack_answer(client.receive(answers, 1)[0].payload).error
    assert error is not None
    assert "more members of lists and maps than the limit" in error[1]
