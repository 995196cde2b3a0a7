"""A line with a delay: what comes in at one end leaves the other one so many seconds later, each way."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from queue import SimpleQueue

_CHUNK_BYTES = 1 << 18


class DelayedLine:
    """A TCP relay in front of a port of this machine, as wide as the sockets are.

    Args:
        target: the port.
        seconds: the delay each way.
    """

    def __init__(self, target: int, seconds: float) -> None:
        self._target = target
        self._seconds = seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"amqp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> DelayedLine:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for source, sink in ((client, server), (server, client)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    line: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                    threading.Thread(target=self._read, args=(source, line), daemon=True).start()
                    threading.Thread(target=self._write, args=(sink, line), daemon=True).start()

    def _read(self, source: socket.socket, line: SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"more"
        while data:
            try:
                data = source.recv(_CHUNK_BYTES)
            except OSError:
                data = b""
            line.put((time.monotonic() + self._seconds, data))

    def _write(self, sink: socket.socket, line: SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError), sink:
            while True:
                due, data = line.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    sink.shutdown(socket.SHUT_RDWR)
                    return
                sink.sendall(data)
