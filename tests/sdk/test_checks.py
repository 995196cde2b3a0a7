"""What callers give is checked before anything is sent, and refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sdk import (
    Connection,
    ConnectionFactory,
    InvalidClientIDException,
    JMSConsumer,
    JMSContext,
    JMSProducer,
    MessageConsumer,
    MessageFormatException,
    MessageProducer,
    QueueBrowser,
    Requestor,
    Sender,
    Session,
)
from sdk.checks import check_request, check_subscription_name, check_timeout
from sdk.range_reader import RangeReader

WAIT = 120.0


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with ConnectionFactory(f"embedded:{tmp_path}").create_connection() as connection:
        connection.start()
        yield connection


@pytest.mark.parametrize("arguments", [[], None, "x", 5, [("destination", "q")]])
def test_arguments_of_a_request_that_are_no_dictionary_are_refused(connection: Connection, arguments: Any) -> None:
    with pytest.raises(MessageFormatException, match="arguments of request 'statistics' are a dictionary by name"):
        connection.request("statistics", arguments)


def test_a_number_that_a_request_cannot_carry_names_its_argument(connection: Connection) -> None:
    for number in (1 << 64, -(1 << 63) - 1, 1 << 9000):
        with pytest.raises(MessageFormatException, match="argument 'limit' of request 'redrive' is a number of"):
            connection.request("redrive", {"limit": number})


def test_names_that_are_no_strings_are_refused(connection: Connection) -> None:
    with pytest.raises(MessageFormatException, match="operation of a request is a string, not None"):
        connection.request(None, {})  # type: ignore[arg-type]
    with pytest.raises(MessageFormatException, match="name 5 of an argument of request 'purge' is no string"):
        connection.request("purge", {5: 1})  # type: ignore[dict-item]


@pytest.mark.parametrize("timeout", ["x", True, -1, float("nan"), [1]])
def test_a_time_out_that_is_no_number_of_seconds_is_refused(connection: Connection, timeout: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a number of seconds; None stands for request_timeout_seconds"):
        connection.request("statistics", {}, timeout)
    with connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue("q"))
        with pytest.raises(ValueError, match="is not a number of seconds; None waits without limit"):
            consumer.receive(timeout)
        connection.start()
        session.create_producer(session.create_queue("q")).send("a")
        with pytest.raises(ValueError, match="is not a number of seconds; None waits without limit"):
            consumer.receive(timeout)  # also where a message is there already
        requestor = Requestor(session, session.create_queue("q"))
        with pytest.raises(ValueError, match="is not a number of seconds; None waits without limit"):
            requestor.request("?", timeout)


def test_an_integer_that_is_no_float_is_no_time_out() -> None:
    with pytest.raises(ValueError, match=r"timeout=1000\d*\.\.\.\d*000 is not a number of seconds"):
        check_timeout(10**400)


def test_numbers_of_seconds_are_time_outs() -> None:
    for timeout in (None, 0, 1, 0.5, float("inf")):
        check_timeout(timeout)


@pytest.mark.parametrize("name", ["a|b", "|", "", None, 7, "a\0b", "\ud800", "x" * 401])
def test_a_name_that_no_subscription_can_have_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="subscription name"):
        check_subscription_name(name)


@pytest.mark.parametrize("request_", [("\ud800", {}), ("purge", {"\ud800": 1}), ("purge", {"destination": "\ud800"})])
def test_a_request_has_no_text_that_is_not_unicode(request_: Any) -> None:
    with pytest.raises(MessageFormatException, match=r"request .*is not valid Unicode"):
        check_request(*request_)


@pytest.mark.parametrize("client_id", ["", 7, "a\0b", "\ud800", "x" * 401, "\N{SNOWMAN}" * 400_000])
@pytest.mark.parametrize("url", ["embedded:", "amqp://127.0.0.1:1"])
def test_a_client_id_that_no_client_can_have_is_refused_ahead_of_the_network(url: str, client_id: Any) -> None:
    with pytest.raises(InvalidClientIDException, match=r"client name .{0,600}$"):
        ConnectionFactory(url).create_connection(client_id=client_id)


def test_a_client_id_may_have_four_hundred_bytes() -> None:
    with ConnectionFactory("embedded:").create_connection(client_id="x" * 400) as connection:
        assert connection.client_id == "x" * 400


def test_misspelt_attributes_are_errors(connection: Connection) -> None:
    """``timeToLive`` and ``exceptionListener`` are what users of JMS write."""
    factory = ConnectionFactory("embedded:")
    with connection.create_session() as session, factory.create_context() as context:
        name = session.create_queue("misspelt")
        things = [
            *(factory, connection, session, context, context.create_producer(), context.create_consumer(name)),
            *(session.create_producer(name), session.create_consumer(name), session.create_browser(name)),
            *(session.create_text_message("x"), Requestor(session, name), RangeReader(connection, name)),
            connection.create_sender(name),
        ]
        for thing in things:
            for attribute in ("timeToLive", "exceptionListener", "prioriti", "__dict__"):
                with pytest.raises(AttributeError):
                    setattr(thing, attribute, 5)


#: Members of the interfaces of Jakarta Messaging 3.1, as Python writes them, and those that docs/ adds.
_API = {
    Session: "acknowledge acknowledge_mode close commit create_browser create_bytes_message create_consumer"
    " create_durable_consumer create_map_message create_message create_object_message create_producer create_queue"
    " create_region create_shared_consumer create_shared_durable_consumer create_stream_message create_temporary_queue"
    " create_temporary_topic create_text_message create_topic delete_temporary recover rollback transacted unsubscribe",
    MessageConsumer: "close destination listener no_local receive receive_many receive_nowait selector",
    MessageProducer: "close delivery_delay delivery_mode destination disable_message_id disable_timestamp priority send"
    " send_all time_to_live",
    QueueBrowser: "close destination selector",
    Sender: "close destination send send_all",
    Connection: "client_id close create_sender create_session event_listener exception_listener is_holdfast meta_data"
    " pending_event_count ready_for_events request start statistics stop",
    JMSContext: "acknowledge auto_start client_id close commit create_browser create_bytes_message create_consumer"
    " create_context create_durable_consumer create_map_message create_message create_object_message"
    " create_producer create_queue create_region create_shared_consumer create_shared_durable_consumer"
    " create_stream_message create_temporary_queue create_temporary_topic create_text_message create_topic"
    " delete_temporary event_listener exception_listener meta_data pending_event_count ready_for_events recover"
    " rollback session_mode start stop transacted unsubscribe",
    JMSConsumer: "close listener receive receive_body receive_body_nowait receive_many receive_nowait selector",
    JMSProducer: "clear_properties correlation_id delivery_delay delivery_mode disable_message_id disable_timestamp"
    " on_completion priority properties reply_to send send_all set_async set_correlation_id"
    " set_delivery_delay set_delivery_mode set_disable_message_id set_disable_timestamp set_priority set_property"
    " set_reply_to set_time_to_live set_type time_to_live type",
}


@pytest.mark.parametrize("kind", _API, ids=lambda kind: kind.__name__)
def test_what_is_not_for_applications_has_an_underscore(kind: type) -> None:
    assert [name for name in dir(kind) if not name.startswith("_")] == _API[kind].split()
