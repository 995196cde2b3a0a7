"""Peers that break the rules of channels, handles and frames, in a process of its own: a crash is then an exit status.

``python -m tests.broker_adapter.amqp.hostile --rounds 200`` tries each of them so often, and prints as JSON how our
end took it: the condition by which it ended the connection, or "served".
"""

from __future__ import annotations

import argparse
import gc
import json
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from broker_adapter.amqp.client.protocol import ClientOptions, ClientProtocol
from broker_adapter.amqp.messages.values import Symbol, Symbols, UByte
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import JMSException
from broker_adapter.server.access.permissions import authorize
from broker_adapter.server.listener import Listener
from broker_adapter.server.protocol import ServerProtocol
from broker_adapter.settings import EngineSettings, ServerSettings
from broker_adapter.transport import SenderSpec
from sdk import ConnectionFactory
from tests.broker_adapter.amqp.frames import (
    BEGIN,
    CLOSE,
    HEADER,
    attach,
    begin,
    close,
    detach,
    disposition,
    end,
    flow,
    frame,
    open_frame,
    raw_frame,
    split,
    transfer,
)

_MESSAGE = b"\x00\x53\x77\xa1\x01x"
#: A frame of the SASL layer, which proton would hand to an exchange that there is not.
_SASL = frame(0, 0x41, Symbol("PLAIN"), b"x", kind=1)
_SASL_HEADER = b"AMQP\x03\x01\x00\x00"
_SECONDS = 120.0
_TOO_DEEP = raw_frame(0, b"\x00\x53\x11\xd0\x00\x00\x20\x04\x00\x00\x00\x01" + b"\x00" * 0x2000)

#: What a client sends after its open, each piece by itself; and how our server is to take it.
AT_THE_SERVER: dict[str, tuple[list[bytes], str]] = {
    "two begins that answer one session, ended": (
        [begin(1), begin(2, 0), end(1), end(2)],
        "amqp:invalid-field",
    ),
    "two begins that answer one session, ended the other way round": (
        [begin(1), begin(2, 0), end(2), end(1)],
        "amqp:invalid-field",
    ),
    "all of it at once": ([begin(1) + begin(2, 0) + end(2) + end(1)], "amqp:invalid-field"),
    "an answer to nothing": ([begin(1, 0), end(1)], "amqp:invalid-field"),
    "a channel in use": ([begin(1), attach(1, 0, "a"), begin(1), end(1), end(1)], "amqp:illegal-state"),
    "a session ended twice": ([begin(1), end(1), end(1)], "amqp:illegal-state"),
    "a session ended twice at once": ([begin(1) + end(1) + end(1)], "amqp:illegal-state"),
    "a channel without a session": ([attach(1, 0, "a")], "amqp:illegal-state"),
    "a channel that ended": ([begin(1), end(1), flow(1)], "amqp:illegal-state"),
    "a channel above the greatest": ([begin(1000)], "amqp:connection:framing-error"),
    "a second open": ([begin(1), open_frame(max_frame_bytes=512), end(1)], "amqp:illegal-state"),
    "a frame after the close": ([begin(1), close() + begin(2)], "served"),
    "a handle in use": (
        [begin(1), attach(1, 0, "a"), attach(1, 0, "b"), detach(1, 0), detach(1, 0), end(1)],
        "amqp:session:handle-in-use",
    ),
    "a handle in use in the other role": (
        [begin(1), attach(1, 0, "a"), attach(1, 0, "a", receives=True), flow(1, 0, 5), end(1)],
        "amqp:session:handle-in-use",
    ),
    "a handle above the greatest": ([begin(1), attach(1, 0xFFFFFFFF, "a")], "amqp:connection:framing-error"),
    "a link attached twice": ([begin(1), attach(1, 0, "a"), attach(1, 1, "a"), end(1)], "amqp:invalid-field"),
    "a link detached twice": (
        [begin(1), attach(1, 0, "a"), detach(1, 0), detach(1, 0)],
        "amqp:session:unattached-handle",
    ),
    "a transfer on a handle that is free": (
        [begin(1), transfer(1, 5, 0, b"t", _MESSAGE)],
        "amqp:session:unattached-handle",
    ),
    "a transfer on a link that we send on": (
        [
            *(begin(1), attach(1, 0, "a", receives=True), transfer(1, 0, 0, b"t", _MESSAGE), flow(1, 0, 5)),
            *(disposition(1, False, 0, 5), disposition(1, True, 0, 5), end(1)),
        ],
        "amqp:not-allowed",
    ),
    "a frame of the SASL layer": ([begin(1), _SASL], "amqp:connection:framing-error"),
    "nesting without end": ([_TOO_DEEP], "amqp:decode-error"),
    "an unknown performative": ([frame(0, 0x77)], "amqp:not-implemented"),
    "a handle that is no number": ([begin(1), frame(1, 0x12, "a", "handle", False)], "amqp:decode-error"),
    "a part of a message, and the end of its link": (
        [
            begin(1),
            attach(1, 0, "a"),
            transfer(1, 0, 0, b"t", _MESSAGE, more=True),
            detach(1, 0),
            attach(1, 0, "a"),
            end(1),
        ],
        "served",
    ),
    "sessions begun and ended at once": ([b"".join(begin(each) + end(each) for each in range(100))], "served"),
    "links attached and detached at once": (
        [begin(1), b"".join(attach(1, 0, "a") + detach(1, 0) for _ in range(50)), end(1)],
        "served",
    ),
    "dispositions of what there is not": (
        [
            begin(1),
            attach(1, 0, "a", receives=True),
            disposition(1, True, 0, 0x7FFFFFFF),
            disposition(1, False, 5),
            end(1),
        ],
        "served",
    ),
}

