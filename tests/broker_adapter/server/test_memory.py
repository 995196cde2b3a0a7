"""What one connection costs a server in memory, whatever its client does: a server of its own for each test.

What is measured is memory of the process that no file stands behind: pages of the store that the system keeps in
memory, because it has nothing better to do with it, do not count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
import psutil
import pytest

from broker_adapter.amqp.messages.values import Described, Symbol, Symbols, UInt, ULong, encode
from broker_adapter.amqp.proton_engine.buffers import MAX_KEPT_BYTES, SMALL_BYTES
from broker_adapter.destination import queue, topic
from broker_adapter.envelope import BodyKind, Envelope, pack
from sdk import ConnectionFactory
from tests.broker_adapter.amqp.frames import (
    ATTACH,
    DISPOSITION,
    FLOW,
    SOURCE,
    TARGET,
    TRANSFER,
    attach,
    begin,
    flow,
    frame,
)
from tests.broker_adapter.server.raw_client import WAIT, RawClient, memory, request
from tests.contracts.transports import eventually
from tests.server_process import ServerProcess

MIB = 1024 * 1024
#: The budget of a connection, and what a server needs beside it: its caches, what is being copied, and what the
#: allocator keeps.
BUDGET, BESIDE = 128 * MIB, 112 * MIB
#: What is sent where the budget is to be exceeded by far.
MUCH = 480 * MIB
_TRANSACTION_DECLARE = b"\x00\x53\x77" + encode(Described(ULong(0x31), [None]))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", log=tmp_path / "log", new=True) as running:
        yield running


@attrs.define
class Growth:
    """By how much a server's memory grows, at most, while this is entered."""

    server: ServerProcess
    most: int = 0
    _first: int = 0
    _ended: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Growth:
        self._first = memory(self.server.pid, "RssAnon")
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._ended.set()
        self._thread.join()

    @property
    def now(self) -> int:
        return memory(self.server.pid, "RssAnon") - self._first

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.most = max(self.most, self.now)
        self.most = max(self.most, self.now)


def is_served(server: ServerProcess) -> bool:
    """Whether another client is served."""
    with ConnectionFactory(server.url).create_connection() as connection, connection.create_session() as session:
        connection.start()
        own = session.create_queue("served")
        session.create_producer(own).send("x")
        message = session.create_consumer(own).receive(timeout=WAIT)
        return message is not None and message.body == "x"


def is_at_rest(server: ServerProcess) -> bool:
    """Whether a server has nothing to do: it takes next to no CPU for a while."""
    process = psutil.Process(server.pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(1)
    return sum(process.cpu_times()[:2]) - before < 0.03


def message(size: int) -> bytes:
    """A standard message of so many bytes, about."""
    return b"\x00\x53\x75\xb0" + size.to_bytes(4) + bytes(size)


def finished(client: RawClient) -> int:
    """How many messages have arrived as a whole."""
    return sum(len(fields) < 6 or fields[5] is not True for fields in client.fields(TRANSFER))


def linked(client: RawClient, count: int, *further: bytes) -> None:
    """So many links to send on, each with its queue, and with their first credit."""
    client.send(begin(0), *further, *[attach(0, number, f"l{number}", f"q{number}") for number in range(count)])
    client.until(lambda: client.count(FLOW) >= count)


def test_unfinished_messages_take_bounded_memory(server: ServerProcess) -> None:
    links, size = 32, 15 * MIB
    with Growth(server) as growth, RawClient(server.port) as client:
        linked(client, links)

        def parts() -> Iterator[bytes]:
            for link in range(links):
                yield from client.deliver(0, link, message(size), finished=False)

        assert client.send_until_closed(parts()) > MUCH
        assert is_served(server)
    assert growth.most < BUDGET + BESIDE


def declared(client: RawClient, count: int) -> list[bytes]:
    """Transactions on the coordinator with handle 100."""
    flows = client.count(FLOW)
    client.send(attach(0, 100, "c", coordinator=True))
    client.until(lambda: client.count(FLOW) > flows)
    for _ in range(count):
        client.send(*client.deliver(0, 100, _TRANSACTION_DECLARE))

    def ids() -> list[bytes]:
        states: list[Any] = [fields[4] for fields in client.fields(DISPOSITION)]
        return [state.value[0] for state in states if getattr(state, "descriptor", None) == 0x33]

    client.until(lambda: len(ids()) == count)
    return ids()


def test_transactions_that_are_never_discharged_take_bounded_memory(server: ServerProcess) -> None:
    links, size = 8, 15 * MIB
    with Growth(server) as growth, RawClient(server.port) as client:
        linked(client, links)
        transactions = declared(client, links)

        def messages() -> Iterator[bytes]:
            for number in range(MUCH // size):
                link = number % links
                yield from client.deliver(0, link, message(size), txn_id=transactions[link])

        client.send_until_closed(messages())
        assert is_served(server)
    assert growth.most < BUDGET + BESIDE


def test_sessions_that_take_nothing_or_one_frame_need_bounded_memory(server: ServerProcess) -> None:
    sessions, size = 100, 5 * MIB
    with ConnectionFactory(server.url).create_connection() as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_queue("big"))
        for _ in range(0, sessions, 10):
            producer.send_all([bytes(size)] * 10)
    with Growth(server) as growth, RawClient(server.port) as client:
        for number in range(sessions):
            window = number % 2
            client.send(begin(number, window=window), attach(number, 0, f"r{number}", "big", receives=True))
            client.send(flow(number, 0, 10, window=window))
        client.until(lambda: client.count(ATTACH) == sessions)
        assert is_served(server)
        with ConnectionFactory(server.url).create_connection() as connection:
            assert connection.statistics().clients == 2
    assert growth.most < BUDGET // 4 + BESIDE


@pytest.mark.parametrize(
    ("count", "size", "kept"),
    [(400, MIB, 0), (3_000, 66_000, MAX_KEPT_BYTES + 3_000 * SMALL_BYTES)],
    ids=["in parts", "at once"],
)
def test_large_messages_that_a_consumer_keeps_unsettled_take_bounded_memory(
    server: ServerProcess, count: int, size: int, kept: int
) -> None:
    with ConnectionFactory(server.url).create_connection() as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_queue("big"))
        for _ in range(0, count, 100):
            producer.send_all([bytes(size)] * 100)
    with Growth(server) as growth, RawClient(server.port) as client:
        client.send(begin(0), attach(0, 0, "r", "big", receives=True), flow(0, 0, count))

        client.until(lambda: finished(client) == count)
        assert is_served(server)
    assert growth.most < kept + BESIDE


