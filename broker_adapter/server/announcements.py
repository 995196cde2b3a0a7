"""Where else a server can be reached, as its clients are told: ``failover-server-list`` of the open frame.

The property is the one that JMS clients of AMQP know; our own clients are also told of changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from broker_adapter.amqp.messages.values import Symbol, UInt
from broker_adapter.amqp.wire import MAX_SERVERS
from broker_adapter.errors import MessageFormatException
from broker_adapter.transport import Server
from broker_adapter.urls.url import masked

#: Operation by which the list is changed, with ``servers``: a list of texts such as :func:`server_of` reads.
ANNOUNCE: Final = "announce_servers"


def server_of(text: object) -> Server:
    """The server that ``HOST:PORT``, ``amqp://HOST:PORT`` or ``amqps://HOST:PORT`` names.

    Raises:
        MessageFormatException: it is of another form.
    """
    if isinstance(text, str):
        scheme, separator, place = text.strip().rpartition("://")
        host, colon, port = place.rpartition(":")
        is_place = colon and host and "@" not in host and port.isdecimal() and 0 < int(port) < 65536
        if is_place and scheme in ("", "amqp", "amqps"):
            return Server(host.strip("[]"), int(port), scheme == "amqps" if separator else None)
    raise MessageFormatException(f"{_shown(text)} is not of the form HOST:PORT, amqp://HOST:PORT or amqps://HOST:PORT")


def servers_from(texts: object) -> tuple[Server, ...]:
    """A list of such texts; raises MessageFormatException."""
    if not isinstance(texts, list | tuple):
        raise MessageFormatException(f"{_shown(texts)} is not a list of servers")
    if len(texts) > MAX_SERVERS:
        raise MessageFormatException(f"{len(texts)} servers are more than the limit of {MAX_SERVERS}")
    return tuple([server_of(text) for text in texts])


def _shown(thing: object) -> str:
    """A wrong argument in an error; a text without what may be a password."""
    return repr(masked(thing) if isinstance(thing, str) else thing)[:100]


def as_property(servers: Iterable[Server]) -> list[dict[Symbol, Any]]:
    """The list as a property of the open frame."""
    return [
        {Symbol(key): value for key, value in _fields(each).items()} | {Symbol("port"): UInt(each.port)}
        for each in servers
    ]


def as_answer(servers: Sequence[Server]) -> list[dict[str, Any]]:
    """The list as an answer to our own client."""
    return [_fields(each) for each in servers]


def _fields(server: Server) -> dict[str, Any]:
    fields: dict[str, Any] = {"network-host": server.host, "hostname": server.host, "port": server.port}
    if server.tls is not None:
        fields["scheme"] = "amqps" if server.tls else "amqp"
    return fields
