"""Requests beyond messaging at the protocol in memory: links to the management node, answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    LinkRemoteClose,
)
from broker_adapter.amqp.management import Request, pack_request, unpack_answer
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
        client.peer.send(asking, pack_request(Request(number, operation, {})), settled=True)
    first, second = [unpack_answer(each.payload) for each in client.receive(answers, 2)]
    assert (first.number, first.error) == (0, None)
    assert second.error is not None
    assert "nonsense" in second.error[1]


class OddClient(Client):
    """Of a server whose operations give what cannot be carried."""

    def _request(self, operation: str, arguments: dict[str, Any], done: Callable[[Any], None]) -> None:
        done({"odd": object()} if operation == "odd" else "x" * 100_000_000)


def test_a_result_that_cannot_be_carried_is_an_error(broker: Broker) -> None:
    client = OddClient(broker).open()
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    answers = client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    for number, operation in enumerate(("odd", "large")):
        client.peer.send(asking, pack_request(Request(number, operation, {})), settled=True)
    for number, delivery in enumerate(client.receive(answers, 2)):
        answer = unpack_answer(delivery.payload)
        assert (answer.number, answer.result) == (number, None)
        assert answer.error is not None
        assert answer.error[0] == "MessageFormatException"


def test_an_answer_for_a_connection_that_is_gone_is_dropped(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    client.peer.send(asking, pack_request(Request(1, "statistics", {})), settled=True)
    client.to_server()  # the answer is there, and not taken yet
    client.server.receive_end()
    client.rest()


def test_answers_wait_for_credit(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    client.peer.send(asking, pack_request(Request(1, "statistics", {})), settled=True)
    client.rest()
    answers = client.receiver(MANAGEMENT_ADDRESS, name="answers")
    client.rest()
    assert client.messages(answers) == []
    client.peer.credit(answers, 1)
    assert unpack_answer(client.receive(answers, 1)[0].payload).number == 1


def test_who_takes_no_answers_may_ask_no_more(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    most = client.peer.remaining_credit(asking)
    for number in range(most):
        client.peer.send(asking, pack_request(Request(number, "statistics", {})), settled=True)
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
        client.peer.send(asking, pack_request(Request(number, "statistics", {})), settled=True)
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
