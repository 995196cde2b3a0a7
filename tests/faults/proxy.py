"""A TCP proxy that does to a connection what networks do: cuts it, swallows what is sent, keeps it, slows it down.

It knows just enough of AMQP to tell where a frame ends, so that a connection can be cut after any number of frames.
It can also do what no network does: change frames on their way, as a hostile or broken peer would.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum

import attrs

from tests.faults.mutations import Mutations

_HEADER_BYTES = 8
_CHUNK_BYTES = 65536
_TLS_HANDSHAKE = b"\x16"


class Direction(Enum):
    """Which way bytes go."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


@attrs.frozen
class Cut:
    """When to cut a connection: after so many frames (or bytes) in one direction, and a part of the next frame."""

    direction: Direction
    frames: int | None = None
    bytes: int | None = None
    into_next: int = 0  #: bytes of the next frame that still go through
    half_open: bool = False  #: whether the server is not to notice it


@attrs.define
class _Meter:
    """Follows a stream of protocol headers and frames; of TLS, where all that comes at once counts as a frame."""

    is_tls: bool | None = None
    _pending: bytearray = attrs.field(factory=bytearray)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What can be forwarded, a frame at a time."""
        if self.is_tls is None:
            self.is_tls = data[:1] == _TLS_HANDSHAKE
        if self.is_tls:
            yield data
            return
        pending = self._pending
        pending += data
        while len(pending) >= _HEADER_BYTES:
            size = _HEADER_BYTES if pending[:4] == b"AMQP" else int.from_bytes(pending[:4], "big")
            if len(pending) < size:
                return
            yield bytes(pending[:size])
            del pending[:size]


class Proxy:
    """A proxy in front of one port of this machine.

    Args:
        target: the port that connections go on to; may be changed.
        is_amqp: whether it is AMQP that goes through, with or without TLS.
        source: says of a port of this machine who connects from there.
    """

    def __init__(self, target: int, *, is_amqp: bool = True, source: Callable[[int], str] = lambda _port: "") -> None:
        self.target = target
        self._is_amqp = is_amqp
        self._source = source
        self.frames = {Direction.TO_SERVER: 0, Direction.TO_CLIENT: 0}  #: of the last connection
        self.bytes = {Direction.TO_SERVER: 0, Direction.TO_CLIENT: 0}  #: the same
        self.connections = 0
        self.cuts = 0
        self.cut_at = 0.0  #: when a connection was cut last (monotonic seconds)
        self._planned: Cut | None = None
        self._refusing = False
        self._mute = False
        self._held: dict[str | None, set[Direction]] = {}  # by source; None: of all
        self._delay = 0.0
        self._mutations: Mutations | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._half_open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._closed = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    @property
    def open(self) -> int:
        """How many connections there are."""
        with self._lock:
            return len(self._pairs)

    # Faults.

    def plan(self, cut: Cut | None) -> None:
        """Cut the next connection that gets so far; once."""
        with self._lock:
            self._planned = cut

    def cut(self) -> int:
        """Cut all connections now; returns how many there were."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self.cuts += len(pairs)
            self.cut_at = time.monotonic()
        for pair in pairs:
            _end(*pair)
        return len(pairs)

    def refuse(self, yes: bool = True) -> None:
        """Take no new connections."""
        self._refusing = yes

    def be_mute(self, yes: bool = True) -> None:
        """Accept new connections, and never say anything on them."""
        self._mute = yes

    def hold(self, *directions: Direction, source: str | None = None) -> None:
        """A black hole: bytes in these directions go nowhere, without an error; none: everything flows again.

        Args:
            directions: which way.
            source: whose connections; None: all.
        """
        with self._lock:
            self._held[source] = set(directions)
            self._changed.notify_all()

    def delay(self, seconds: float) -> None:
        """Each piece takes so long."""
        self._delay = seconds

    def mutate(self, mutations: Mutations | None) -> None:
        """Change frames in both directions, in this way; None: no more."""
        with self._lock:
            self._mutations = mutations

    def leave_half_open(self) -> int:
        """Cut off the clients, while the server keeps its ends and notices nothing; returns how many."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self._half_open += [server for _, server in pairs]
            self.cuts += len(pairs)
            self.cut_at = time.monotonic()
        for client, _ in pairs:
            _end(client)
        return len(pairs)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake the thread that accepts
        self._listener.close()
        self.hold()
        self.cut()
        _end(*self._half_open)

    # The work.

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                _end(client)
                continue
            if self._mute:
                with self._lock:
                    if self._closed:
                        _end(client)
                    else:
                        self._pairs.append((client, client))
                continue
            try:
                whose = self._source(client.getpeername()[1])
                server = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                _end(client)
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                each.settimeout(None)
            with self._lock:
                if self._closed:
                    _end(client, server)
                    return
                self.connections += 1
                self._pairs.append((client, server))
                self.frames = {Direction.TO_SERVER: 0, Direction.TO_CLIENT: 0}
                self.bytes = {Direction.TO_SERVER: 0, Direction.TO_CLIENT: 0}
                frames, size = self.frames, self.bytes
            for source, sink, direction in (
                (client, server, Direction.TO_SERVER),
                (server, client, Direction.TO_CLIENT),
            ):
                threading.Thread(
                    target=self._pump,
                    args=(source, sink, direction, (client, server), frames, size, whose),
                    name=f"proxy {direction.value}",
                    daemon=True,
                ).start()

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        direction: Direction,
        pair: tuple[socket.socket, socket.socket],
        frames: dict[Direction, int],
        size: dict[Direction, int],
        whose: str,
    ) -> None:
        meter = _Meter(None if self._is_amqp else True)
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                for piece in meter.pieces(data):
                    with self._lock:
                        while self._is_held(direction, whose) and not self._closed:
                            self._changed.wait(0.2)
                        plan = self._planned
                        hit = (
                            plan is not None
                            and plan.direction is direction
                            and _is_due(plan, frames[direction], size[direction])
                        )
                        if hit and pair in self._pairs:
                            self._planned = None
                        else:
                            hit = False
                    if self._delay:
                        time.sleep(self._delay)
                    if hit and plan is not None:
                        sink.sendall(piece[: plan.into_next])
                        self._cut_pair(pair, half_open=plan.half_open)
                        return
                    for each in self._mutated(piece):
                        sink.sendall(each)
                    size[direction] += len(piece)
                    frames[direction] += 1
        with self._lock:
            known = pair in self._pairs
        if known:
            self._cut_pair(pair, counts=False)

    def _is_held(self, direction: Direction, whose: str) -> bool:
        return any(direction in self._held.get(each, ()) for each in (None, whose))

    def _mutated(self, piece: bytes) -> list[bytes]:
        with self._lock:
            return [piece] if self._mutations is None else self._mutations.change(piece)

    def _cut_pair(
        self, pair: tuple[socket.socket, socket.socket], *, counts: bool = True, half_open: bool = False
    ) -> None:
        with self._lock:
            if pair in self._pairs:
                self._pairs.remove(pair)
            if counts:
                self.cuts += 1
                self.cut_at = time.monotonic()
            if half_open:
                self._half_open.append(pair[1])
        _end(*(pair[:1] if half_open else pair))


def _is_due(plan: Cut, frames: int, sent: int) -> bool:
    if plan.frames is not None:
        return frames >= plan.frames
    return plan.bytes is not None and sent >= plan.bytes


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
