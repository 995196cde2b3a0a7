"""Messages that have gathered go to our own server as one transfer, against a scripted broker."""

from __future__ import annotations

from functools import partial

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import ACCEPTED_STATE, REJECTED, RELEASED_STATE, Incoming, State, Transfers
from broker_adapter.amqp.messages.batches import MOST_BYTES, MOST_MESSAGES, is_batch, refusal_of_some, unpack_batch
from broker_adapter.amqp.proton_engine.peer import PeerLimits
from broker_adapter.errors import (
    IllegalStateException,
    JMSException,
    MessageFormatException,
    ResourceAllocationException,
    TransactionRolledBackException,
)
from tests.broker_adapter.amqp.client.conversations import BODY, sender
from tests.broker_adapter.amqp.client.scripted_broker import Result, ScriptedBroker, Wired

FULL = AmqpError("amqp:resource-limit-exceeded", "full")


class Sent:
    """What has become of each send."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, JMSException | None]] = []

    def sends(self, link: int, *payloads: bytes) -> list[tuple[int, bytes, object]]:
        """Sends, numbered from 0."""
        return [(link, payload, partial(self._note, number)) for number, payload in enumerate(payloads)]

    def _note(self, number: int, error: JMSException | None) -> None:
        self.answers.append((number, error))

    @property
    def kinds(self) -> list[tuple[int, type[object]]]:
        return [(number, type(error)) for number, error in self.answers]


def batching(credit: int = 100, *, accepts: bool = True, **options: object) -> Wired:
    """An open connection to a broker that takes batches."""
    broker = ScriptedBroker()
    broker.takes_batches, broker.credit, broker.accepts = True, credit, accepts
    return Wired(broker, **options).opened()  # type: ignore[arg-type]


def transfers(wired: Wired) -> list[Incoming]:
    return [each for event in wired.broker.of(Transfers) for each in event.deliveries]


def taken(wired: Wired) -> list[list[bytes]]:
    """The messages of each transfer."""
    payloads = [each.payload for each in transfers(wired)]
    return [unpack_batch(each) if is_batch(each) else [each] for each in payloads]


def test_what_is_sent_together_is_one_transfer_and_each_send_is_answered() -> None:
    wired, sent = batching(), Sent()
    link = sender(wired)
    wired.client.send_all(sent.sends(link, b"\x48a", b"\x48b", b"\x48c"))  # type: ignore[arg-type]
    wired.pump()

    assert taken(wired) == [[b"\x48a", b"\x48b", b"\x48c"]]
    assert sent.answers == [(0, None), (1, None), (2, None)]
    assert wired.sends_done == 3


def test_a_single_message_is_sent_as_it_is() -> None:
    wired, sent = batching(), Sent()
    wired.client.send_all(sent.sends(sender(wired), BODY))  # type: ignore[arg-type]
    wired.pump()

    assert [each.payload for each in transfers(wired)] == [BODY]


@pytest.mark.parametrize("case", ["another broker", "plain AMQP", "small frames"])
def test_who_takes_no_batches_gets_single_messages(case: str) -> None:
    if case == "another broker":
        wired = Wired().opened()
    elif case == "plain AMQP":
        wired = batching(envelope=False)
    else:
        wired = batching(limits=PeerLimits(max_frame_bytes=MOST_BYTES - 1))
    sent = Sent()
    wired.client.send_all(sent.sends(sender(wired), BODY, BODY))  # type: ignore[arg-type]
    wired.pump()

    assert [each.payload for each in transfers(wired)] == [BODY, BODY]
    assert sent.answers == [(0, None), (1, None)]


def test_a_batch_takes_one_credit_and_what_waits_for_credit_goes_as_one() -> None:
    wired, sent = batching(credit=1), Sent()
    link = sender(wired)
    for send in sent.sends(link, *[b"\x48%d" % number for number in range(4)]):
        wired.client.send_all([send])  # type: ignore[list-item]
    wired.pump()
    assert taken(wired) == [[b"\x480"]]
    wired.broker.peer.credit(next(iter(wired.broker.by_address.values())), 1)
    wired.pump()

    assert taken(wired)[1:] == [[b"\x481", b"\x482", b"\x483"]]
    assert [number for number, _ in sent.answers] == [0, 1, 2, 3]


def test_a_batch_is_limited_in_messages_and_bytes_and_by_the_links_largest_message() -> None:
    wired, sent = batching(), Sent()
    link = sender(wired)
    many, large = [b"\x48"] * (MOST_MESSAGES + 1), [b"\x48" + bytes(MOST_BYTES // 3)] * 3
    wired.client.send_all(sent.sends(link, *many, *large, b"\x48" + bytes(MOST_BYTES)))  # type: ignore[arg-type]
    wired.pump()
    assert [len(each) for each in taken(wired)] == [MOST_MESSAGES, 3, 1, 1]
    assert len(sent.answers) == MOST_MESSAGES + 5

    wired = batching()
    wired.broker.max_message_bytes = 50
    wired.client.send_all(Sent().sends(sender(wired), *[b"\x48" + bytes(19)] * 4))  # type: ignore[arg-type]
    wired.pump()
    assert [len(each) for each in taken(wired)] == [1, 1, 1, 1]


def test_messages_of_several_links_stay_with_their_link_and_in_order() -> None:
    wired, sent = batching(), Sent()
    one, other = sender(wired), sender(wired)
    sends = sent.sends(one, b"\x48a", b"\x48b", b"\x48c", b"\x48d")
    sends[1] = (other, *sends[1][1:])
    sends[3] = (other, *sends[3][1:])
    wired.client.send_all(sends)  # type: ignore[arg-type]
    wired.pump()

    assert taken(wired) == [[b"\x48a", b"\x48c"], [b"\x48b", b"\x48d"]]
    assert sorted(number for number, _ in sent.answers) == [0, 1, 2, 3]


def test_those_that_were_refused_fail_and_the_others_do_not() -> None:
    wired, sent = batching(accepts=False), Sent()
    wired.client.send_all(sent.sends(sender(wired), *[BODY] * 4))  # type: ignore[arg-type]
    wired.pump()
    table = {1: FULL, 3: AmqpError("amqp:decode-error", "no message")}
    wired.broker.settle(*wired.broker.held[0], State(REJECTED, error=refusal_of_some(table)))
    wired.pump()

    none = type(None)
    assert sent.kinds == [(0, none), (1, ResourceAllocationException), (2, none), (3, MessageFormatException)]
    assert str(sent.answers[1][1]).startswith("full")


@pytest.mark.parametrize("state", [State(REJECTED, error=FULL), RELEASED_STATE, State(REJECTED)])
def test_a_batch_that_is_not_accepted_fails_with_all_its_messages(state: State) -> None:
    wired, sent = batching(accepts=False), Sent()
    wired.client.send_all(sent.sends(sender(wired), BODY, BODY))  # type: ignore[arg-type]
    wired.pump()
    wired.broker.settle(*wired.broker.held[0], state)
    wired.pump()

    assert all(isinstance(error, JMSException) for _, error in sent.answers)
    assert [number for number, _ in sent.answers] == [0, 1]
    assert wired.sends_done == 2


def test_answers_that_overtake_each_other_are_told_in_the_order_of_the_sends() -> None:
    wired, sent = batching(accepts=False), Sent()
    link = sender(wired)
    sends = sent.sends(link, *[BODY] * 5)
    wired.client.send_all(sends[:2])  # type: ignore[arg-type]
    wired.client.send_all(sends[2:])  # type: ignore[arg-type]
    wired.pump()
    wired.broker.settle(*wired.broker.held[1], State(REJECTED, error=refusal_of_some({1: FULL})))
    wired.pump()
    assert sent.answers == []
    wired.broker.settle(*wired.broker.held[0], ACCEPTED_STATE)
    wired.pump()

    assert [number for number, _ in sent.answers] == [0, 1, 2, 3, 4]
    assert [number for number, error in sent.answers if error is not None] == [3]


def test_a_link_that_ends_fails_each_message_without_an_answer_once() -> None:
    wired, sent = batching(credit=2, accepts=False), Sent()
    link = sender(wired)
    sends = sent.sends(link, *[BODY] * 6)
    wired.client.send_all(sends[:2])  # type: ignore[arg-type]
    wired.client.send_all(sends[2:4])  # type: ignore[arg-type]
    wired.client.send_all(sends[4:])  # type: ignore[arg-type]
    wired.pump()
    wired.broker.settle(*wired.broker.held[1], State(REJECTED, error=refusal_of_some({0: FULL})))
    wired.pump()
    wired.client.detach(link, Result())

    kinds = [IllegalStateException] * 2 + [ResourceAllocationException, type(None)] + [IllegalStateException] * 2
    assert sent.kinds == list(enumerate(kinds))
    wired.pump()
    assert wired.sends_done == 6


def commit(wired: Wired, payloads: list[bytes]) -> Result:
    result = Result()
    link = sender(wired)
    wired.client.commit(1, 1, [(link, payload) for payload in payloads], [], result)
    wired.pump()
    return result


def test_the_messages_of_a_commit_are_one_transfer_for_each_link() -> None:
    wired = batching()
    result = commit(wired, [b"\x48a", b"\x48b", b"\x48c"])

    assert result.value is None
    assert [b"\x48a", b"\x48b", b"\x48c"] in taken(wired)
    ((failed, annotations),) = wired.broker.discharges
    assert (failed, annotations["x-opt-holdfast-commit-size"]) == (False, [3, 0, 0])
    assert wired.sends_done == 0


def test_a_commit_with_a_refused_message_in_a_batch_is_rolled_back() -> None:
    wired = batching(accepts=False)
    wired.client._commits.discharges_early = False
    result = commit(wired, [BODY, BODY])
    ((link, delivery),) = wired.broker.held
    wired.broker.peer.settle(link, [delivery.number], State(REJECTED, error=refusal_of_some({1: FULL})))
    wired.pump()

    with pytest.raises(TransactionRolledBackException, match="full"):
        _ = result.value
