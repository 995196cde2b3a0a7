"""A client over a real socket that sends frames made by hand, and breaks whatever promise a test wants broken."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack

from broker_adapter.amqp.messages.values import Reader, Symbol, Symbols, UInt, UShort
from broker_adapter.amqp.wire import envelope_capabilities
from broker_adapter.envelope import ENVELOPE_VERSION
from tests.broker_adapter.amqp import frames

WAIT = 120.0
_SASL_HEADER = b"AMQP\x03\x01\x00\x00"
#: Bytes of payload in each frame of a long message.
_PART = 1024 * 1024 - 512


class RawClient:
    """A logged-in and opened connection.

    Args:
        port: the server's, on this machine.
        reads: whether it reads what the server says; otherwise the server's output stays where it is.
        receive_buffer: bytes of the socket's receive buffer, where it matters.
        envelopes: whether it offers to take our own form of messages; otherwise it is given standard AMQP.
    """

    def __init__(
        self, port: int, *, reads: bool = True, receive_buffer: int | None = None, envelopes: bool = True
    ) -> None:
        self.payloads: list[bytes] = []  #: of each transfer frame
        self.received: list[tuple[int, int, list[object]]] = []  #: (channel, code, fields) of each frame
        self._changed = threading.Condition()
        self._numbers: dict[int, int] = {}
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(WAIT)
        self._socket.connect(("127.0.0.1", port))
        self.is_closed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.send(_SASL_HEADER, frames.frame(0, 0x41, Symbol("ANONYMOUS"), kind=1), frames.HEADER)
        self.send(
            frames.frame(
                *(0, frames.OPEN, "raw", "host", UInt(1 << 20), UShort(1000), None, None, None, None),
                Symbols(envelope_capabilities(ENVELOPE_VERSION if envelopes else 0)),
            )
        )
        if reads:
            self._reader.start()
            self.until(lambda: self.count(frames.OPEN) == 1)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    # What the server says.

    def _read(self) -> None:
        buffer = bytearray()
        with contextlib.suppress(OSError):
            while data := self._socket.recv(1 << 20):
                buffer += data
                with self._changed:
                    self._take(buffer)
                    self._changed.notify_all()
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def _take(self, buffer: bytearray) -> None:
        while len(buffer) >= 8:
            size = 8 if buffer[:4] == b"AMQP" else int.from_bytes(buffer[:4])
            if len(buffer) < size:
                return
            if buffer[:4] != b"AMQP" and size > 8 and buffer[5] == 0:
                reader = Reader(bytes(buffer[8:size]))
                performative = reader.value()
                if performative.descriptor == frames.TRANSFER:
                    self.payloads.append(bytes(buffer[8 + reader.position : size]))
                channel = int.from_bytes(buffer[6:8])
                self.received.append((channel, performative.descriptor, performative.value))
            del buffer[:size]

    def count(self, code: int) -> int:
        """How many frames of this performative came."""
        return sum(each[1] == code for each in list(self.received))

    def fields(self, code: int) -> Iterator[list[object]]:
        """The fields of each frame of this performative that came."""
        return (each[2] for each in list(self.received) if each[1] == code)

    def until(self, condition: Callable[[], bool], seconds: float = WAIT) -> None:
        """Wait until it holds, or the server has closed the connection."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.is_closed or condition(), seconds), self.received[-5:]
        assert condition(), f"closed: {self.received[-3:]}"

    def until_closed(self) -> None:
        """Wait until the server has closed the connection."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.is_closed, WAIT)

    # What it does.

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._socket.sendall(piece)

    def set_timeout(self, seconds: float) -> None:
        """How long the server may take nothing before ``send`` gives up."""
        self._socket.settimeout(seconds)

    def send_until_closed(self, pieces: Iterator[bytes]) -> int:
        """Send as long as the server takes it; returns how many bytes went out."""
        sent = 0
        try:
            for piece in pieces:
                self._socket.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        return sent

    def deliver(
        self, channel: int, handle: int, payload: bytes, *, finished: bool = True, txn_id: bytes | None = None
    ) -> Iterator[bytes]:
        """The frames of a message, as many as it needs; ``finished``: whether the last one comes."""
        number = self._numbers.get(channel, 0)
        self._numbers[channel] = number + 1
        parts = [payload[start : start + _PART] for start in range(0, max(1, len(payload)), _PART)]
        for index, part in enumerate(parts):
            more = index < len(parts) - 1 or not finished
            yield frames.transfer(channel, handle, number, b"%d" % number, part, more=more, txn_id=txn_id)


def memory(pid: int, field: str = "VmRSS") -> int:
    """Bytes of memory of a process: resident now, or the most that it ever had (``VmHWM``)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise ValueError(field)


def request(number: int, operation: str, arguments: object) -> bytes:
    """The payload of a request to the management node."""
    packed: bytes = msgpack.packb((number, operation, arguments))
    return packed
