"""Engines in this process: shared by path, opened with the first connection, closed with the last."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.messages.amqp_message import encode_amqp
from broker_adapter.amqp.messages.payloads import decode_payload
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import AMQP_FORMAT, BodyKind, Envelope, Identity
from broker_adapter.errors import (
    IllegalStateException,
    InvalidURLException,
    JMSException,
    StoreException,
    StoreLockedException,
)
from broker_adapter.in_process import EngineLease, InProcessTransport
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Credentials, Delivery, Failed, ReceiverSpec, SenderSpec, TransportEvent
from broker_adapter.urls.url import EmbeddedURL, parse_url
from sdk import ConnectionFactory
from tests.broker_adapter.engine.driving import eventually
from tests.broker_adapter.engine.releasing import released_late

WAIT = 120.0


def url(path: Path | None, options: str = "") -> EmbeddedURL:
    parsed = parse_url(f"embedded:{path or ''}{'?' + options if options else ''}")
    assert isinstance(parsed, EmbeddedURL)
    return parsed


def test_all_transports_of_a_directory_share_its_engine(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    first, second = EngineLease(url(tmp_path / "data")), EngineLease(url(tmp_path / "link" / ".." / "data"))
    assert first.broker is second.broker
    other = EngineLease(url(tmp_path / "other"))
    assert other.broker is not first.broker
    for lease in (first, second, other):
        lease.release()


def test_the_last_one_closes_the_engine_and_gives_the_store_free(tmp_path: Path) -> None:
    first, second = EngineLease(url(tmp_path)), EngineLease(url(tmp_path))
    first.release()
    first.release()
    assert second.broker.failed is None
    with pytest.raises(StoreLockedException):
        Broker(EngineSettings(), str(tmp_path))
    second.release()
    Broker(EngineSettings(), str(tmp_path)).close()


@pytest.mark.parametrize("options", ["", "memory=shop"])
def test_an_engine_in_memory_ends_with_its_last_connection(options: str) -> None:
    first, second = EngineLease(url(None, options)), EngineLease(url(None, options))
    broker = first.broker
    assert second.broker is broker
    first.release()
    assert broker.failed is None
    second.release()
    assert broker.failed is not None
    third = EngineLease(url(None, options))
    assert third.broker is not broker
    third.release()


def test_engines_in_memory_are_told_apart_by_their_names(tmp_path: Path) -> None:
    urls = [url(None), url(None, "memory=shop"), url(None, "memory=bank"), url(tmp_path)]
    leases = [EngineLease(each) for each in urls]
    assert len({id(lease.broker) for lease in leases}) == len(urls)
    again = EngineLease(url(None, "memory=bank&max_queue_messages=10000000"))
    assert again.broker is leases[2].broker
    for lease in (again, *leases):
        lease.release()


def test_two_tests_of_an_application_do_not_see_each_others_messages() -> None:
    for _ in range(2):
        with ConnectionFactory("embedded:").create_context() as context:
            assert list(context.create_browser(context.create_queue("orders"))) == []
            context.create_producer().send(context.create_queue("orders"), "hello")
            with ConnectionFactory("embedded:").create_context() as other:
                assert other.create_consumer(other.create_queue("orders")).receive_body(str, WAIT) == "hello"
            context.create_producer().send(context.create_queue("orders"), "left over")


def test_other_options_for_an_open_engine_are_refused(tmp_path: Path) -> None:
    lease = EngineLease(url(tmp_path, "max_queue_messages=5"))
    EngineLease(url(tmp_path, "max_queue_messages=5")).release()
    EngineLease(url(tmp_path)).release()  # without an option, the value of the open engine holds
    with pytest.raises(IllegalStateException, match=r"max_queue_messages=5, so it cannot be used with .*=6"):
        EngineLease(url(tmp_path, "max_queue_messages=6"))
    lease.release()


def test_a_connection_that_cannot_be_opened_leaves_no_engine_behind(tmp_path: Path) -> None:
    with ConnectionFactory(f"embedded:{tmp_path}").create_connection(client_id="me") as connection:
        with pytest.raises(JMSException, match="'me' is in use"):
            ConnectionFactory(f"embedded:{tmp_path}").create_connection(client_id="me")
        assert connection.client_id == "me"
    Broker(EngineSettings(), str(tmp_path)).close()


def test_a_stopped_engine_is_reported_to_its_connections_and_is_opened_again(tmp_path: Path) -> None:
    events: list[TransportEvent] = []
    transport = InProcessTransport(url(tmp_path), decode_payload)
    transport.open(Credentials(), events.append, WAIT)
    link = transport.attach(SenderSpec(1, queue("q")), None, WAIT)
    lease = EngineLease(url(tmp_path))
    assert lease.broker._stores.disk is not None
    lease.broker._stores.disk._env.close()
    with pytest.raises(StoreException):
        transport.send(link, Envelope(queue("q")), None, WAIT)
    assert [type(event) for event in events] == [Failed]
    transport.close(WAIT)
    lease.release()
    with ConnectionFactory(f"embedded:{tmp_path}").create_connection() as connection:
        assert connection.is_holdfast


def test_messages_of_amqp_clients_are_decoded(tmp_path: Path) -> None:
    transport = InProcessTransport(url(tmp_path), decode_payload)
    transport.open(Credentials(), lambda _event: None, WAIT)
    lease = EngineLease(url(tmp_path))
    sent = Envelope(queue("q"), BodyKind.TEXT, "from another client", priority=6, persistent=True)
    client = lease.broker.call(c.Connect(None), WAIT)
    lease.broker.call(c.Enqueue(client, queue("q"), [c.NewMessage(AMQP_FORMAT, encode_amqp(sent))]), WAIT)
    found: list[Any] = []
    link = transport.attach(ReceiverSpec(1, queue("q"), browse=True), found.extend, WAIT)
    transport.credit(link, 10)
    transport.drain(link, WAIT)
    assert [delivery.envelope.body for delivery in found] == ["from another client"]
    transport.close(WAIT)
    lease.release()


def _use_in_child(connection: Any, path: str, results: Any) -> None:
    try:
        connection.create_session().create_producer(queue("q")).send("x")
        results.put("sent")
    except JMSException as error:
        results.put(f"{type(error).__name__}: {error}")
    try:
        ConnectionFactory(f"embedded:{path}").create_connection()
    except JMSException as error:
        results.put(type(error).__name__)


def _close_in_child(connection: Any, results: Any) -> None:
    connection.close()
    results.put("closed")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_closes_a_connection_whose_engine_was_at_work(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    stop = threading.Event()

    def send() -> None:
        with ConnectionFactory(f"embedded:{tmp_path}").create_connection() as other, other.create_session() as session:
            producer = session.create_producer(session.create_queue("q"))
            while not stop.is_set():
                producer.send("x")

    with ConnectionFactory(f"embedded:{tmp_path}").create_connection() as connection:
        sender = threading.Thread(target=send)
        sender.start()
        for _ in range(5):
            results = context.Queue()
            child = context.Process(target=_close_in_child, args=(connection, results))
            child.start()
            assert results.get(timeout=WAIT) == "closed"
            child.join(WAIT)
        stop.set()
        sender.join(WAIT)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_touch_its_parents_engine(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with ConnectionFactory(f"embedded:{tmp_path}").create_connection() as connection:
        results = context.Queue()
        child = context.Process(target=_use_in_child, args=(connection, os.fspath(tmp_path), results))
        child.start()
        assert "it was made by the parent of this process" in results.get(timeout=WAIT)
        assert results.get(timeout=WAIT) == "StoreLockedException"
        child.join(WAIT)
        with connection.create_session() as session:
            session.create_producer(session.create_queue("q")).send("the parent goes on")


def _outlive(results: Any, over: Any) -> None:
    results.put("there")
    over.wait(WAIT)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_keep_its_parents_store(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results, over = context.Queue(), context.Event()
    with ConnectionFactory(f"embedded:{tmp_path}").create_connection():
        child = context.Process(target=_outlive, args=(results, over))
        child.start()
        assert results.get(timeout=WAIT) == "there"
    with ConnectionFactory(f"embedded:{tmp_path}").create_connection() as again:
        assert child.is_alive()
        with again.create_session() as session:
            session.create_producer(session.create_queue("q")).send("another engine of the parent")
    over.set()
    child.join(WAIT)


class _Paused:
    """A connection of which one thread stands still in the middle of handing its work over to the engine."""

    def __init__(self, transport: InProcessTransport, monkeypatch: pytest.MonkeyPatch) -> None:
        self._transport = transport
        self._reached, self._go_on = threading.Event(), threading.Event()
        broker = transport._broker
        submit = broker.submit

        def slow(command: Any) -> None:
            if threading.current_thread() is self._thread:
                self._reached.set()
                self._go_on.wait(WAIT)
            submit(command)

        monkeypatch.setattr(broker, "submit", slow)
        other = transport.attach(SenderSpec(2, queue("other")), None, WAIT)
        self._thread = threading.Thread(
            target=lambda: transport.send(other, Envelope(queue("other")), lambda _error: None, WAIT)
        )

    def __enter__(self) -> None:
        self._thread.start()
        assert self._reached.wait(WAIT)

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._thread.join(WAIT)


def test_sends_of_a_thread_stay_in_order_whatever_other_threads_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the second one ahead, the engine would take the first for one that it has already, and drop it."""
    transport = InProcessTransport(url(tmp_path), decode_payload)
    transport.open(Credentials(), lambda _event: None, WAIT)
    try:
        link = transport.attach(SenderSpec(1, queue("q")), None, WAIT)
        with _Paused(transport, monkeypatch):
            for number, on_settled in ((1, lambda _error: None), (2, None)):
                envelope = Envelope(queue("q"), BodyKind.TEXT, str(number), identity=Identity("producer", 1, number))
                transport.send(link, envelope, on_settled, WAIT)
        statistics = transport.request("statistics", {}, WAIT)
        assert statistics["duplicates_rejected"] == 0
        assert statistics["enqueued"] == 3
        arrived: list[Delivery] = []
        receiver = transport.attach(ReceiverSpec(1, queue("q")), arrived.extend, WAIT)
        transport.credit(receiver, 10)
        transport.drain(receiver, WAIT)
        assert [each.envelope.body for each in arrived] == ["1", "2"]
    finally:
        transport.close(WAIT)


