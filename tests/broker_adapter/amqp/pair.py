"""Two peers joined by a pretend wire."""

from __future__ import annotations

from typing import Any, TypeVar

from broker_adapter.amqp.events import Event, LinkRemoteOpen, Terminus
from broker_adapter.amqp.peer import Peer, PeerLimits

E = TypeVar("E")


class Pair:
    """A client's and a server's peer, with what each has heard so far."""

    def __init__(
        self,
        client: PeerLimits | None = None,
        server: PeerLimits | None = None,
        *,
        public_classes: bool = False,
        chunk_bytes: int | None = None,
    ) -> None:
        self.client = Peer(client or PeerLimits(), public_classes=public_classes)
        self.server = Peer(server or PeerLimits(), server=True, public_classes=public_classes)
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