def test_a_message_of_empty_lists_takes_bounded_memory(server: ServerProcess) -> None:
    """The server does not read the body, until a client that does not know the form is to have it."""
    lists = 16 * MIB - 2_000
    body = b"\xdd" + lists.to_bytes(4) + b"\x90" * lists
    payload = pack(Envelope(queue("q0"), BodyKind.OBJECT, ["body"])).replace(b"\x91\xa4body", body)
    payload = payload[:32] + len(body).to_bytes(4) + payload[36:]
    with Growth(server) as growth, RawClient(server.port) as client:
        linked(client, 1)
        client.send(*client.deliver(0, 0, payload))
        client.until(lambda: client.count(DISPOSITION) == 1)
        (answer,) = client.fields(DISPOSITION)
        assert isinstance(answer[4], Described)
        assert answer[4].descriptor == 0x24  # accepted
        assert is_served(server)
        with RawClient(server.port, envelopes=False) as foreign:
            foreign.send(begin(0), attach(0, 0, "r", "q0", receives=True), flow(0, 0, 10))
            eventually(lambda: dead_letters(server) == 1)
            assert foreign.count(TRANSFER) == 0
        assert is_served(server)
    assert growth.most < BESIDE


def dead_letters(server: ServerProcess) -> int:
    """How many messages are in the dead-letter queue."""
    with ConnectionFactory(server.url).create_connection() as connection:
        return next(each.messages for each in connection.statistics().queues if each.name == "DLQ")


