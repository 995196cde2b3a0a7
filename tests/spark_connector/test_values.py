"""Values at their limits on a real Spark: messages that no column can show, rows of every session time zone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker_adapter.amqp.messages.values import Symbol, Timestamp, ULong, encode
from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import AMQP_FORMAT, ENVELOPE_FORMAT
from broker_adapter.in_process import EngineLease
from broker_adapter.urls.url import EmbeddedURL, parse_url
from sdk import AcknowledgeMode, ConnectionFactory, TextMessage
from spark_connector.rows import LAST_INSTANT_MS
from tests.spark_connector.queues import browse, fill, texts

PATIENCE = 300.0  #: seconds; longer than anything takes, also where the machine is busy
WAIT = 120.0  #: seconds; longer than anything takes, so that a hanging test ends


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    url = f"embedded:{tmp_path / 'data'}"
    with ConnectionFactory(url).create_connection():
        yield url


def section(code: int, value: object) -> bytes:
    return b"\x00\x53" + bytes((code,)) + encode(value)


def put(url: str, *payloads: tuple[int, bytes]) -> None:
    """Put messages into the queue ``in`` as another client has sent them: (message-format, payload)."""
    parsed = parse_url(url)
    assert isinstance(parsed, EmbeddedURL)
    lease = EngineLease(parsed)
    client = lease.broker.call(c.Connect(None), WAIT)
    new = [c.NewMessage(form, payload) for form, payload in payloads]
    lease.broker.call(c.Enqueue(client, Destination("in"), new), WAIT)
    lease.broker.call(c.Disconnect(client), WAIT)
    lease.release()


def foreign(body: object, sent_at_ms: int | None = None, **properties: object) -> tuple[int, bytes]:
    """A standard AMQP message."""
    fields = [None] * 9 + [None if sent_at_ms is None else Timestamp(sent_at_ms)]
    return AMQP_FORMAT, section(0x73, fields) + section(0x74, properties) + section(0x77, body)


def test_no_message_stops_a_stream_and_nothing_of_it_is_lost(spark: SparkSession, url: str, tmp_path: Path) -> None:
    bad = [
        foreign("far", 2**62),
        foreign({b"\x00\xff": [b"k", {Symbol("s"): ULong(2**64 - 1)}]}),
        (AMQP_FORMAT, section(0x77, "cut short")[:-3]),
        (ENVELOPE_FORMAT, b"\xdc\x00\x11garbage"),
    ]
    fill(url, "in", ["first"])
    put(url, *bad, foreign("end of time", LAST_INSTANT_MS))
    fill(url, "in", ["last"])
    stream = spark.readStream.format("jms").options(url=url, queue="in").load()
    writer = stream.writeStream.format("jms").options(url=url, queue="out", checkpointLocation=str(tmp_path / "c"))
    assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    assert texts(url, "in") == []
    assert texts(url, "out") == [
        "first",
        "far",
        '{"00ff": ["6b", {"s": 18446744073709551615}]}',
        bad[2][1],
        bad[3][1],
        "end of time",
        "last",
    ]


def test_what_cannot_be_shown_is_null_and_the_row_says_why(spark: SparkSession, url: str) -> None:
    far, cut = foreign("far", 2**62, n=1), (AMQP_FORMAT, section(0x77, "cut short")[:-3])
    put(url, far, cut, foreign("end of time", LAST_INSTANT_MS))
    frame = spark.read.format("jms").options(url=url, queue="in").load()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        shown = frame.selectExpr("*", "cast(timestamp as string) as sent").orderBy("position").collect()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    first, second, third = shown
    assert (first.text, first.properties, first.timestamp) == ("far", {"n": "1"}, None)
    assert first.problem.startswith("timestamp: 4611686018427387904 is not from")
    assert bytes(first._corrupt_record) == far[1]
    assert (second.bodyType, second.text, second.body, second.priority) == ("undecodable", None, None, None)
    assert second.problem.startswith("cannot be decoded")
    assert bytes(second._corrupt_record) == cut[1]
    assert (third.text, third.sent, third.problem, third._corrupt_record) == (
        "end of time",
        "9999-12-31 23:59:59.999",
        None,
        None,
    )


@pytest.mark.parametrize("zone", ["GMT+8", "+08:00", "Etc/GMT-8", "America/Los_Angeles", "Z", "UTC+03:30"])
def test_an_expiration_is_the_same_instant_in_every_session_time_zone(spark: SparkSession, url: str, zone: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        rows = spark.sql("select 'x' as value, timestamp_millis(4102444800123) as expiration")
        rows.write.format("jms").options(url=url, queue="in").mode("append").save()
        read = spark.read.format("jms").options(url=url, queue="in").load()
        (row,) = read.selectExpr("unix_millis(expiration) as ms").collect()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert browse(url, "in")[0].expires_at_ms == row.ms == 4_102_444_800_123


def test_properties_are_maps_of_strings_to_what_a_property_can_be(spark: SparkSession, url: str) -> None:
    for text in ("map('a', 'b')", "map('n', 1, 'm', null)", "map('x', 0.5d)", "map('t', true)"):
        rows = spark.sql(f"select 'v' as value, {text} as properties")
        rows.write.format("jms").options(url=url, queue="in").mode("append").save()
    found = [dict(message.properties) for message in browse(url, "in")]
    assert found == [{"a": "b"}, {"n": 1, "m": None}, {"x": 0.5}, {"t": True}]
    wrong = spark.sql("select 'v' as value, map('a', array(1)) as properties")
    with pytest.raises(Exception, match=r"'properties' cannot be of type map<string,array<int>>"):
        wrong.write.format("jms").options(url=url, queue="in").mode("append").save()


def test_names_of_properties_that_the_sdk_does_not_set_are_carried_as_they_are(spark: SparkSession, url: str) -> None:
    names = ["content-type", "order id", "", "JMSXGroupID", "null", "ä.ö", "1"]
    put(url, foreign("x", **{name: name for name in names}))
    read = spark.read.format("jms").options(url=url, queue="in").load()
    for guarantee in ("exactly_once", "at_least_once"):
        options = {"url": url, "queue": guarantee, "deliveryGuarantee": guarantee}
        read.write.format("jms").options(**options).mode("append").save()
        with ConnectionFactory(url).create_connection() as connection:
            connection.start()
            with connection.create_session(AcknowledgeMode.AUTO) as session:
                message = session.create_consumer(session.create_queue(guarantee)).receive(timeout=WAIT)
        assert isinstance(message, TextMessage)
        assert dict(message.properties) == {name: name for name in names}
        assert message.group_id is None


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("'x' as value, 10 as priority", "column 'priority' has the value 10: it is not from 0 to 9"),
        ("'x' as value, timestamp'1900-01-01 00:00:00' as expiration", "column 'expiration' has the value '1900-01-01"),
        ("cast(unhex('62e464') as string) as value", r"column 'value' has the value 62e464 \(hexadecimal\): it is not"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named(spark: SparkSession, url: str, row: str, text: str) -> None:
    rows = spark.sql(f"select {row}")
    first = r"^An exception was thrown from the Python worker:\n[\w.]+RowError: "  # what Spark puts before the sentence
    with pytest.raises(Exception, match=f"{first}partition 0, row 1: {text}"):
        rows.write.format("jms").options(url=url, queue="in").mode("append").save()
    assert texts(url, "in") == []


def damage(url: str, text: bytes) -> None:
    """Change the body of a message in the store of a running engine, and forget what the engine has in memory."""
    parsed = parse_url(url)
    assert isinstance(parsed, EmbeddedURL)
    lease = EngineLease(parsed)
    store = lease.broker.store
    with store.snapshot() as tables:
        key, value = next((key, value) for key, value in tables.items("messages") if text in value)
    store.apply([("messages", key, value.replace(text, text.swapcase()))])
    lease.broker._stores._cache.clear()
    lease.broker._stores._cache_bytes = 0
    lease.release()


@pytest.mark.damages
def test_a_damaged_message_fails_a_batch_unless_loss_is_allowed_and_is_kept_aside(
    spark: SparkSession, url: str
) -> None:
    fill(url, "in", ["first", "second", "third"])
    damage(url, b"second")
    with pytest.raises(Exception, match="position 2 of queue 'in' cannot be trusted"):
        spark.read.format("jms").options(url=url, queue="in").load().collect()
    with ConnectionFactory(url).create_connection() as connection:
        assert {each.name: each.messages for each in connection.statistics().queues}["in"] == 3
        found = spark.read.format("jms").options(url=url, queue="in", failOnDataLoss="false").load().collect()
        assert [row.text for row in found] == ["first", "third"]
        assert connection.statistics().quarantined == 1


@pytest.mark.damages
def test_a_damaged_message_stops_a_stream_before_anything_behind_it_is_settled(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    fill(url, "in", ["first", "second", "third"])
    damage(url, b"second")

    def run(**options: str) -> bool | None:
        stream = spark.readStream.format("jms").options(url=url, queue="in", **options).load()
        writer = stream.writeStream.format("jms").options(url=url, queue="out", checkpointLocation=str(tmp_path / "c"))
        return writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)

    with pytest.raises(Exception, match="position 2 of queue 'in' cannot be trusted"):
        run()
    with ConnectionFactory(url).create_connection() as connection:
        assert {each.name: each.messages for each in connection.statistics().queues}["in"] == 3
        assert run(failOnDataLoss="false")
        assert texts(url, "in") == []
        assert texts(url, "out") == ["first", "third"]
        assert connection.statistics().quarantined == 1
