"""What a server tells its clients of itself: where else it can be reached, and how many nodes have what it confirms.

Both are properties of the open frame, the first one as JMS clients of AMQP know it; our own clients are also told of
changes.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from broker_adapter.amqp.messages.values import Symbol, UInt
from broker_adapter.amqp.wire import MAX_SERVERS, REDUNDANCY, SERVER_LIST
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


@attrs.frozen
class Announcement:
    """What a server tells its clients of itself.

    Attributes:
        servers: where else it can be reached.
        redundancy: how many further nodes of its group have what it confirms; None: it is of no group.
    """

    servers: tuple[Server, ...] = ()
    redundancy: int | None = None

    def as_properties(self) -> dict[str, Any]:
        """Return the properties of the open frame that say so."""
        servers = [
            {Symbol(key): value for key, value in _fields(each).items()} | {Symbol("port"): UInt(each.port)}
            for each in self.servers
        ]
        return {
            **({SERVER_LIST: servers} if servers else {}),
            **({} if self.redundancy is None else {REDUNDANCY: self.redundancy}),
        }

    def as_answer(self) -> dict[str, Any]:
        """Return an answer that says so to our own client."""
        return {SERVER_LIST: [_fields(each) for each in self.servers], REDUNDANCY: self.redundancy}


def _fields(server: Server) -> dict[str, Any]:
    fields: dict[str, Any] = {"network-host": server.host, "hostname": server.host, "port": server.port}
    if server.tls is not None:
        fields["scheme"] = "amqps" if server.tls else "amqp"
    return fields