def test_answers_to_requests_that_came_together_take_bounded_memory(server: ServerProcess) -> None:
    with ConnectionFactory(server.url).create_connection() as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_queue("big"))
        for _ in range(8):
            producer.send(bytes(MIB // 2))
        bounds = connection.request("bounds", {"destination": "big"}, WAIT)
    whole = {"destination": "big", "first": bounds["first"], "last": bounds["next"] - 1, "max_bytes": 4 * MIB}
    whole |= {"incarnation": bounds["incarnation"], "run": bounds["run"]}
    count = 95
    with Growth(server) as growth, RawClient(server.port) as client:
        client.send(begin(0), begin(1, window=0), attach(0, 0, "ask", "$holdfast"))
        client.send(attach(1, 0, "answers", "$holdfast", receives=True), flow(1, 0, 1 << 30, window=0))
        client.until(lambda: client.count(ATTACH) == 2 and client.count(FLOW) >= 1)
        client.send(*[b"".join(client.deliver(0, 0, request(each, "read_range", whole))) for each in range(count)])
        eventually(lambda: growth.now > BUDGET * 3 // 4 and is_at_rest(server))
        assert is_served(server)
        client.send(flow(1, 0, 1 << 30, window=1 << 20))
        client.until(lambda: finished(client) == count)
    assert sum(b"max_connection_bytes" in payload for payload in client.payloads) > count // 2
    assert growth.most < BUDGET + BESIDE


@pytest.mark.parametrize(
    "answers", [(flow(1, 0, 1 << 30, window=0),), (flow(1, 0, 1 << 30, window=1),)], ids=["no window", "one frame"]
)
def test_answers_that_are_not_taken_need_bounded_memory(server: ServerProcess, answers: tuple[bytes, ...]) -> None:
    with ConnectionFactory(server.url).create_connection() as connection, connection.create_session() as session:
        for number in range(200):
            session.create_producer(session.create_queue(f"a queue with a long name {number:040d}"))
    with Growth(server) as growth, RawClient(server.port) as client:
        client.send(begin(0), begin(1, window=0), attach(0, 0, "ask", "$holdfast"))
        client.send(attach(1, 0, "answers", "$holdfast", receives=True), *answers)
        client.until(lambda: client.count(ATTACH) == 2 and client.count(FLOW) >= 1)
        asked = 0
        while asked < 10_000:
            flows: list[Any] = [fields for fields in client.fields(FLOW) if len(fields) > 6 and fields[4] == 0]
            allowed = flows[-1][5] + flows[-1][6]
            if asked == allowed:
                heard = client.count(FLOW)
                try:
                    client.until(lambda heard=heard: client.count(FLOW) > heard, seconds=2)  # type: ignore[misc]
                except AssertionError:
                    break  # no more credit
                continue
            client.send(
                *[b"".join(client.deliver(0, 0, request(asked, "statistics", {}))) for _ in range(allowed - asked)]
            )
            asked = allowed
        assert is_served(server)
    assert asked < 1_000
    assert growth.most < BESIDE


@pytest.mark.parametrize(
    "payload", [pack(Envelope(topic("t"), BodyKind.TEXT, "x")), b"\x9f"], ids=["accepted", "rejected"]
)
def test_answers_to_messages_that_are_not_taken_need_bounded_memory(server: ServerProcess, payload: bytes) -> None:
    target = Described(ULong(TARGET), ["t", None, None, None, None, None, Symbols(["topic"])])
    link = frame(
        0, ATTACH, "l", UInt(0), False, None, None, Described(ULong(SOURCE), ["s"]), target, None, None, UInt(0)
    )
    with Growth(server) as growth, RawClient(server.port, reads=False, receive_buffer=4096) as client:
        client.send(begin(0), link)

        def messages() -> Iterator[bytes]:
            for _ in range(400):
                yield b"".join(b"".join(client.deliver(0, 0, payload)) for _ in range(2_000))

        client.set_timeout(3)
        client.send_until_closed(messages())
        assert is_served(server)
    assert growth.most < BUDGET + BESIDE


def test_requests_that_are_carried_out_take_bounded_memory(server: ServerProcess) -> None:
    links, size = 8, 15 * MIB
    with Growth(server) as growth, RawClient(server.port) as client:
        for number in range(0, 2 * links, 2):
            client.send(*([begin(0)] if not number else []), attach(0, number, f"ask {number}", "$holdfast"))
            client.send(
                attach(0, number + 1, f"answers {number}", "$holdfast", receives=True), flow(0, number + 1, 100)
            )
        client.until(lambda: client.count(FLOW) >= links)
        body = request(1, "statistics", {"x": bytes(size)})

        def requests() -> Iterator[bytes]:
            for number in range(MUCH // size):
                yield from client.deliver(0, number % links * 2, body)

        client.send_until_closed(requests())
        assert is_served(server)
    assert growth.most < BUDGET + BESIDE


def test_attaches_with_large_properties_take_bounded_memory(server: ServerProcess) -> None:
    source, target = Described(ULong(SOURCE), ["q"]), Described(ULong(TARGET), ["q"])
    properties = {Symbol("x"): "y" * 200_000}

    def attaches() -> Iterator[bytes]:
        for number in range(1000):
            handle = UInt(number)
            nones = [None] * 5
            yield frame(
                *(0, ATTACH, f"l{number}", handle, False, None, None, source, target, None, None, UInt(0), *nones[:3]),
                properties,
            )

    with Growth(server) as growth, RawClient(server.port) as client:
        client.send(begin(0))
        assert client.send_until_closed(attaches()) < MUCH
        assert is_served(server)
    assert growth.most < BESIDE


def test_connections_that_have_ended_leave_bounded_memory(server: ServerProcess) -> None:
    """Their memory is not added up until the garbage collector comes."""
    links, size, rounds = 8, 12 * MIB, 6
    left: list[int] = []
    with Growth(server) as growth:
        for _ in range(rounds):
            with RawClient(server.port) as client:
                linked(client, links)
                for link in range(links):
                    client.send(*client.deliver(0, link, message(size), finished=False))
                client.send(*client.deliver(0, 0, b"", finished=False))
                assert is_served(server)
            assert is_served(server)
            left.append(growth.now)
    assert left[-1] < links * size + BESIDE, left
    assert growth.most < 2 * links * size + BESIDE, left
