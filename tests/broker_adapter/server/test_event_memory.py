"""What a durable client costs a server in memory, whatever it does and leaves undone: a server for each test."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgpack
import pytest

from broker_adapter.amqp.client import event_links
from broker_adapter.connect import transport_for
from broker_adapter.destination import topic
from broker_adapter.envelope import BodyKind, Envelope, pack
from broker_adapter.errors import JMSException
from broker_adapter.transport import Credentials, EventDelivery, EventsSpec, Transport
from tests.broker_adapter.amqp.frames import FLOW, attach, begin, flow
from tests.broker_adapter.server.raw_client import WAIT, RawClient, request
from tests.broker_adapter.server.test_memory import BESIDE, BUDGET, MIB, Growth, is_served
from tests.contracts.transports import eventually
from tests.server_process import ServerProcess

ALL_KEYS = (1, "", "")
AT_ONCE = 10_000


@pytest.fixture
def server(tmp_path: Any) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", log=tmp_path / "log") as running:
        yield running


Connect = Callable[..., Transport]


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Connect]:
    """Connections to the server, which are not restored."""
    made: list[Transport] = []

    def connect(client_id: str | None = None) -> Transport:
        transport = transport_for(f"{server.url}?close_timeout_seconds=1", restores=False)[0]
        made.append(transport)
        transport.open(Credentials(client_id=client_id), lambda _event: None, WAIT)
        return transport

    yield connect
    for each in made:
        each.close(1)


def put(transport: Transport, count: int, size: int) -> None:
    """Put so many keys of region r, as many at once as go into a request."""
    value = pack(Envelope(topic("r"), BodyKind.BYTES, b"x" * size))
    step = min(AT_ONCE, 8 * MIB // size + 1)
    for first in range(0, count, step):
        changes = [(f"k{number}", 0, value) for number in range(first, min(count, first + step))]
        transport.request("change_keys", {"region": "r", "changes": changes}, WAIT)


def durable(transport: Transport, take: Callable[[Sequence[Any]], None], interests: Sequence[Any] = (ALL_KEYS,)) -> int:
    """A link of a client that wants events and is ready for them."""
    transport.request("create_region", {"region": "r"}, WAIT)
    link = transport.attach(EventsSpec(1, None, 10_000), take, WAIT)
    transport.request("register_interest", {"region": "r", "interests": interests, "durable": True}, WAIT)
    return link


def run_client(url: str, how: str) -> None:
    """A durable client that takes its events without acknowledging them, gives no credit, or does not read at all."""
    if how == "without credit":
        event_links.EventsLink.on_transfers = lambda _self, _event: None  # type: ignore[method-assign]
    transport = transport_for(url, restores=False)[0]
    transport.open(Credentials(client_id="desk"), lambda _event: None, WAIT)

    def take(events: Sequence[EventDelivery]) -> None:
        if how == "without reading" and events[-1].region is not None:
            threading.Event().wait()  # this is the thread that reads the socket

    durable(transport, take)
    transport.request("ready_for_events", {}, WAIT)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


@pytest.mark.parametrize(
    ("how", "count", "size"),
    [
        ("without credit", 30_000, 100),
        ("without credit", 300, MIB),
        ("without reading", 300, MIB),
        ("without acknowledging", 300, MIB),
    ],
)
def test_events_that_a_client_never_takes_take_bounded_memory(
    server: ServerProcess, connect: Connect, how: str, count: int, size: int
) -> None:
    program = f"from {__name__} import run_client; run_client({server.url!r}, {how!r})"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            other = connect()
            with Growth(server) as growth:
                put(other, count, size)
                assert is_served(server)
            assert growth.most < BUDGET // 4 + BESIDE
        finally:
            client.kill()
    assert is_served(server)


def test_ten_thousand_interests_of_long_texts_take_bounded_memory(server: ServerProcess, connect: Connect) -> None:
    desk, other = connect("desk"), connect()
    got: list[Any] = []
    many: list[Any] = [(2, f"k.*|{number:0900}", "") for number in range(500)]
    many += [(0, f"{number:0400}", "") for number in range(AT_ONCE - 500)]
    with Growth(server) as growth:
        durable(desk, got.extend, many)
        desk.request("ready_for_events", {}, WAIT)
        put(other, 20, 100)
        eventually(lambda: len(got) >= 2)
        assert is_served(server)
    assert growth.most < BUDGET + BESIDE
    assert len(got[1].interests) == 500


def _strange(chance: random.Random) -> Any:
    """Something that is no list of changes, or of interests."""
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: chance.choice([True, -1, 2**64 - 1, 1.5, float("nan"), "", "x" * 5_000, b"", b"\xff" * 5_000]),
        lambda: [[]] * chance.randrange(20_000),
        lambda: [["k", 0, b"\xc1"]] * chance.randrange(1, 12_000),
        lambda: [[["k"], {}, msgpack.Timestamp(1)]],
        lambda: [["k", chance.randrange(-3, 9), chance.randbytes(chance.randrange(100))]],
        lambda: [["\0" * chance.randrange(500), 0, pack(Envelope(topic("r"), BodyKind.TEXT, "x"))]],
        lambda: [[chance.randrange(9), "(" * chance.randrange(2_000), "q"]],
        lambda: {"k": {"k": {"k": []}}},
        lambda: [[2, "(a{1,1000}){1,1000}", ""]],
        lambda: [[3, "a = " + "(" * 1_000, ""]],
    ]
    return chance.choice(kinds)()


def test_strange_requests_are_refused_one_by_one_and_others_are_served(server: ServerProcess, connect: Connect) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    desk = connect("desk")
    durable(desk, lambda _events: None)
    reasons: list[str] = []
    with Growth(server) as growth:
        for _ in range(150):
            operation, name = chance.choice(
                [("change_keys", "changes"), ("register_interest", "interests"), ("read_keys", "keys")]
            )
            arguments = {"region": "r", name: _strange(chance)}
            if operation == "read_keys":
                arguments["max_bytes"] = 1_000
            try:
                desk.request(operation, arguments, WAIT)
            except JMSException as error:
                reasons.append(f"{arguments!r:.200}: {error.reason}")
        assert is_served(server)
    assert len(reasons) > 50, f"seed {seed}"
    assert [each for each in reasons if "unexpectedly" in each] == [], f"seed {seed}"
    assert growth.most < BUDGET + BESIDE, f"seed {seed}"


def test_bytes_that_are_no_request_end_its_link_or_the_connection_and_nothing_else(server: ServerProcess) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for _ in range(30):
        with RawClient(server.port) as client:
            client.send(begin(0), attach(0, 0, "ask", "$holdfast"))
            client.send(attach(0, 1, "answers", "$holdfast", receives=True), flow(0, 1, 100))
            client.until(lambda: client.count(FLOW) >= 1)
            good = request(1, "change_keys", {"region": "r", "changes": [["k", 0, b"x" * 40]]})
            body = bytearray(good)
            for _ in range(chance.randrange(1, 6)):
                body[chance.randrange(len(body))] = chance.randrange(256)
            client.send_until_closed(client.deliver(0, 0, bytes(body[: chance.randrange(1, len(body) + 1)])))
    assert is_served(server), f"seed {seed}"
