"""The check of permissions: every access to a destination asks it, with the user that has logged in, and is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from pathlib import Path

import pytest

from broker_adapter.amqp.management import DESTINATIONS as READ_AHEAD
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.destination import (
    TEMPORARY_QUEUE_PREFIX,
    TEMPORARY_TOPIC_PREFIX,
    Destination,
    DestinationKind,
    queue,
    topic,
)
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.operations.request import Names
from broker_adapter.engine.operations.requests import REQUESTS
from broker_adapter.server.access.permissions import asked_of_request, authorize
from broker_adapter.server.access.users import UsersFile
from broker_adapter.server.listener import Listener
from broker_adapter.server.protocol import ServerProtocol
from broker_adapter.settings import EngineSettings, ServerSettings
from broker_adapter.transport import EventsSpec, Subscription
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    InvalidDestinationException,
    JMSSecurityException,
    MessageFormatException,
    TransactionRolledBackException,
)
from tests.broker_adapter.engine.driving import WAIT, Inbox

Q, T, MINE = queue("q"), topic("t"), topic("mine")
#: Requests name a queue by it: for them only the names of temporary queues are told by their prefix.
LIKE_A_TOPIC = TEMPORARY_TOPIC_PREFIX + "1"


class Door:
    """What was asked for, and what is refused."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, str, Destination | None]] = []
        self.refused: tuple[str, Destination | None] | None = None
        self.meanwhile: Callable[[str], None] = lambda action: None  #: happens while the door is asked

    def __call__(self, user: str | None, action: str, destination: Destination | None) -> None:
        self.asked.append((user, action, destination))
        self.meanwhile(action)
        if (action, destination) == self.refused:
            raise JMSSecurityException(f"{user} may not {action} {destination}")

    def taken(self) -> list[tuple[str, Destination | None]]:
        """What was asked for since the last call, all by one user."""
        asked, self.asked = self.asked, []
        assert {user for user, _, _ in asked} <= {"alice"}
        return [(action, destination) for _, action, destination in asked]


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker(EngineSettings())
    yield broker
    broker.close()


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def connection(broker: Broker, door: Door, tmp_path: Path) -> Iterator[Connection]:
    users = UsersFile.open_or_make(tmp_path / "users")
    users.add("alice", "secret", 4096)
    listener = Listener(
        broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(users, plain=True), authorize=door
    )
    _, port = listener.start()
    factory = ConnectionFactory(f"amqp://127.0.0.1:{port}?allow_plain_without_tls=true")
    with factory.create_connection("alice", "secret", client_id="me") as connection:
        connection.start()
        yield connection
    listener.stop()


def send(connection: Connection) -> None:
    with connection.create_session() as session:
        session.create_producer(Q).send("x")


def send_anywhere(connection: Connection) -> None:
    with connection.create_session() as session, session.create_producer(None) as producer:
        for _ in range(3):
            producer.send("x", destination=Q)


def send_anywhere_in_a_transaction(connection: Connection) -> None:
    with connection.create_session(AcknowledgeMode.TRANSACTED) as session, session.create_producer(None) as producer:
        for _ in range(3):
            producer.send("x", destination=Q)
        session.commit()


def consume(connection: Connection) -> None:
    with connection.create_session() as session, session.create_consumer(Q) as consumer:
        consumer.receive_nowait()


def browse(connection: Connection) -> None:
    with connection.create_session() as session, session.create_browser(Q) as browser:
        list(browser)


def subscribe(connection: Connection) -> None:
    with connection.create_session() as session:
        session.create_durable_consumer(T, "s").close()


def replace_a_subscription(connection: Connection) -> None:
    with connection.create_session() as session:
        session.create_durable_consumer(MINE, "s").close()


def replace_a_subscription_with_another_selector(connection: Connection) -> None:
    with connection.create_session() as session:
        session.create_durable_consumer(T, "s", selector="a = 1").close()


def unsubscribe(connection: Connection) -> None:
    with connection.create_session() as session:
        session.unsubscribe("s")


def make_temporary(connection: Connection) -> None:
    with connection.create_session() as session:
        session.create_temporary_queue()


def ask(connection: Connection) -> None:
    connection.request("purge", {"destination": "q"})


def redrive(connection: Connection) -> None:
    connection.request("redrive", {})


def redrive_elsewhere(connection: Connection) -> None:
    connection.request("redrive", {"destination": "q", "to": "elsewhere"})


def ask_about_a_temporary_queue(connection: Connection) -> None:
    with pytest.raises(InvalidDestinationException, match="there is no queue"):
        connection.request("purge", {"destination": TEMPORARY_QUEUE_PREFIX + "1"})


def make_a_queue_named_like_a_temporary_topic(connection: Connection) -> None:
    connection.request("bounds", {"destination": LIKE_A_TOPIC, "make": True})


