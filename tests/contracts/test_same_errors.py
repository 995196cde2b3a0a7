"""What a program does wrong raises the same error, whichever transport it works over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import (
    Connection,
    ConnectionFactory,
    Destination,
    DestinationKind,
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    InvalidSelectorException,
    MessageConsumer,
    MessageFormatException,
    Session,
)

#: Over which each program runs: embedded, our own format over AMQP, standard AMQP messages.
TRANSPORTS = ("embedded", "amqp", "standard amqp")
#: A program that does something wrong.
Misuse = Callable[[Connection, Session], object]


@pytest.fixture(scope="module")
def factories() -> Iterator[dict[str, ConnectionFactory]]:
    """A factory for each transport."""
    broker = Broker(EngineSettings(), None)
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    # A connection that the SDK breaks is not restored again and again.
    url = f"amqp://127.0.0.1:{port}?failover=nofailover"
    urls = ("embedded:", url, f"{url}&envelope=false")
    yield {name: ConnectionFactory(each) for name, each in zip(TRANSPORTS, urls, strict=True)}
    listener.stop()
    broker.close()


Factories = dict[str, ConnectionFactory]


def error_over(factory: ConnectionFactory, misuse: Misuse) -> Exception:
    """What a program raises."""
    with factory.create_connection(client_id="client") as connection:
        connection.start()
        with connection.create_session() as session, pytest.raises(Exception) as raised:
            misuse(connection, session)
    return raised.value


def errors(factories: Factories, misuse: Misuse) -> list[tuple[type, str]]:
    """The class and the text over each transport, without the condition that AMQP has for it."""
    found = [error_over(factory, misuse) for factory in factories.values()]
    return [(type(each), getattr(each, "reason", str(each))) for each in found]


def refused_alike(factories: Factories, misuse: Misuse, kind: type[Exception], text: str) -> None:
    """It is refused with this error over every transport, by the SDK itself."""
    for name, factory in factories.items():
        error = error_over(factory, misuse)
        found = getattr(error, "reason", str(error))
        assert (name, type(error), found) == (name, kind, found), found
        assert text in found, (name, found)
        assert getattr(error, "error_code", None) is None, f"{name}: sent, and refused by the broker"


#: Names that nothing can have, and why.
WRONG_NAMES = {
    "empty": ("", "is not a string of at least one character"),
    "none": (None, "is not a string of at least one character"),
    "a number": (7, "is not a string of at least one character"),
    "bytes": (b"x", "is not a string of at least one character"),
    "NUL": ("a\0b", "has the character NUL, which no name may have"),
    "a lone surrogate": ("a\ud800b", "is not valid Unicode"),
    "401 bytes": ("x" * 401, "of 401 bytes is longer than the limit of 400 bytes"),
    "402 bytes of 201 characters": ("\N{LATIN SMALL LETTER E WITH ACUTE}" * 201, "of 402 bytes is longer than"),
    "70,000 bytes": ("x" * 70_000, "of 70000 bytes is longer than the limit of 400 bytes"),
}
#: Names that look odd, and are names all the same.
ODD_NAMES = (" ", "a b", "a:b", "a/b", "#", "*", "$x", "a\nb", "\x01", "\x7f", "\ufffe", "\N{GRINNING FACE}", "x" * 400)
wrong_names = pytest.mark.parametrize(("name", "why"), WRONG_NAMES.values(), ids=WRONG_NAMES)

SUBSCRIBING: dict[str, Callable[[Session, Any], object]] = {
    "durable": lambda session, name: session.create_durable_consumer(session.create_topic("news"), name),
    "shared": lambda session, name: session.create_shared_consumer(session.create_topic("news"), name),
    "shared durable": lambda session, name: session.create_shared_durable_consumer(session.create_topic("news"), name),
    "unsubscribe": lambda session, name: session.unsubscribe(name),
}


@wrong_names
@pytest.mark.parametrize("subscribe", SUBSCRIBING.values(), ids=SUBSCRIBING)
def test_a_name_that_no_subscription_can_have_is_refused_alike(
    factories: Factories, subscribe: Callable[[Session, Any], object], name: Any, why: str
) -> None:
    refused_alike(factories, lambda _, session: subscribe(session, name), ValueError, why)


@pytest.mark.parametrize("subscribe", SUBSCRIBING.values(), ids=SUBSCRIBING)
def test_a_vertical_bar_is_in_no_name_of_a_subscription(
    factories: Factories, subscribe: Callable[[Session, Any], object]
) -> None:
    """Over AMQP, "a|b" would be the subscription "a"."""
    refused_alike(factories, lambda _, session: subscribe(session, "a|b"), ValueError, "has a '|'")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_odd_names_of_subscriptions_are_names(factories: Factories, transport: str) -> None:
    factory = factories[transport]
    with factory.create_connection(client_id="client") as connection, connection.create_session() as session:
        news = session.create_topic("news")
        for name in ODD_NAMES:
            session.create_durable_consumer(news, name).close()
            session.create_shared_consumer(news, name).close()
            session.unsubscribe(name)
            session.create_shared_durable_consumer(news, name).close()
            session.unsubscribe(name)


@wrong_names
def test_a_name_that_no_client_can_have_is_refused_alike(factories: Factories, name: Any, why: str) -> None:
    if name is None:
        return  # then one is invented
    for factory in factories.values():
        with pytest.raises(InvalidClientIDException) as raised:
            factory.create_connection(client_id=name)
        assert why in raised.value.reason
        assert raised.value.error_code is None


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_client_ids_are_client_ids(factories: Factories, transport: str, name: str) -> None:
    with factories[transport].create_connection(client_id=name) as connection:
        assert connection.client_id == name
        with connection.create_session() as session:
            session.create_durable_consumer(session.create_topic("news"), name).close()
            session.unsubscribe(name)


#: What is done with a destination that the program has made by itself.
USES: dict[str, Callable[[Session, Destination], object]] = {
    "consume": lambda session, destination: session.create_consumer(destination),
    "produce": lambda session, destination: session.create_producer(destination),
    "send": lambda session, destination: session.create_producer().send("x", destination),
    "browse": lambda session, destination: list(session.create_browser(destination)),
    "subscribe": lambda session, destination: session.create_shared_consumer(destination, "name"),
    "delete": lambda session, destination: session.delete_temporary(destination),
}


@wrong_names
@pytest.mark.parametrize("make", [Session.create_queue, Session.create_topic])
def test_a_name_that_no_destination_can_have_is_refused_alike(
    factories: Factories, make: Callable[[Session, Any], Destination], name: Any, why: str
) -> None:
    refused_alike(factories, lambda _, session: make(session, name), InvalidDestinationException, why)


@wrong_names
@pytest.mark.parametrize("kind", DestinationKind)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_destination_with_a_name_that_none_can_have_is_refused_alike(
    factories: Factories, use: Callable[[Session, Destination], object], kind: DestinationKind, name: Any, why: str
) -> None:
    """A name that is no string once broke a connection over AMQP, again and again."""
    destination = Destination(name, kind)
    if not isinstance(name, str):
        why = "is not a destination such as create_queue() and create_topic() make"
    refused_alike(factories, lambda _, session: use(session, destination), InvalidDestinationException, why)


@pytest.mark.parametrize("kind", ["queue", None, 7])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_destination_of_an_unknown_kind_is_refused_alike(
    factories: Factories, use: Callable[[Session, Destination], object], kind: Any
) -> None:
    destination = Destination("name", kind)
    why = "is not a destination such as create_queue() and create_topic() make"
    refused_alike(factories, lambda _, session: use(session, destination), InvalidDestinationException, why)


@pytest.mark.parametrize("wrong", ["name", 7, Destination(None), Destination("q", "queue")])  # type: ignore[arg-type]
def test_a_reply_to_that_is_no_destination_is_refused_alike(factories: Factories, wrong: Any) -> None:
    """Embedded, a destination without a name was once sent, and its message could not be read."""

    def misuse(_: Connection, session: Session) -> None:
        message = session.create_text_message("x")
        message.reply_to = wrong
        session.create_producer(session.create_queue("q")).send(message)

    refused_alike(factories, misuse, InvalidDestinationException, "reply_to=")


TEXT = "a\ud800b"  #: no Unicode


def _send(session: Session, **headers: Any) -> None:
    message = session.create_text_message("x")
    for name, value in headers.items():
        setattr(message, name, value)
    session.create_producer(session.create_queue("q")).send(message)


def _send_property(session: Session, name: Any, value: Any) -> None:
    message = session.create_text_message("x")
    message.properties[name] = value
    session.create_producer(session.create_queue("q")).send(message)


#: What else a program may give that cannot be right: the error.
OTHER: dict[str, tuple[Misuse, type[Exception]]] = {
    "a selector that is no string": (
        lambda _, session: session.create_consumer(session.create_queue("q"), 7),  # type: ignore[arg-type]
        InvalidSelectorException,
    ),
    "a selector that is none": (
        lambda _, session: session.create_consumer(session.create_queue("q"), "a ="),
        InvalidSelectorException,
    ),
    "a selector that is no Unicode": (
        lambda _, session: session.create_consumer(session.create_queue("q"), f"a = '{TEXT}'"),
        InvalidSelectorException,
    ),
    "a selector that is too long": (
        lambda _, session: session.create_consumer(session.create_queue("q"), f"a = '{'x' * 1_000_000}'"),
        InvalidSelectorException,
    ),
    "a selector that is too deep": (
        lambda _, session: session.create_browser(session.create_queue("q"), "(" * 5000 + "a = 1" + ")" * 5000),
        InvalidSelectorException,
    ),
    "the name of a property that is no string": (
        lambda _, session: _send_property(session, 7, 1),
        MessageFormatException,
    ),
    "the name of a property with NUL": (lambda _, session: _send_property(session, "a\0b", 1), MessageFormatException),
    "the name of a property that is no Unicode": (
        lambda _, session: _send_property(session, TEXT, 1),
        MessageFormatException,
    ),
    "a property that is no Unicode": (lambda _, session: _send_property(session, "p", TEXT), MessageFormatException),
    "a property of bytes": (lambda _, session: _send_property(session, "p", b"x"), MessageFormatException),
    "a property of 65 bits": (lambda _, session: _send_property(session, "p", 1 << 64), MessageFormatException),
    "a group that is no string": (lambda _, session: _send(session, group_id=7), MessageFormatException),
    "a group that is no Unicode": (lambda _, session: _send(session, group_id=TEXT), MessageFormatException),
    "a group sequence of 33 bits": (lambda _, session: _send(session, group_sequence=1 << 32), MessageFormatException),
    "a type that is no Unicode": (lambda _, session: _send(session, type=TEXT), MessageFormatException),
    "a correlation id that is no Unicode": (
        lambda _, session: _send(session, correlation_id=TEXT),
        MessageFormatException,
    ),
    "a correlation id that is a number": (lambda _, session: _send(session, correlation_id=7), MessageFormatException),
    "a text that is no Unicode": (lambda _, session: _send(session, text=TEXT), MessageFormatException),
    "an operation that is no Unicode": (lambda connection, _: connection.request(TEXT, {}), MessageFormatException),
    "an argument that is no Unicode": (
        lambda connection, _: connection.request("bounds", {"destination": TEXT}),
        MessageFormatException,
    ),
    "the name of an argument that is no Unicode": (
        lambda connection, _: connection.request("bounds", {TEXT: 1}),
        MessageFormatException,
    ),
    "an operation that there is not": (lambda connection, _: connection.request("dance", {}), MessageFormatException),
    "an argument that there is not": (
        lambda connection, _: connection.request("bounds", {"dance": 1}),
        MessageFormatException,
    ),
    "an argument that is too long": (
        lambda connection, _: connection.request("purge", {"destination": "x" * 40_000}),
        MessageFormatException,
    ),
    "an argument with a text that is no Unicode": (
        lambda connection, _: connection.request("discard", {"transactions": ["x", TEXT]}),
        MessageFormatException,
    ),
    "an argument that no queue can have as its name": (
        lambda connection, _: connection.request("bounds", {"destination": "x" * 401, "make": True}),
        InvalidDestinationException,
    ),
}


@pytest.mark.parametrize(("misuse", "kind"), OTHER.values(), ids=OTHER)
def test_a_value_that_cannot_be_carried_is_refused_alike(
    factories: Factories, misuse: Misuse, kind: type[Exception]
) -> None:
    found = errors(factories, misuse)
    assert [each for each, _ in found] == [kind] * len(found), found
    assert len({text for _, text in found}) == 1, found


def _deep(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


#: What a request for messages that are named cannot have, by what it is.
NAMED: dict[str, Any] = {
    "a name that is no Unicode": [1, TEXT, 0],
    "an identity that is no Unicode": [1, [TEXT, 1, 1], 0],
    "a name that is nothing": [1, object(), 0],
    "a name of lists": [1, [["p"], {}, 2], 0],
    "a position of 71 bits": [1 << 70, "x", 0],
    "failures below zero": [1, "x", -5],
    "lists in lists": _deep(5000),
}


@pytest.mark.parametrize("operation", ["settle_positions", "uncount"])
@pytest.mark.parametrize("given", NAMED.values(), ids=NAMED)
def test_a_message_that_cannot_be_named(factories: Factories, operation: str, given: Any) -> None:
    arguments = {"destination": "q", "given": [given]}
    found = errors(factories, lambda connection, _: connection.request(operation, arguments))
    assert [each for each, _ in found] == [MessageFormatException] * len(found), found


@pytest.mark.parametrize("position", [1 << 70, -1])
def test_a_position_that_none_can_have(factories: Factories, position: int) -> None:
    arguments = {"destination": "q", "token": "t", "positions": [1, position]}
    found = errors(factories, lambda connection, _: connection.request("seen", arguments))
    assert [each for each, _ in found] == [MessageFormatException] * len(found), found


def _in_use(destination: Callable[[Session], Destination]) -> Misuse:
    def misuse(_: Connection, session: Session) -> None:
        made = destination(session)
        with session.create_consumer(made):
            session.delete_temporary(made)

    return misuse


def _twice(_: Connection, session: Session) -> None:
    made = session.create_temporary_queue()
    session.delete_temporary(made)
    session.delete_temporary(made)


def _unsubscribe(subscribe: Callable[[Session, Any], MessageConsumer]) -> Misuse:
    def misuse(_: Connection, session: Session) -> None:
        try:
            with subscribe(session, "used"):
                session.unsubscribe("used")
        finally:
            session.unsubscribe("used")

    return misuse


def _both(first: Callable[[Session, Any], MessageConsumer], second: Callable[[Session, Any], object]) -> Misuse:
    def misuse(_: Connection, session: Session) -> None:
        try:
            with first(session, "both"):
                second(session, "both")
        finally:
            session.unsubscribe("both")

    return misuse


durable: Callable[[Session, Any], MessageConsumer] = SUBSCRIBING["durable"]  # type: ignore[assignment]
shared_durable: Callable[[Session, Any], MessageConsumer] = SUBSCRIBING["shared durable"]  # type: ignore[assignment]

#: What another connection has made.
OTHERS = Destination("temporary-topic/others", DestinationKind.TEMPORARY_TOPIC)
#: What a program does at the wrong moment, or with what is not its own: the error.
STATES: dict[str, tuple[Misuse, type[Exception], str]] = {
    "delete a temporary queue that is consumed": (
        _in_use(Session.create_temporary_queue),
        IllegalStateException,
        "cannot delete 'NAME': a consumer uses it; close it first",
    ),
    "delete a temporary topic that is consumed": (
        _in_use(Session.create_temporary_topic),
        IllegalStateException,
        "cannot delete 'NAME': a consumer uses it; close it first",
    ),
    "delete a temporary queue twice": (
        _twice,
        InvalidDestinationException,
        "'NAME' is no temporary destination of this connection",
    ),
    "delete a temporary topic of another connection": (
        lambda _, session: session.delete_temporary(OTHERS),
        InvalidDestinationException,
        "'temporary-topic/others' is no temporary destination of this connection",
    ),
    "consume from a temporary topic of another connection": (
        lambda _, session: session.create_consumer(OTHERS),
        InvalidDestinationException,
        "temporary topic 'temporary-topic/others' can be consumed only by the connection that made it",
    ),
    "subscribe durably to a temporary topic": (
        lambda _, session: session.create_durable_consumer(session.create_temporary_topic(), "durable"),
        InvalidDestinationException,
        "temporary topic 'NAME' cannot have a durable subscription: it ends with its connection",
    ),
    "subscribe durably to a temporary topic of another connection": (
        lambda _, session: session.create_durable_consumer(OTHERS, "durable"),
        InvalidDestinationException,
        "temporary topic 'temporary-topic/others' cannot have a durable subscription: it ends with its connection",
    ),
    "browse a topic": (
        lambda _, session: session.create_browser(session.create_topic("news")),
        InvalidDestinationException,
        "cannot browse 'news': it is a topic",
    ),
    "unsubscribe what is consumed": (
        _unsubscribe(durable),
        IllegalStateException,
        "cannot unsubscribe 'used': a consumer uses it; close it first",
    ),
    "unsubscribe what is shared": (
        _unsubscribe(shared_durable),
        IllegalStateException,
        "cannot unsubscribe 'used': a consumer uses it; close it first",
    ),
    "unsubscribe what there is not": (
        lambda _, session: session.unsubscribe("nothing"),
        InvalidDestinationException,
        "there is no durable subscription 'nothing' of client id 'client'",
    ),
    "consume from a durable subscription twice": (
        _both(durable, durable),
        IllegalStateException,
        "subscription 'both' is in use by another consumer; close it first, or share the subscription",
    ),
    "share a durable subscription that is not shared": (
        _both(durable, shared_durable),
        IllegalStateException,
        "subscription 'both' is an unshared durable one; unsubscribe it first",
    ),
    "consume alone from a durable subscription that is shared": (
        _both(shared_durable, durable),
        IllegalStateException,
        "subscription 'both' is a shared durable one; unsubscribe it first",
    ),
    "commit what is not transacted": (lambda _, session: session.commit(), IllegalStateException, "commit"),
}


@pytest.mark.parametrize(("misuse", "kind", "text"), STATES.values(), ids=STATES)
def test_what_does_not_fit_the_state_of_things_is_refused_alike(
    factories: Factories, misuse: Misuse, kind: type[Exception], text: str
) -> None:
    found = [(each, re.sub(r"temporary-\w+/[0-9a-f]{24}", "NAME", words)) for each, words in errors(factories, misuse)]
    assert [each for each, _ in found] == [kind] * len(found), found
    assert {words if text in words else None for _, words in found} == {found[0][1]}, found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_durable_subscription_and_another_one_of_the_same_name_are_apart(
    factories: Factories, transport: str
) -> None:
    """Over AMQP, a connection that used one of them was refused the other one."""
    factory = factories[transport]
    with factory.create_connection(client_id="client") as connection, connection.create_session() as session:
        news = session.create_topic("news")
        with session.create_shared_consumer(news, "name"):
            with session.create_durable_consumer(news, "name"), session.create_shared_consumer(news, "name"):
                pass
            session.unsubscribe("name")
            with pytest.raises(InvalidDestinationException, match="there is no durable subscription 'name'"):
                session.unsubscribe("name")


#: What is done with what is closed.
CLOSED: dict[str, Misuse] = {
    "create a session": lambda connection, _: connection.create_session(),
    "start": lambda connection, _: connection.start(),
    "stop": lambda connection, _: connection.stop(),
    "make a request": lambda connection, _: connection.request("statistics", {}),
    "create a queue": lambda _, session: session.create_queue("q"),
    "create a temporary queue": lambda _, session: session.create_temporary_queue(),
    "delete a temporary queue": lambda _, session: session.delete_temporary(OTHERS),
    "create a producer": lambda _, session: session.create_producer(Destination("q")),
    "create a consumer": lambda _, session: session.create_consumer(Destination("q")),
    "create a browser": lambda _, session: session.create_browser(Destination("q")),
    "unsubscribe": lambda _, session: session.unsubscribe("name"),
    "recover": lambda _, session: session.recover(),
    "acknowledge": lambda _, session: session.acknowledge(),
}


@pytest.mark.parametrize("misuse", CLOSED.values(), ids=CLOSED)
def test_what_is_closed_cannot_be_used(factories: Factories, misuse: Misuse) -> None:
    def closed(connection: Connection, session: Session) -> None:
        connection.close()
        connection.close()
        session.close()
        misuse(connection, session)

    found = [(each, re.sub(r"\d+", "N", text)) for each, text in errors(factories, closed)]
    assert set(found) == {(IllegalStateException, found[0][1])}, found
    assert "is CLOSED" in found[0][1]
