"""The rules of a sender: when a batch is due, what an answer means, what the log says."""

from __future__ import annotations

from typing import Any

from broker_adapter.engine.records.gateway_records import GatewayRecord
from broker_adapter.errors import ConnectionLostException, MessageFormatException
from broker_adapter.gateways.sender import MAX_BATCH, Sender, batch_of, end_of, follows, has_more

RECORD = GatewayRecord("amqp://far", ["queue:q"], state="running")


def found(*positions: int, **fields: Any) -> dict[str, Any]:
    """What ``read_gateway`` answers."""
    entries = [(position, b"%d" % position) for position in positions]
    through = max(positions, default=0)
    return {
        **{"entries": entries, "through": through, "joined": [], "expired": [], "filtered": []},
        **{"sender": "g/1", "applied": 3},
        **fields,
    }


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
    assert sender.applied(21.25) is None
    assert sender.seconds_until_due(RECORD, 5, 50, 21.5) == 0.5  # those may have come as soon as the batch was read
    assert sender.seconds_until_due(RECORD._replace(batch_ms=0), 1, 10, 21.5) == 0
    assert sender.seconds_until_due(RECORD, 0, 0, 22) is None
    assert sender.seconds_until_due(RECORD, 1, 10, 30) == 1


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
    assert sender.applied(3620) == "the other site takes messages again, after 3610 s"
    assert sender.trouble == ""
    assert sender.applied(3620) is None


def test_another_url_is_tried_at_once() -> None:
    sender = Sender(5)
    assert sender.seconds_until_due(RECORD, 100, 1000, 10) == 0
    sender.failed(ConnectionLostException("nobody is there"), 10)
    assert sender.seconds_until_due(RECORD, 100, 1000, 11) == 4
    assert sender.seconds_until_due(RECORD._replace(url="amqp://near"), 100, 1000, 11) == 0


def test_messages_that_wait_for_too_long_are_told_once_a_minute() -> None:
    sender, record = Sender(5), RECORD._replace(alert_ms=2000)
    sender.seconds_until_due(record, 1, 10, 100)
    assert sender.alert(RECORD, 200) is None
    assert sender.alert(record, 101.9) is None
    assert sender.alert(record, 102.5) == "nothing was sent for 2.5 s, and messages wait"
    assert sender.alert(record, 162) is None
    assert sender.alert(record, 163) is not None
    sender.seconds_until_due(record, 1, 10, 299)
    sender.applied(300)
    assert sender.alert(record, 300) is None


def test_a_batch_has_what_the_other_site_needs() -> None:
    assert batch_of(found(5, 7), 1) == {
        **{"site": 1, "sender": "g/1", "after": 3},
        **{"positions": [5, 7], "messages": [b"5", b"7"]},
    }


def test_a_batch_ends_with_what_was_left_out_behind_it_unless_it_was_cut() -> None:
    read = found(5, 7, through=9, expired=[6], filtered=[8, 9])
    left_out = {"sender": "g/1", "expired": [6], "filtered": [8, 9]}
    assert end_of(read, answer(7)) == {"through": 9, **left_out, "refused": [], "applied": 7}
    assert end_of(read, answer(5)) == {"through": 5, **left_out, "refused": [], "applied": 5}
    assert end_of(found(through=9, **left_out), None) == {"through": 9, **left_out}


def test_the_next_batch_follows_where_the_last_one_was_done_and_enough_waits() -> None:
    record, read = RECORD._replace(batch_messages=2), found(5, 7, waiting=2)
    assert not has_more(read)
    assert has_more(read | {"waiting": 3})
    assert not has_more(read | {"waiting": 3, "expired": [6]})
    assert follows(record, read, answer(7), found(8, 9))
    assert not follows(record, read, answer(5), found(8, 9))
    assert not follows(record, read, answer(7), found(8))
    assert follows(record._replace(batch_bytes=1), read, answer(7), found(8))
    assert not follows(record._replace(batch_messages=0), read, answer(7), found())


def test_what_the_other_site_cannot_read_is_halved_down_to_the_message_which_is_refused() -> None:
    sender, error = Sender(5), MessageFormatException("too large")
    assert sender.max_messages == MAX_BATCH
    assert sender.refused_whole(found(*range(1, 8)), error) is None
    assert sender.max_messages == 3
    assert sender.refused_whole(found(1, 2, 3), error) is None
    assert sender.max_messages == 1
    refused = sender.refused_whole(found(1), error)
    assert refused == {"through": 1, "refused": [(1, "too large")], "applied": 3}
    assert end_of(found(1), refused)["refused"] == [(1, "too large")]
    for _ in range(20):  # the next ones may be larger again
        sender.applied(1)
    assert sender.max_messages == MAX_BATCH


def test_a_transaction_is_refused_as_a_whole_and_only_alone() -> None:
    sender, error = Sender(5), MessageFormatException("too large")
    whole = found(*range(1, 8), joined=[*range(2, 8)])
    assert sender.refused_whole(found(*range(8), joined=[*range(2, 8)]), error) is None
    assert sender.max_messages == 4
    sender.refused_whole(found(*range(8), joined=[*range(2, 8)]), error)  # what is read behind the four completes it
    sender.refused_whole(found(*range(8), joined=[*range(2, 8)]), error)
    assert sender.max_messages == 1
    refused = sender.refused_whole(whole, error)
    assert refused == {"through": 7, "refused": [(each, "too large") for each in range(1, 8)], "applied": 3}