def redrive_to_a_queue_named_like_a_temporary_topic(connection: Connection) -> None:
    connection.request("redrive", {"destination": "q", "to": LIKE_A_TOPIC})


def stage_for_a_queue_named_like_a_temporary_topic(connection: Connection) -> None:
    connection.request("stage", {"transaction": "x", "queue": LIKE_A_TOPIC, "first": 0, "messages": []})


def stage(connection: Connection) -> None:
    connection.request("stage", {"transaction": "x", "queue": "q", "first": 0, "messages": []})


def receive_events(connection: Connection) -> None:
    transport = connection._transport
    link = transport.attach(EventsSpec(1, 0, 1), lambda _events: None, WAIT)
    transport.detach(link, WAIT)


def make_a_region(connection: Connection) -> None:
    connection.request("create_region", {"region": "t"})


def ask_about_several_queues(connection: Connection) -> None:
    connection.request("bounds_of_queues", {"destinations": ["q", "other"], "runs": ["", ""], "make": True})


def ask_in_general(connection: Connection) -> None:
    connection.statistics()


TEMPORARY = Destination("", DestinationKind.TEMPORARY_QUEUE)
#: What a client does, and what the door is asked for it, in this order.
WAYS = pytest.mark.parametrize(
    ("act", "asks"),
    [
        (send, [("send", Q)]),
        (send_anywhere, [("send", Q)]),
        (send_anywhere_in_a_transaction, [("send", Q)]),
        (consume, [("consume", Q)]),
        (browse, [("browse", Q)]),
        (subscribe, [("consume", T)]),
        (replace_a_subscription, [("consume", MINE), ("unsubscribe", topic("s"))]),
        (replace_a_subscription_with_another_selector, [("consume", T), ("unsubscribe", topic("s"))]),
        (unsubscribe, [("unsubscribe", topic("s"))]),
        (make_temporary, [("create_temporary", TEMPORARY)]),
        (receive_events, [("receive_events", topic("me"))]),
        (make_a_region, [("create_region", T)]),
        (ask, [("purge", Q)]),
        (ask_about_several_queues, [("bounds", Q), ("bounds", queue("other"))]),
        (ask_in_general, [("statistics", None)]),
        (stage, [("stage", Q), ("send", Q)]),
        (redrive, [("redrive", queue("DLQ"))]),
        (redrive_elsewhere, [("redrive", Q), ("send", queue("elsewhere"))]),
        (make_a_queue_named_like_a_temporary_topic, [("bounds", queue(LIKE_A_TOPIC))]),
        (redrive_to_a_queue_named_like_a_temporary_topic, [("redrive", Q), ("send", queue(LIKE_A_TOPIC))]),
        (stage_for_a_queue_named_like_a_temporary_topic, [(each, queue(LIKE_A_TOPIC)) for each in ("stage", "send")]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)


def prepare(connection: Connection) -> None:
    """Make a queue and a subscription, with a message each."""
    subscribe(connection)
    send(connection)
    with connection.create_session() as session:
        session.create_producer(T).send("x")


def contents(broker: Broker) -> list[tuple[str, str, int]]:
    """Each queue and subscription, with its number of messages."""
    return [(each.kind, each.name, each.messages) for each in broker.call(c.Statistics(), WAIT).queues]


@WAYS
def test_every_way_to_a_destination_asks_with_the_name_of_the_user(
    connection: Connection, door: Door, act: Callable[[Connection], None], asks: list[tuple[str, Destination | None]]
) -> None:
    prepare(connection)
    door.taken()
    act(connection)
    assert [each for each in door.taken() if each[0] != "watch"] == asks


@WAYS
def test_what_is_refused_is_an_error_and_changes_nothing(
    connection: Connection,
    broker: Broker,
    door: Door,
    act: Callable[[Connection], None],
    asks: list[tuple[str, Destination | None]],
) -> None:
    prepare(connection)
    before = contents(broker)
    error = TransactionRolledBackException if act is send_anywhere_in_a_transaction else JMSSecurityException
    for refused in asks:
        door.refused = refused
        with pytest.raises(error, match="alice may not"):
            act(connection)
        assert contents(broker) == before
    door.refused = None
    act(connection)  # the connection goes on


def test_an_attach_replaces_only_the_subscription_that_the_door_was_asked_for(
    connection: Connection, broker: Broker, door: Door
) -> None:
    """Another client replaces the subscription while the door is asked; the door is then asked for that one."""
    prepare(connection)
    times = 0

    def meanwhile(action: str) -> None:
        nonlocal times
        if action != "unsubscribe":
            return
        times += 1
        if times == 2:
            raise JMSSecurityException("alice may not end this one")
        other = broker.call(c.Connect("me", exclusive=False), WAIT)
        subscription = Subscription("s", durable=True, shared=False)
        consumer = broker.call(c.Attach(other, topic("secret"), Inbox(), subscription), WAIT)
        broker.call(c.Detach(consumer), WAIT)
        broker.call(c.Enqueue(other, topic("secret"), [c.NewMessage(0, b"x")]), WAIT)

    door.meanwhile = meanwhile
    with pytest.raises(JMSSecurityException, match="this one"):
        replace_a_subscription(connection)
    assert ("subscription", "secret:s", 1) in contents(broker)


def test_every_user_may_do_everything_today() -> None:
    authorize(None, "send", Q)
    authorize("alice", "delete", None)


@pytest.mark.parametrize(
    ("arguments", "destination"),
    [
        ({}, None),
        ({"destination": "q"}, Q),
        ({"destination": "t", "kind": "topic"}, T),
        ({"destination": ["q"]}, None),
        ({"destination": None}, None),
    ],
)
def test_requests_name_their_destination(arguments: dict[str, object], destination: Destination | None) -> None:
    assert asked_of_request("purge", arguments, "DLQ") == [("purge", destination)]


def test_a_request_that_sends_to_a_queue_asks_for_that_as_well() -> None:
    assert asked_of_request("stage", {"queue": "q"}, "DLQ") == [("stage", Q), ("send", Q)]
    assert asked_of_request("redrive", {"to": "q"}, "DLQ") == [("redrive", queue("DLQ")), ("send", Q)]
    assert asked_of_request("redrive", {"destination": 5, "to": "q"}, "DLQ") == [("redrive", None), ("send", Q)]


@pytest.mark.parametrize("operation", ["clients", "queue_size", "queries", "close_client", "close_query"])
def test_requests_name_a_durable_client_as_a_topic(operation: str) -> None:
    assert asked_of_request(operation, {"client_id": "t"}, "DLQ") == [(operation, T)]
    for arguments in ({}, {"client_id": None}, {"client_id": ["t"]}):
        assert asked_of_request(operation, arguments, "DLQ") == [(operation, None)]


def test_a_temporary_queue_has_its_kind_in_requests_as_on_links(connection: Connection, door: Door) -> None:
    door.taken()
    ask_about_a_temporary_queue(connection)
    temporary = Destination(TEMPORARY_QUEUE_PREFIX + "1", DestinationKind.TEMPORARY_QUEUE)
    assert door.taken() == [("purge", temporary)]


@pytest.mark.parametrize("operation", ["apply_batch", "site"])
def test_what_goes_from_site_to_site_needs_a_right_of_its_own(operation: str) -> None:
    assert asked_of_request(operation, {}, "DLQ") == [("gateway", None)]
    for own in ("read_gateway", "end_gateway_batch"):
        assert asked_of_request(own, {}, "DLQ") == [(own, None)]
    assert asked_of_request("create_gateway", {"destinations": ["queue:q"]}, "DLQ") == [("create_gateway", None)]


#: Texts in requests that name no destination.  A new one comes into this list, or says what it names.
NAMING_NONE = frozenset(
    (
        *("kind", "subscription", "client_id", "incarnation", "run", "runs", "selector", "claim", "holder", "token"),
        *("node", "address", "table"),
        *("transaction", "transactions", "group", "prefixes", "keep", "session", "keys", "after", "expression"),
        *("snapshot", "through", "name", "url", "state", "sender"),
    )
)


def test_each_text_of_each_request_names_a_destination_or_is_known_to_name_none() -> None:
    for request in REQUESTS.values():
        texts = {name for name, each in request.arguments.items() if str in (each.kind, each.of)}
        texts -= {"destinations"} if request is REQUESTS["create_gateway"] else set()
        assert texts - {name for name, _ in request.naming} <= NAMING_NONE, request
    assert {name for request in REQUESTS.values() for name, _ in request.naming} == {
        *("destination", "destinations", "queue", "to", "region", "client_id"),
    }


def test_a_connection_is_not_served_without_a_check_of_permissions() -> None:
    assert signature(ServerProtocol).parameters["authorize"].default is Parameter.empty


@pytest.mark.parametrize(
    "names", [["q", 5], [["q"]], ["q" * 40_000], ["q" * 100] * 400, "q", {"q": "q"}, ["q"] * 1001, None]
)
def test_no_form_of_several_names_goes_past_the_door(connection: Connection, door: Door, names: object) -> None:
    prepare(connection)
    door.refused = ("bounds", Q)
    with pytest.raises(MessageFormatException, match="destinations"):
        connection.request("bounds_of_queues", {"destinations": names, "runs": [""]})
    with pytest.raises(JMSSecurityException, match="alice may not"):
        connection.request("bounds_of_queues", {"destinations": ["other", "q"], "runs": ["", ""]})


def test_the_argument_whose_names_are_read_for_the_door_is_the_one_that_operations_have() -> None:
    several = [name for request in REQUESTS.values() for name, each in request.naming if each.names is Names.QUEUES]
    assert several == [READ_AHEAD]
