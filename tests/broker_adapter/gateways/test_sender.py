"""The rules of a sender: when a batch is due, what an answer means, what the log says."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.engine.records.gateway_records import GatewayRecord
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    MessageFormatException,
    ResourceAllocationException,
)
from broker_adapter.gateways.sender import MAX_BATCH, Sender

RECORD = GatewayRecord("amqp://far", ["queue:q"], batch_messages=100, state="running")


def found(*positions: int, **fields: Any) -> dict[str, Any]:
    """What ``read_gateway`` answers."""
    entries = [(position, b"kind", position + 7, 0, b"%d" % position) for position in positions]
    through = max(positions, default=0)
    left_out = {"expired": [], "filtered": [], "conflated": []}
    read: dict[str, Any] = {"entries": entries, "joined": [], **left_out, "bytes": 10 * len(entries)}
    read["messages"] = len(entries) + sum(len(fields.get(name, ())) for name in left_out)
    return {**read, "waiting": 0, "through": through, "sender": "g/1", "applied": 3, **fields}


def answer(through: int, *refused: tuple[int, str]) -> dict[str, Any]:
    """What ``apply_batch`` answers."""
    return {"through": through, "refused": list(refused), "applied": through - len(refused)}


def test_a_batch_is_due_when_enough_waits_or_after_a_time() -> None:
    sender = Sender(5)
    assert sender.seconds_until_due(RECORD, 0, 0, 10) is None
    assert sender.seconds_until_due(RECORD, 1, 10, 20) == 1
    assert sender.seconds_until_due(RECORD, 99, 990, 20.75) == 0.25
    assert sender.seconds_until_due(RECORD, 100, 1000, 20.75) == 0
    assert sender.seconds_until_due(RECORD, 99, 1 << 20, 20.75) == 0
    assert sender.seconds_until_due(RECORD, 99, 990, 21) == 0
    assert sender.seconds_until_due(RECORD._replace(batch_ms=0), 1, 10, 20.5) == 0
    assert sender.seconds_until_due(RECORD, 0, 0, 22) is None
    assert sender.seconds_until_due(RECORD, 1, 10, 30) == 1


def test_what_is_under_way_does_not_make_the_next_batch_due() -> None:
    sender = Sender(5)
    assert sender.seconds_until_due(RECORD, 100, 1000, 20) == 0
    sender.batch_of(found(*range(100)), 1, 20)
    assert sender.seconds_until_due(RECORD, 100, 1000, 20.25) is None
    assert sender.seconds_until_due(RECORD, 199, 1990, 20.5) == 1
    assert sender.seconds_until_due(RECORD, 200, 2000, 20.5) == 0
    sender.batch_of(found(*range(100, 150), expired=list(range(150, 190)), filtered=[*range(190, 200)]), 1, 20.5)
    assert sender.seconds_until_due(RECORD, 201, 2010, 20.75) == 0.75  # it may have come as soon as that was read
    assert sender.seconds_until_due(RECORD, 201, 2010 + (1 << 20), 20.75) == 0


def test_what_is_left_behind_a_batch_has_waited_as_long() -> None:
    sender = Sender(5)
    for now, seconds in ((20, 0), (20.5, 0.5), (21, 0)):
        assert sender.seconds_until_due(RECORD, 150 if now == 20 else 50, 10, now) == seconds
        if now == 20:
            sender.batch_of(found(*range(100), waiting=150), 1, now)
            sender.answered(answer(99))


def test_no_more_is_under_way_than_the_limits() -> None:
    sender, batches = Sender(5), 0
    while sender.seconds_until_due(RECORD, 100_000, 1_000_000, 20) == 0:
        sender.batch_of(found(*range(100 * batches, 100 * batches + 100)), 1, 20)
        batches += 1
    assert batches == 32
    sender.answered(answer(99))
    assert sender.seconds_until_due(RECORD, 99_900, 999_000, 20) == 0
    sender = Sender(5)
    assert sender.seconds_until_due(RECORD, 100_000, 64 << 20, 20) == 0
    sender.batch_of(found(1, bytes=(8 << 20) - 1), 1, 20)
    assert sender.seconds_until_due(RECORD, 100_000, 64 << 20, 20) == 0
    sender.batch_of(found(2, bytes=1), 1, 20)
    assert sender.seconds_until_due(RECORD, 100_000, 64 << 20, 20) is None


def test_what_failed_is_tried_again_after_a_pause_and_logged_once_an_hour() -> None:
    sender = Sender(5)
    assert sender.seconds_until_due(RECORD, 100, 1000, 10) == 0
    error = ConnectionLostException("nobody is there")
    assert sender.failed(error, 10) == "nothing can be sent, and is tried again each 5 s: nobody is there"
    assert sender.trouble == "nobody is there"
    assert sender.seconds_until_due(RECORD, 100, 1000, 11) == 4
    assert sender.seconds_until_due(RECORD, 1, 10, 15) == 0  # whatever waits
    assert sender.failed(error, 15) is None
    assert sender.failed(error, 3609) is None
    assert sender.failed(error, 3610) is not None
    assert sender.failed(error, 3615) is None
    assert sender.works(3620) == "the other site takes messages again, after 3610 s"
    assert sender.trouble == ""
    assert sender.works(3620) is None


def test_after_a_failure_one_batch_is_under_way_until_it_is_answered() -> None:
    sender = Sender(5)
    for first in (1, 3, 5):
        sender.batch_of(found(first, first + 1), 1, 10)
    sender.failed(ConnectionLostException("cut"), 10)
    assert sender.seconds_until_due(RECORD, 1000, 10_000, 15) == 0
    assert sender.limits(RECORD)["after"] == 0
    assert sender.batch_of(found(1, 2), 1, 15)["behind"] == 0
    assert sender.seconds_until_due(RECORD, 1000, 10_000, 15) is None
    sender.answered(answer(2))
    sender.works(15)
    assert sender.seconds_until_due(RECORD, 998, 9_980, 15) == 0
    sender.batch_of(found(3, 4), 1, 15)
    assert sender.seconds_until_due(RECORD, 998, 9_980, 15) == 0


def test_another_url_is_tried_at_once() -> None:
    sender, other = Sender(5), RECORD._replace(url="amqp://near")
    assert sender.seconds_until_due(RECORD, 100, 1000, 10) == 0
    sender.failed(ConnectionLostException("nobody is there"), 10)
    assert sender.seconds_until_due(RECORD, 100, 1000, 11) == 4
    assert sender.seconds_until_due(other, 100, 1000, 11) == 0


def test_what_is_under_way_to_one_site_is_forgotten_for_another_one() -> None:
    sender, other = Sender(5), RECORD._replace(url="amqp://near")
    assert sender.seconds_until_due(RECORD, 200, 2000, 10) == 0
    sender.batch_of(found(1, 2), 1, 10)
    sender.forget()
    assert sender.seconds_until_due(other, 200, 2000, 11) == 0
    assert (sender.limits(other)["after"], sender.batch_of(found(1, 2), 1, 11)["behind"]) == (0, 0)


def test_messages_that_wait_for_too_long_are_told_once_a_minute() -> None:
    sender, record = Sender(5), RECORD._replace(alert_ms=2000)
    sender.seconds_until_due(record, 1, 10, 100)
    assert sender.alert(RECORD, 200) is None
    assert sender.alert(record, 101.9) is None
    assert sender.alert(record, 102.5) == "nothing was sent for 2.5 s, and messages wait"
    sender.batch_of(found(1), 1, 150)
    sender.seconds_until_due(record, 1, 10, 151)
    assert sender.alert(record, 162) is None
    assert sender.alert(record, 163) is not None
    sender.answered(answer(1))
    assert sender.alert(record, 300) is not None  # since the batch that was answered last was read
    sender.seconds_until_due(record, 0, 0, 361)
    assert sender.alert(record, 361) is None


def test_batches_have_what_the_other_site_needs_and_follow_one_another() -> None:
    sender, record = Sender(5), RECORD._replace(batch_messages=2, batch_bytes=77)
    assert sender.limits(record) == {"after": 0, "max_messages": 2, "max_bytes": 77}
    assert sender.batch_of(found(5, 7), 1, 0) == {
        **{"site": 1, "sender": "g/1", "after": 3, "behind": 0},
        **{"positions": [5, 7], "messages": [b"5", b"7"], "kinds": [b"kind"], "kind_of": [0, 0]},
        **{"numbers": [12, 14], "previous": [0, 0], "joined": []},
    }
    assert sender.limits(record)["after"] == 7
    assert sender.batch_of(found(through=9, filtered=[8, 9]), 1, 0)["positions"] == []
    assert sender.limits(record)["after"] == 9
    assert sender.batch_of(found(10), 1, 0)["behind"] == 7


def test_a_batch_ends_with_what_was_left_out_behind_it_unless_it_was_cut() -> None:
    sender, read = Sender(5), found(5, 7, through=9, expired=[6], filtered=[8, 9], conflated=[4])
    left_out = {"sender": "g/1", "expired": [6], "filtered": [8, 9], "conflated": [4]}
    for through, end in ((7, 9), (5, 5)):
        sender.batch_of(read, 1, 0)
        assert sender.answered(answer(through)) == {"through": end, **left_out, "refused": [], "applied": through}
    sender.batch_of(found(through=9, **left_out), 1, 0)
    assert sender.answered({}) == {"through": 9, **left_out}


def test_behind_a_batch_that_was_cut_nothing_ends_and_nothing_is_sent_until_all_is_answered() -> None:
    sender = Sender(5)
    for first in (1, 4, 7):
        sender.batch_of(found(first, first + 1, first + 2), 1, 0)
    ended = sender.answered(answer(2, (2, "too large")))
    assert ended is not None
    assert (ended["through"], ended["refused"]) == (2, [(2, "too large")])
    for _ in range(2):
        assert sender.seconds_until_due(RECORD, 1000, 10_000, 0) is None
        assert sender.answered(answer(0)) is None
    assert sender.seconds_until_due(RECORD, 1000, 10_000, 0) == 0
    assert sender.limits(RECORD)["after"] == 0


def test_behind_a_message_that_was_refused_batches_are_small_and_one_at_a_time_until_they_have_grown() -> None:
    sender = Sender(5)
    sender.batch_of(found(*range(1, 101)), 1, 0)
    sender.answered(answer(3, (3, "no such region")))
    for size in (3, 6, 12, 24, 48, 96, 100, 100, 100, 100):
        assert sender.limits(RECORD)["max_messages"] == size
        assert sender.seconds_until_due(RECORD, size, 10 * size, 0) == 0
        sender.batch_of(found(*range(4, 4 + size)), 1, 0)
        assert sender.seconds_until_due(RECORD, 1000, 100_000, 0) is None
        sender.answered(answer(3 + size))
    sender.batch_of(found(*range(4, 104)), 1, 0)
    assert sender.seconds_until_due(RECORD, 1000, 100_000, 0) == 0


def test_where_all_of_a_batch_is_refused_the_next_one_is_alone() -> None:
    sender = Sender(5)
    sender.batch_of(found(1, 2), 1, 0)
    sender.answered(answer(2, (1, "no such region"), (2, "no such region")))
    sender.batch_of(found(3, 4), 1, 0)
    assert sender.seconds_until_due(RECORD, 1000, 100_000, 0) is None


def test_batches_for_which_there_is_no_room_are_halved_and_several_are_under_way() -> None:
    sender = Sender(5)
    sender.batch_of(found(*range(1, 101)), 1, 0)
    sender.not_taken(ResourceAllocationException("larger than max_gateway_batch_bytes"))
    sender.batch_of(found(*range(1, 51)), 1, 0)
    assert sender.seconds_until_due(RECORD, 1000, 100_000, 0) == 0


def test_an_answer_that_names_a_position_ahead_of_the_batch_leaves_a_batch_of_one() -> None:
    sender = Sender(5)
    sender.batch_of(found(10, 20), 1, 0)
    sender.answered(answer(1))
    assert sender.limits(RECORD)["max_messages"] == 1


def test_behind_a_batch_whose_last_message_was_refused_the_next_one_is_read_again() -> None:
    sender = Sender(5)
    sender.batch_of(found(1, 2), 1, 0)
    assert sender.batch_of(found(3), 1, 0)["behind"] == 2
    assert sender.batch_of(found(4), 1, 0)["behind"] == 3
    ended = sender.answered(answer(2, (2, "too large")))
    assert ended is not None
    assert ended["through"] == 2
    assert sender.answered(answer(0)) is sender.answered(answer(0)) is None
    assert sender.batch_of(found(3), 1, 0)["behind"] == 0


def test_what_the_other_site_cannot_read_is_halved_down_to_the_message_which_is_refused() -> None:
    sender, error = Sender(5), MessageFormatException("too large")
    record = RECORD._replace(batch_messages=MAX_BATCH)
    assert sender.limits(record)["max_messages"] == MAX_BATCH
    sender.batch_of(found(*range(1, 8)), 1, 0)
    sender.batch_of(found(8, 9), 1, 0)
    assert sender.not_taken(error) is None
    assert sender.not_taken(error) is None  # whatever it is about: it stands behind the other one
    assert sender.limits(record)["max_messages"] == 3
    sender.batch_of(found(1, 2, 3), 1, 0)
    assert sender.not_taken(error) is None
    assert sender.limits(record)["max_messages"] == 1
    sender.batch_of(found(1), 1, 0)
    ended = sender.not_taken(error)
    assert ended is not None
    assert (ended["through"], ended["refused"], ended["applied"]) == (1, [(1, "too large")], 3)
    for _ in range(20):  # the next ones may be larger again
        sender.batch_of(found(2), 1, 0)
        sender.answered(answer(2))
    assert sender.limits(record)["max_messages"] == MAX_BATCH


def test_a_transaction_is_refused_as_a_whole_and_only_alone() -> None:
    sender, error = Sender(5), MessageFormatException("too large")
    record = RECORD._replace(batch_messages=MAX_BATCH)
    for most in (4, 2, 1):  # what is read behind so many completes the transaction
        sender.batch_of(found(*range(8), joined=[*range(2, 8)]), 1, 0)
        assert sender.not_taken(error) is None
        assert sender.limits(record)["max_messages"] == most
    sender.batch_of(found(*range(1, 8), joined=[*range(2, 8)]), 1, 0)
    ended = sender.not_taken(error)
    assert ended is not None
    assert (ended["through"], ended["refused"]) == (7, [(each, "too large") for each in range(1, 8)])


def test_a_batch_for_which_there_is_no_room_is_halved_down_to_the_message_that_waits() -> None:
    sender, error = Sender(5), ResourceAllocationException("the queue is full")
    sender.seconds_until_due(RECORD, 100, 1000, 0)
    sender.batch_of(found(1, 2, 3), 1, 0)
    assert sender.not_taken(error) is None
    assert sender.limits(RECORD)["max_messages"] == 1
    sender.batch_of(found(1), 1, 0)
    with pytest.raises(ResourceAllocationException):
        sender.not_taken(error)
    sender.failed(error, 0)
    assert sender.seconds_until_due(RECORD, 100, 1000, 1) == 4
    assert sender.limits(RECORD)["max_messages"] == 1


@pytest.mark.parametrize(
    "wrong",
    [None, {}, [], 7, {"through": "1"}, {"through": 0, "applied": 0, "refused": []}, {**answer(1), "refused": 1}],
)
def test_what_is_no_answer_is_an_error(wrong: Any) -> None:
    sender = Sender(5)
    sender.batch_of(found(1), 1, 0)
    with pytest.raises(JMSException, match="has given an answer that is none"):
        sender.answered(wrong)


def test_another_kind_of_failure_is_told_at_once() -> None:
    sender = Sender(5)
    assert "nobody" in str(sender.failed(ConnectionLostException("nobody is there"), 0))
    assert sender.failed(ConnectionLostException("still nobody"), 5) is None
    assert "restored" in str(sender.failed(IllegalStateException("it was restored"), 10))
    assert sender.failed(IllegalStateException("it was restored"), 15) is None
