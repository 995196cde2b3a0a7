"""Options: what is known, what is refused."""

from __future__ import annotations

import pytest

from broker_adapter import InvalidSelectorException
from spark_connector.options import SinkOptions, SourceOptions, describe, parse_sink, parse_source, queues_of


def test_names_are_compared_without_their_case() -> None:
    parsed = parse_source({"url": "amqp://h", "queue": "q", "maxmessagespertrigger": "5", "FETCHBYTES": "10"})
    assert (parsed.max_messages_per_trigger, parsed.fetch_bytes) == (5, 10)


def test_no_limit_is_written_as_none() -> None:
    assert parse_source({"url": "u", "queue": "q", "maxMessagesPerTrigger": "none"}).max_messages_per_trigger is None


def test_data_loss_is_an_error_unless_it_is_said_that_it_is_none() -> None:
    assert parse_source({"url": "u", "queue": "q"}).fail_on_data_loss is True
    assert parse_source({"url": "u", "queue": "q", "failOnDataLoss": "False"}).fail_on_data_loss is False
    assert parse_source({"url": "u", "queue": "q", "failondataloss": "true"}).fail_on_data_loss is True


def test_a_producer_id_is_a_word_of_the_users() -> None:
    assert parse_sink({"url": "u", "queue": "q", "producerId": "again"}).producer_id == "again"
    assert parse_sink({"url": "u", "queue": "q", "producerId": ""}).producer_id is None


def test_the_path_names_the_queue() -> None:
    assert parse_source({"url": "u", "path": "orders"}).queue == "orders"
    assert parse_sink({"url": "u", "path": "orders", "checkpointlocation": "x", "queryname": "y"}).queue == "orders"
    assert parse_source({"url": "u", "path": "orders", "queue": "orders"}).queue == "orders"


def test_an_unknown_option_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown option 'subject'; the options here are url, .*fetchBytes"):
        parse_source({"url": "u", "queue": "q", "subject": "x"})
    with pytest.raises(ValueError, match="'fetchbytes' is for reading: leave it out"):
        parse_sink({"url": "u", "queue": "q", "fetchBytes": "1"})