#: What a broker sends after its open to a client that has begun a session on its channel 0.
AT_THE_CLIENT: dict[str, tuple[list[bytes], str]] = {
    "two begins that answer one session, ended": (
        [begin(1, 0), begin(2, 0), end(1), end(2)],
        "amqp:invalid-field",
    ),
    "two begins that answer one session, ended the other way round": (
        [begin(1, 0), begin(2, 0), end(2), end(1)],
        "amqp:invalid-field",
    ),
    "all of it at once": ([begin(1, 0) + begin(2, 0) + end(2) + end(1)], "amqp:invalid-field"),
    "an answer to nothing": ([begin(1, 9)], "amqp:invalid-field"),
    "a channel in use": ([begin(1, 0), begin(1), end(1), end(1)], "amqp:illegal-state"),
    "a session ended twice": ([begin(1, 0), end(1), end(1)], "amqp:illegal-state"),
    "a session of the broker's own": ([begin(1, 0), begin(2), attach(2, 0, "a"), end(2)], "closed"),
    "a link of the broker's own": ([begin(1, 0), attach(1, 7, "a"), attach(1, 7, "b")], "amqp:session:handle-in-use"),
    "a transfer on a handle that is free": (
        [begin(1, 0), transfer(1, 5, 0, b"t", _MESSAGE)],
        "amqp:session:unattached-handle",
    ),
    "a transfer on a link that we send on": (
        [begin(1, 0), attach(1, 5, "b", receives=True), transfer(1, 5, 0, b"t", _MESSAGE), flow(1, 5, 5), end(1)],
        "amqp:not-allowed",
    ),
    "a frame of the SASL layer": ([begin(1, 0), _SASL], "amqp:connection:framing-error"),
    "a second open": ([open_frame(), begin(1, 0)], "amqp:illegal-state"),
    "a close and more": ([close() + begin(1, 0)], "closed"),
    "no channel": ([frame(0, BEGIN), frame(0, CLOSE)], "closed"),
}


def at_the_server(broker: Broker, pieces: list[bytes]) -> str:
    """How our server takes these pieces of a client."""
    server = ServerProtocol(broker, ServerSettings(), None, lambda: None, lambda *_: None, partial(authorize, None))
    server.receive(HEADER + open_frame(), 1)
    for piece in pieces:
        broker.call(c.Statistics(), _SECONDS)  # it has answered all that came before
        server.pending_output()
        server.receive(piece, 1)
    server.pending_output()
    server.receive_end()
    server.pending_output()
    return "served" if server.error is None else str(server.error.error_code)