def test_sends_are_answered_in_order_though_a_cycle_takes_more_while_callbacks_are_called(tmp_path: Path) -> None:
    """A cycle and a callback run at once where the store has copies."""
    told: list[str] = []
    with released_late():
        transport = InProcessTransport(url(tmp_path, "max_queue_messages=1"), decode_payload)
        transport.open(Credentials(), lambda _event: None, WAIT)
        link, other = [transport.attach(SenderSpec(number, None), None, WAIT) for number in (1, 2)]

        def send(of: int, to: str, body: str, then: Callable[[], None] = lambda: None) -> None:
            def on_settled(error: JMSException | None) -> None:
                assert error is None
                told.append(body)
                then()

            transport.send(of, Envelope(queue(to), BodyKind.TEXT, body), on_settled, WAIT)

        def send_last() -> None:
            send(link, "full", "last")
            eventually(lambda: not transport._outbox)  # a cycle has taken it

        transport.send(link, Envelope(queue("full")), None, WAIT)
        with transport._broker.reading(is_shown=False):  # one cycle takes all of them
            send(link, "full", "first")
            send(other, "other", "beside", send_last)
            send(link, "full", "second")
        eventually(lambda: told == ["beside"])
        receiver = transport.attach(
            ReceiverSpec(3, queue("full")),
            lambda arrived: transport.settle([Settlement(each.tag, Outcome.ACCEPTED) for each in arrived]),
            WAIT,
        )
        transport.credit(receiver, 10)
        eventually(lambda: len(told) == 4)
        transport.close(WAIT)
    assert told == ["beside", "first", "second", "last"]


