"""Two peers joined by a pretend wire."""

from __future__ import annotations

from typing import Any, TypeVar

from broker_adapter.amqp.events import Event, Incoming, LinkRemoteOpen, Terminus, Transfers
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from tests.broker_adapter.amqp.frames import HEADER, attach, begin, open_frame, split, transfer

E = TypeVar("E")


class Pair:
    """A client's and a server's peer, with what each has heard so far."""

    def __init__(
        self,
        client: PeerLimits | None = None,
        server: PeerLimits | None = None,
        *,
        chunk_bytes: int | None = None,
    ) -> None:
        self.client = Peer(client or PeerLimits())
        self.server = Peer(server or PeerLimits(), server=True)
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []
        self.client_sent = b""
        self.chunk_bytes = chunk_bytes

    def pump(self) -> None:
        """Carry bytes both ways until nothing moves."""
        moved = True
        while moved:
            moved = False
            for sender, receiver, heard in (
                (self.client, self.server, self.server_events),
                (self.server, self.client, self.client_events),
            ):
                data = sender.pending_output()
                if sender is self.client:
                    self.client_sent += data
                step = self.chunk_bytes or max(1, len(data))
                for start in range(0, len(data), step):
                    receiver.receive(data[start : start + step])
                events = receiver.events()
                heard.extend(events)
                moved = moved or bool(data) or bool(events)

    def opened(self) -> Pair:
        """Open both ends."""
        self.client.open("client")
        self.server.open("server")
        self.pump()
        return self

    def sender(self, credit: int = 100, **accepted: Any) -> tuple[int, int]:
        """A link on which the client sends: its number at the client and at the server."""
        session = self.client.begin_session()
        link = self.client.attach_sender(session, f"s{session}", Terminus("s"), Terminus("q"))
        return link, self._answered(credit, **accepted)

    def receiver(self) -> tuple[int, int]:
        """A link on which the server sends: its number at the client and at the server."""
        session = self.client.begin_session()
        link = self.client.attach_receiver(session, f"r{session}", Terminus("q"), Terminus())
        return link, self._answered(0)

    def _answered(self, credit: int, **accepted: Any) -> int:
        self.pump()
        opened = last(self.server_events, LinkRemoteOpen)
        self.server.accept_link(opened.link, opened.source, opened.target, **accepted)
        if credit:
            self.server.credit(opened.link, credit)
        self.pump()
        return opened.link


def last(events: list[Event], kind: type[E]) -> E:
    """The last event of this kind."""
    return [event for event in events if isinstance(event, kind)][-1]


def every(events: list[Event], kind: type[E]) -> list[E]:
    """All events of this kind."""
    return [event for event in events if isinstance(event, kind)]


def arrived(pair: Pair) -> list[Incoming]:
    """All messages that the server has got."""
    return [delivery for event in every(pair.server_events, Transfers) for delivery in event.deliveries]


def links_of_one_session(pair: Pair, count: int) -> list[tuple[int, int]]:
    """Links on which the server sends, with credit: their numbers at the client and at the server."""
    session = pair.client.begin_session()
    links = []
    for number in range(count):
        link = pair.client.attach_receiver(session, f"r{number}", Terminus("q"), Terminus())
        links.append((link, pair._answered(0)))
        pair.client.credit(link, 1000)
    pair.pump()
    return links


def transfers_in(data: bytes) -> list[bytes]:
    return [each for each in split(data) if each[8:11] == b"\x00\x53\x14"]


def sending_peer(*frames: bytes, window: int = 100) -> tuple[Peer, list[LinkRemoteOpen]]:
    """A server whose client receives on links 0 and 1 of a session, and what it has told of them."""
    server = Peer(PeerLimits(), server=True)
    server.open("server")
    links = (attach(0, number, f"r{number}", receives=True) for number in range(2))
    server.receive(HEADER + open_frame() + begin(0, window=window) + b"".join((*links, *frames)))
    opened = every(server.events(), LinkRemoteOpen)
    for each in opened:
        server.accept_link(each.link, each.source, each.target)
    server.pending_output()
    return server, opened


class Unfinished:
    """A link of the pair whose message comes by hand, part by part."""

    def __init__(self, pair: Pair, handle: int) -> None:
        session = next(iter(pair.client._endpoints.sessions), None) or pair.client.begin_session()
        pair.client.attach_sender(session, f"by hand {handle}", Terminus("s"), Terminus("q"))
        self.link = pair._answered(100)
        self._pair = pair
        self._handle = handle
        self._begun = False

    def send(self, part: bytes, *, more: bool = True) -> None:
        number, tag = (None, None) if self._begun else (self._handle, b"t")
        self._begun = True
        self._pair.server.receive(transfer(0, self._handle, number, tag, part, more=more))
        self._pair.server._events.take_events()


def arrived_at(peer: Peer) -> list[bytes]:
    return [delivery.payload for event in every(peer.events(), Transfers) for delivery in event.deliveries]


def session_of(pair: Pair, link: int) -> int:
    """The client's number of a link's session."""
    return next(event for event in every(pair.client_events, LinkRemoteOpen) if event.link == link).session