def test_an_unknown_option_is_told_with_the_most_similar_one() -> None:
    with pytest.raises(ValueError, match=r"unknown option 'fetchbyte'; the most similar one is 'fetchBytes'; the opt"):
        parse_source({"url": "u", "queue": "q", "fetchByte": "1"})
    with pytest.raises(ValueError, match=r"unknown option 'usrname'; the most similar one is 'username'; the options"):
        parse_sink({"url": "u", "queue": "q", "usrname": "x"})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"queue": "q"}, "'url' is required: the connection URL of the broker, such as amqp://host:5672$"),
        ({}, "'url' is required.*: use CREATE TEMPORARY VIEW"),
        ({"url": "u", "queue": "q", "provider": "jms"}, "CREATE TABLE .* no options: use CREATE TEMPORARY VIEW"),
        ({"url": "u"}, "'queue' and 'topic'"),
        (
            {"url": "u", "queue": "q", "password": "p", "passwordFile": "f"},
            "'passwordEnv', and not by 'password' and 'passwordFile'$",
        ),
        ({"url": "u", "queue": "q", "topic": "t", "subscription": "s"}, "'queue' and 'topic'"),
        ({"url": "u", "topic": "t"}, "give both"),
        ({"url": "u", "queue": "q", "subscription": "s"}, "give both"),
        ({"url": "u", "queue": "q", "region": "r"}, "'queue' and 'topic', or 'region'"),
        ({"url": "u", "region": "r", "startingPosition": "last"}, "none of snapshot, latest, earliest"),
        ({"url": "u", "queue": "q", "keyPattern": "a.*"}, "keyPattern chooses keys of a region"),
        ({"url": "u", "queue": "q", "queues": "a,b"}, "'queuePattern', and not by 'queue' and 'queues'$"),
        ({"url": "u", "queue": "q", "clientId": "me"}, "clientId is for the subscription of a topic"),
        ({"url": "u", "queue": "q", "producerId": "p"}, "'producerid' is for writing: leave it out here"),
        ({"url": "u", "queue": "q", "kafka.acks": "all"}, "'kafka.acks' is one of Kafka's, and there is none here"),
        ({"url": "u", "queues": "a,,b"}, "an empty name, or one twice"),
        ({"url": "u", "queues": "a, b,a"}, "an empty name, or one twice"),
        ({"url": "u", "queues": "a,b", "spool": "/s"}, "a spool is for one queue"),
        ({"url": "u", "queue": "q", "startingPosition": "snapshot"}, "'snapshot' is none of these: earliest, latest"),
        ({"url": "u", "queue": "q", "startingPosition": "-1"}, "'-1' is none of these"),
        ({"url": "u", "queue": "q", "startingPosition": "2026-11-26T08:00:00"}, "has no zone: write 2026-11-26T08:00"),
        ({"url": "u", "queue": "q", "startingPosition": "2026-11-26"}, "write 2026-11-26T00:00:00Z for UTC"),
        ({"url": "u", "queues": "a,b", "startingPosition": '{"c": 1}'}, "a position for 'c', which is not read"),
        ({"url": "u", "queue": "q", "startingPosition": "{1"}, "is no JSON"),
        ({"url": "u", "queue": "q", "spool": "/s", "startingPosition": "latest"}, "has no startingPosition"),
        ({"url": "u", "queue": "q", "endingPosition": "earliest"}, "leaves nothing to read"),
        ({"url": "u", "queue": "q", "endingPosition": '{"q": "Earliest"}'}, "leaves nothing to read"),
        ({"url": "u", "queue": "q", "spool": "/s", "startingPosition": '{"q": 7}'}, "has no startingPosition"),
        ({"url": "u", "region": "r", "endingPosition": "latest"}, "endingPosition is for queues"),
        ({"url": "u", "queue": "q", "minMessagesPerTrigger": "9", "maxMessagesPerTrigger": "8"}, "=9 is above max"),
        ({"url": "u", "queue": "q", "maxOffsetsPerTrigger": "9"}, "one of Kafka's; here it is maxMessagesPerTrigger"),
        ({"url": "u", "queue": "q", "startingOffsets": "latest"}, "one of Kafka's; here it is startingPosition"),
        ({"url": "u", "subscribePattern": "a.*"}, "one of Kafka's; here it is queuePattern"),
        ({"url": "u", "region": "r", "spool": "/s"}, "its streams need no spool"),
        ({"url": "u", "queue": "q", "spoolIds": "5000"}, "spoolIds is for a spool: name its directory"),
        ({"url": "u", "queue": "q", "spool": "/s", "spoolIds": "5"}, "below the least value, 1000"),
        (
            {"url": "u", "queue": "q", "spool": "/s", "minMessagesPerTrigger": "9", "spoolMaxMessages": "8"},
            "=9 is above spoolMaxMessages=8",
        ),
        ({"url": "u", "queue": "q", "spool": "hdfs://n/s"}, "'hdfs://n/s' is a URL; name a directory"),
        ({"url": "embedded:/d", "queue": "q", "spool": "/s"}, "an embedded: queue is read without one"),
        ({"url": "u", "queue": "q", "fetchBytes": "many"}, "fetchBytes='many' is not a whole number$"),
        ({"url": "u", "queue": "q", "minPartitions": "4.0"}, "minPartitions='4.0' is not a whole number, or none$"),
        ({"url": "u", "queue": "q", "minPartitions": "1_0"}, "minPartitions='1_0' is not a whole number"),
        ({"url": "u", "queue": "q", "retrySeconds": "15m"}, "retrySeconds='15m' is not a number$"),
        ({"url": "u", "queue": "q", "fetchBytes": "9" * 20}, "is above the greatest value, 9223372036854775807$"),
        ({"url": "u", "queue": "q", "path": "p"}, "'p' by the path, and 'q' by the option 'queue'; name one$"),
        ({"url": "u", "queues": "a,b", "path": "p"}, "and not by 'queue' and 'queues'$"),
        ({"url": "u", "region": "r", "path": "p"}, "and not by 'queue' and 'region'$"),
        ({"url": "u", "paths": '["a","b"]'}, "name several by the option 'queues'$"),
        ({"url": "u", "queue": "q", "startingPosition": "5", "endingPosition": "3"}, "nothing between them$"),
        ({"url": "u", "queues": "a,b", "startingPosition": "5", "endingPosition": '{"b": 3}'}, "in the queue 'b'"),
        ({"url": "u", "region": "r", "minPartitions": "2"}, "minPartitions is for queues"),
        ({"url": "u", "region": "r", "maxPartitions": "2"}, "maxPartitions is for queues"),
        ({"url": "u", "queue": "q", "minPartitions": "3", "maxPartitions": "2"}, "=3 is above maxPartitions=2$"),
        ({"url": "u", "region": "r", "minMessagesPerTrigger": "9", "maxMessagesPerTrigger": "8"}, "=9 is above max"),
        ({"url": "u", "queue": "q", "maxMessagesPerTrigger": "0"}, "below the least value, 1"),
        ({"url": "u", "queue": "q", "failOnDataLoss": "no"}, "failOnDataLoss='no' is neither true nor false"),
        ({"url": "u", "queue": "q", "retrySeconds": "nan"}, "retrySeconds='nan' is not a finite number"),
    ],
)
def test_contradictions_of_a_source_are_named(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_source(options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"url": "u", "topic": "t"}, "at least once only"),
        (
            {"url": "u", "topic": "t", "region": "r"},
            "'queue' and 'topic', or 'region', and not by 'topic' and 'region'$",
        ),
        ({"url": "u", "queue": "q", "maxMessagesPerTrigger": "1"}, "'maxmessagespertrigger' is for reading"),
        ({"url": "u", "region": "r", "priority": "5"}, "have no priority"),
        ({"url": "u", "region": "r", "timeToLive": "5"}, "do not expire"),
        ({"url": "u", "queue": "q", "deliveryGuarantee": "maybe"}, "neither exactly_once nor at_least_once"),
        ({"url": "u", "queue": "q", "priority": "10"}, "not from 0 to 9"),
        ({"url": "u", "queue": "q", "timeToLive": "inf"}, "timeToLive='inf' is not a finite number"),
        ({"url": "u", "queue": "q", "timeToLive": "1e18"}, "'1e18' is above the greatest value, 3155760000$"),
        ({"url": "u", "queue": "q", "path": "p"}, "'p' by the path, and 'q' by the option 'queue'; name one$"),
        ({"url": "u", "queue": "q", "producerId": "p", "deliveryGuarantee": "at_least_once"}, "at_least_once none is"),
    ],
)
def test_contradictions_of_a_sink_are_named(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_sink(options)


def test_a_position_is_told_from_the_name_of_its_queue() -> None:
    options = {"url": "u", "queue": "earliest-orders", "endingPosition": '{"earliest-orders": 17}'}
    assert parse_source(options).ending_position == options["endingPosition"]
    spooled = {"url": "u", "queue": "q", "spool": "/s", "startingPosition": '{"q": "earliest"}'}
    assert parse_source(spooled).starting_position == spooled["startingPosition"]


@pytest.mark.parametrize("source", [{"queue": "q"}, {"queue": "q", "spool": "/s"}, {"region": "r"}])
def test_a_selector_is_parsed_before_anything_is_read(source: dict[str, str]) -> None:
    assert parse_source({"url": "u", **source, "selector": "p = 1"}).selector == "p = 1"
    with pytest.raises(InvalidSelectorException):
        parse_source({"url": "u", **source, "selector": "p = = 1"})


def test_several_queues_are_named_with_commas() -> None:
    assert queues_of(parse_source({"url": "u", "queues": "a, b ,c"})) == ("a", "b", "c")
    assert queues_of(parse_source({"url": "u", "queue": "a, b"})) == ("a, b",)
    assert queues_of(parse_source({"url": "u", "queuepattern": "a.*"})) is None


def test_a_spool_has_limits_of_its_own() -> None:
    options = parse_source({"url": "u", "queue": "q", "spool": "/s"})
    assert (options.spool_max_messages, options.spool_max_bytes, options.spool_ids) == (1_000_000, 4 * 2**30, 100_000)
    named = {"spoolmaxmessages": "7", "spoolmaxbytes": "none", "spoolids": "1000", "spoolhost": "driver"}
    options = parse_source({"url": "u", "queue": "q", "spool": "/s", "selector": "a = 1", **named})
    assert (options.spool_max_messages, options.spool_max_bytes) == (7, None)
    assert (options.spool_ids, options.spool_host, options.selector) == (1000, "driver", "a = 1")


def test_every_option_is_described() -> None:
    for cls in (SourceOptions, SinkOptions):
        assert all(name and text for name, _, text in describe(cls))


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(parse_source({"url": "u", "queue": "q", "username": "me", "password": "secret"}))
    for url in ("amqp://me:secret@host:5672?retries=1", "failover:(amqp://me:secret@a,amqp://me:secret@b)"):
        shown = repr(parse_sink({"url": url, "queue": "q"}))
        assert "secret" not in shown
        assert "***@" in shown


#: Every name that an option has had.  A new option comes into this list; none is removed, unless its old name is an
#: error that says the new one.
EVERY_NAME = """
    clientId deliveryGuarantee endingPosition failOnDataLoss failOnMissing fetchBytes headRefreshSeconds
    includeProperties keyPattern maxBytesPerPartition maxMessagesPerPartition maxMessagesPerTrigger
    maxPartitions maxTriggerDelaySeconds minMessagesPerTrigger minPartitions password passwordEnv passwordFile priority
    producerId queue queuePattern queues region retrySeconds selector spool spoolHost spoolIds spoolMaxBytes
    spoolMaxMessages startingPosition subscription takeOver timeToLive topic url username
"""


def test_no_option_has_lost_its_name() -> None:
    assert sorted({name for cls in (SourceOptions, SinkOptions) for name, _, _ in describe(cls)}) == EVERY_NAME.split()