@pytest.mark.parametrize("last", ["end_session", "detach", "commit", "request"])
def test_what_was_settled_is_settled_before_anything_that_a_thread_asks_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    transport = InProcessTransport(url(tmp_path), decode_payload)
    transport.open(Credentials(), lambda _event: None, WAIT)
    try:
        sender = transport.attach(SenderSpec(1, queue("q")), None, WAIT)
        transport.send(sender, Envelope(queue("q"), BodyKind.TEXT, "x"), None, WAIT)
        arrived: list[Delivery] = []
        receiver = transport.attach(ReceiverSpec(3, queue("q")), arrived.extend, WAIT)
        transport.credit(receiver, 1)
        transport.drain(receiver, WAIT)
        with _Paused(transport, monkeypatch):
            transport.settle([Settlement(arrived[0].tag, Outcome.ACCEPTED)])
            if last == "end_session":
                transport.end_session(3, WAIT)
            elif last == "detach":
                transport.detach(receiver, WAIT)
            elif last == "commit":
                transport.commit(1, 1, [], [], WAIT)
            (found,) = [each for each in transport.request("statistics", {}, WAIT)["queues"] if each["name"] == "q"]
            assert found["messages"] == 0
    finally:
        transport.close(WAIT)


def test_what_a_handler_of_a_signal_kept_from_being_told_is_told_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = InProcessTransport(url(None), decode_payload)
    transport.open(Credentials(), lambda _event: None, WAIT)
    link = transport.attach(SenderSpec(1, queue("q")), None, WAIT)
    answered: list[object] = []
    message = Envelope(queue("q"), BodyKind.TEXT, "x", identity=Identity("p", 1, 1))

    def interrupted(_command: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transport._broker, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            transport.send(link, message, answered.append, WAIT)
    came = threading.Event()
    transport.send(
        link, Envelope(queue("q"), BodyKind.TEXT, "y", identity=Identity("p", 1, 2)), lambda _error: came.set(), WAIT
    )
    assert came.wait(WAIT)
    assert answered == [None]
    transport.close(WAIT)


@pytest.mark.parametrize("name", ["", "?memory=x"])
def test_an_engine_that_is_open_with_other_options_says_what_to_do(name: str) -> None:
    used, asked = (
        parse_url(f"embedded:{each}") for each in (name, f"{name or '?'}&max_deliveries=4".replace("?&", "?"))
    )
    assert isinstance(used, EmbeddedURL)
    assert isinstance(asked, EmbeddedURL)
    lease = EngineLease(used)
    with pytest.raises(IllegalStateException, match=r"^the engine of embedded:.* or close the others first$") as found:
        EngineLease(asked)
    assert f"embedded:{name} is open" in str(found.value)
    lease.release()


def test_an_engine_in_the_process_reads_the_settings_of_its_queues_as_it_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('[[policy]]\nmatch = "orders.>"\nmax_deliveries = 3\n')
    urls = [f"embedded:{tmp_path / 'data'}{query}" for query in (f"?config={file}", "", "?config=other.toml")]
    used, plain, other = map(parse_url, urls)
    assert isinstance(used, EmbeddedURL)
    assert isinstance(plain, EmbeddedURL)
    assert isinstance(other, EmbeddedURL)
    lease = EngineLease(used)
    asked = lease.broker.request("queue_settings", {"destination": "orders.eu"}, WAIT)
    assert asked["max_deliveries"] == [3, "policy 'orders.>'"]
    same = EngineLease(plain)
    assert same.broker is lease.broker
    with pytest.raises(IllegalStateException, match=f"with config='{file}', so it cannot be used with config='other"):
        EngineLease(other)
    same.release()
    lease.release()
    file.write_text("[[policy]]\nmatch = 5\n")
    with pytest.raises(InvalidURLException, match=f"{file}:2: match=5 is not a pattern"):
        EngineLease(used)
