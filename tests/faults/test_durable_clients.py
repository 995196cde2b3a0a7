"""Durable clients of regions over failover: nothing is lost or out of order where the network or the server goes."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker_adapter.connect import transport_for
from broker_adapter.destination import topic
from broker_adapter.envelope import BodyKind, Envelope, Identity, pack
from broker_adapter.errors import JMSException
from broker_adapter.transport import (
    Credentials,
    EventDelivery,
    EventsSpec,
    LinkInterrupted,
    LinkLost,
    LinkRestored,
    Restored,
    Transport,
    TransportEvent,
)
from tests.faults.proxy import Cut, Direction, Proxy
from tests.faults.scenarios import WAIT, wait_for
from tests.server_process import ServerProcess

pytestmark = pytest.mark.crash

FAST = "reconnect_delay_seconds=0.01&close_timeout_seconds=2&stable_seconds=0&reconnect_multiplier=1"
ALL_KEYS = (1, "", "")


class Desk:
    """A durable client: it says that it is ready after each restore, and passes over what it has had before.

    Attributes:
        keys: of the events that it has processed, in order.
        told: the events of its transport.
        again: how many events came again.
    """

    def __init__(self, url: str, client_id: str | None, region: str, window: int = 50) -> None:
        self.keys: list[str] = []
        self.told: list[TransportEvent] = []
        self.again = 0
        self.markers = 0
        self.last = 0
        self._region = region
        self._changed = threading.Condition()
        self._acknowledged = 0
        self._is_over = False
        self._is_ready = False
        self.transport: Transport = transport_for(f"{url}?{FAST}")[0]
        self.transport.open(Credentials(client_id=client_id), self._tell, WAIT)
        self.link = self.transport.attach(EventsSpec(1, None, window), self._take, WAIT)
        self._register()
        self._worker = threading.Thread(target=self._work)
        self._worker.start()

    def ask(self, operation: str, **arguments: Any) -> Any:
        return self.transport.request(operation, arguments, WAIT)

    def _register(self) -> None:
        self.ask("create_region", region=self._region)
        self.ask("register_interest", region=self._region, interests=[ALL_KEYS], durable=True)

    def _tell(self, event: TransportEvent) -> None:
        with self._changed:
            self.told.append(event)
            if isinstance(event, Restored | LinkRestored):
                self._is_ready = False
                self._changed.notify_all()

    def _take(self, events: Sequence[EventDelivery]) -> None:
        with self._changed:
            for event in events:
                if event.region is None:
                    self.markers += 1
                elif event.position <= self.last:
                    self.again += 1
                    self._acknowledged = 0  # the acknowledgement was lost: it is said again
                else:
                    self.keys.append(event.key)
                    self.last = event.position
            self._changed.notify_all()

    def _work(self) -> None:
        """Say what is to be said of the events, which waits for the network where that is away."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_over or not self._is_ready or self.last > self._acknowledged, WAIT
                )
                if self._is_over:
                    return
                is_ready, self._is_ready, through = self._is_ready, True, self.last
                self._acknowledged = through
            if not is_ready:
                self.ask("ready_for_events")
            self.ask("acknowledge_events", through=through)

    def wait_for(self, count: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.keys) >= count, WAIT), (len(self.keys), self.told[-5:])
            return list(self.keys)

    def count(self, kind: type) -> int:
        return sum(isinstance(each, kind) for each in list(self.told))

    def close(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._worker.join(WAIT)
        self.transport.close(WAIT)


class Desks:
    """Makes durable clients, and closes them."""

    def __init__(self) -> None:
        self._made = contextlib.ExitStack()

    def __call__(self, url: str, region: str, client_id: str | None = "", **fields: Any) -> Desk:
        found = Desk(url, f"desk {uuid4()}" if client_id == "" else client_id, region, **fields)
        self._made.callback(found.close)
        return found

    def close(self) -> None:
        self._made.close()


@pytest.fixture
def desks() -> Iterator[Desks]:
    made = Desks()
    yield made
    made.close()


class Putter:
    """Puts keys one after the other, each until it is answered, with an identity that makes a repetition harmless."""

    def __init__(self, url: str, region: str) -> None:
        self._region = region
        self._producer = str(uuid4())
        self.put = 0
        self.transport: Transport = transport_for(f"{url}?{FAST}")[0]
        self.transport.open(Credentials(), lambda _event: None, WAIT)

    def __call__(self, count: int) -> None:
        for _ in range(count):
            identity = Identity(self._producer, 0, self.put + 1)
            value = pack(Envelope(topic(self._region), BodyKind.TEXT, "x" * 50, identity=identity))
            changes = [(f"k{self.put}", 0, value)]
            self.transport.request("change_keys", {"region": self._region, "changes": changes}, WAIT)
            self.put += 1

    def close(self) -> None:
        self.transport.close(WAIT)


@pytest.fixture
def region() -> str:
    return f"region {uuid4()}"


def keys(count: int) -> list[str]:
    return [f"k{number}" for number in range(count)]


@pytest.mark.parametrize("is_half_open", [False, True])
@pytest.mark.parametrize("client_id", ["", None], ids=["with a client id", "without one"])
def test_a_client_goes_on_where_its_connection_is_cut(
    server: ServerProcess, proxy: Proxy, region: str, desks: Desks, is_half_open: bool, client_id: str | None
) -> None:
    desk = desks(proxy.url, region, client_id)
    with contextlib.closing(Putter(server.url, region)) as put:
        for number in range(1, 4):
            put(100)
            if number == 2:
                desk.wait_for(101)
            cut = proxy.leave_half_open if is_half_open else proxy.cut
            assert cut() == 1
            put(100)
            assert wait_for(lambda: desk.count(Restored) >= number)  # noqa: B023
            desk.wait_for(200 * number)
    assert desk.wait_for(600) == keys(600)
    assert desk.count(Restored) == 3
    assert desk.count(LinkInterrupted) == desk.count(LinkLost) == 0, "the old connection was not in its way"
    assert desk.ask("pending_events") >= 0


@pytest.mark.parametrize("direction", Direction)
def test_a_client_goes_on_where_its_connection_is_cut_at_any_frame(
    server: ServerProcess, proxy: Proxy, region: str, desks: Desks, direction: Direction
) -> None:
    desk = desks(proxy.url, region, window=7)
    with contextlib.closing(Putter(server.url, region)) as put:
        for frames in range(1, 25):
            proxy.plan(Cut(direction, frames=proxy.frames[direction] + frames % 9, into_next=frames % 5))
            put(20)
        proxy.plan(None)
        put(1)
        assert desk.wait_for(put.put) == keys(put.put)
    assert desk.count(LinkLost) == 0


def test_a_client_that_is_cut_off_for_a_while_gets_what_came_meanwhile_as_history(
    server: ServerProcess, proxy: Proxy, region: str, desks: Desks
) -> None:
    desk = desks(proxy.url, region)
    with contextlib.closing(Putter(server.url, region)) as put:
        put(10)
        desk.wait_for(10)
        proxy.refuse()
        proxy.leave_half_open()
        put(1_000)
        proxy.refuse(False)
        assert desk.wait_for(1_010) == keys(1_010)
        assert wait_for(lambda: desk.markers == 2)
        put(5)
        assert desk.wait_for(1_015) == keys(1_015)


def test_another_program_of_the_same_client_id_is_refused_while_the_first_one_is_restored(
    server: ServerProcess, proxy: Proxy, region: str, desks: Desks
) -> None:
    name = f"desk {uuid4()}"
    desk = desks(proxy.url, region, name)
    with pytest.raises(JMSException, match=r"client id|is connected already"):
        desks(server.url, region, name)
    proxy.cut()
    assert wait_for(lambda: desk.count(Restored) >= 1)
    with contextlib.closing(Putter(server.url, region)) as put:
        put(10)
    assert desk.wait_for(10) == keys(10)


def test_nothing_is_lost_or_out_of_order_where_the_server_is_killed(tmp_path: Path, desks: Desks) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    with ServerProcess(tmp_path / "data") as server:
        desk, other = desks(server.url, "r"), desks(server.url, "r", window=3)
        put = Putter(server.url, "r")
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                put(1)

        worker = threading.Thread(target=work)
        worker.start()
        for _ in range(5):
            time.sleep(0.1 + chance.random() * 0.4)
            server.kill()
            server.start()
        time.sleep(0.3)
        enough = wait_for(lambda: put.put > 50)  # a busy machine takes longer
        stop.set()
        worker.join(WAIT)
        put.close()
        assert enough, f"seed {seed}"
        for each in (desk, other):
            assert each.wait_for(put.put) == keys(put.put), f"seed {seed}"
            assert each.count(Restored) >= 1
        desks.close()