def at_the_client(pieces: list[bytes]) -> str:
    """How our client takes these pieces of a broker."""
    told: list[Any] = []
    options = ClientOptions(container_id="c", hostname="h", version="1", has_client_id=False, commit_prefix="p")
    client = ClientProtocol(options, None, told.append, lambda _count: None)
    client.open(lambda _result, _error: True)
    client.pending_output()
    client.receive(HEADER + open_frame())
    for piece in pieces:
        client.receive(piece)
        client.pending_output()
        if client.phase.name == "OPEN":
            client.attach_sender(SenderSpec(1, queue("q")), lambda _result, _error: True)
            client.pending_output()
    client.receive_end()
    client.pending_output()
    error = told[-1].error
    return "closed" if error.error_code is None else str(error.error_code)


# Over sockets.


def clients_over_sockets(rounds: int) -> int:
    """Hostile clients of a server that listens; returns how many well-behaved ones were served after them."""
    served = 0
    broker = Broker(EngineSettings())
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    pieces = [each for name, (each, _) in AT_THE_SERVER.items() if name.startswith("two begins")]
    for number in range(rounds):
        with socket.create_connection(("127.0.0.1", port), _SECONDS) as sock:
            sock.sendall(_SASL_HEADER + frame(0, 0x41, Symbol("ANONYMOUS"), kind=1))
            sock.sendall(HEADER + open_frame() + b"".join(pieces[number % len(pieces)]))
            while sock.recv(65536):
                pass
        if number % 20 == 0:
            with ConnectionFactory(f"amqp://127.0.0.1:{port}").create_connection() as connection:
                served += connection.create_session() is not None
    listener.stop()
    broker.close()
    return served


def brokers_over_sockets(rounds: int) -> int:
    """Hostile brokers that the SDK connects to; returns how many of the connections ended with an error of ours."""
    pieces = [each for name, (each, _) in AT_THE_CLIENT.items() if name.startswith("two begins")]
    refused = 0
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for number in range(rounds):
                sock, _ = listening.accept()
                with sock:
                    _serve(sock, b"".join(pieces[number % len(pieces)]))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"amqp://127.0.0.1:{listening.getsockname()[1]}?failover=nofailover&sasl_mechanisms=ANONYMOUS"
        for _ in range(rounds):
            try:
                with ConnectionFactory(url).create_connection() as connection:
                    connection.create_session()
                    connection.statistics()
            except JMSException:
                refused += 1
        thread.join(_SECONDS)
    return refused


def _serve(sock: socket.socket, hostile: bytes) -> None:
    sock.settimeout(_SECONDS)
    sock.sendall(_SASL_HEADER + frame(0, 0x40, Symbols(["ANONYMOUS"]), kind=1) + frame(0, 0x44, UByte(0), kind=1))
    said = b""
    while HEADER not in said or len(split(said[said.index(HEADER) :])) < 3:
        data = sock.recv(65536)
        if not data:
            return
        said += data
    sock.sendall(HEADER + open_frame() + hostile)
    try:
        while sock.recv(65536):
            pass
    except OSError:
        return


def main() -> None:
    """Parse the command line, and run."""
    parser = argparse.ArgumentParser(prog="hostile", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    gc.set_threshold(10, 2, 2)
    found: dict[str, Any] = {}
    broker = Broker(EngineSettings())
    cases: list[tuple[str, dict[str, tuple[list[bytes], str]], Callable[[list[bytes]], str]]] = [
        ("server", AT_THE_SERVER, lambda pieces: at_the_server(broker, pieces)),
        ("client", AT_THE_CLIENT, at_the_client),
    ]
    for side, table, take in cases:
        found[side] = {name: sorted({take(pieces) for _ in range(rounds)}) for name, (pieces, _) in table.items()}
    broker.close()
    found["served"] = clients_over_sockets(rounds)
    found["refused"] = brokers_over_sockets(rounds)
    gc.collect()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
