"""Sockets for the address that a server listens on."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from typing import Any

from broker_adapter.errors import ConnectionLostException

#: Errors of ``accept`` and ``socket`` that the next call would cause as well: no descriptor or no memory is free.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def check_address(host: str, port: int) -> None:
    """Check whether an address can be listened on now.

    Raises:
        ConnectionLostException: it cannot, because another process has it, say.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets, _ = bound(found)
    except OSError as error:
        raise cannot_listen(host, port, error) from error
    for sock in sockets:
        sock.close()


def cannot_listen(host: str, port: int, error: OSError) -> ConnectionLostException:
    """The error of an address that cannot be listened on, with the remedy."""
    remedy = "give an address of this machine, and a port that it may use"
    if error.errno == errno.EADDRINUSE:
        remedy = "stop what has the port, or choose another"
    return ConnectionLostException(f"cannot listen on {host}:{port}: {error.strerror or error}; {remedy}")


def bound(found: Iterable[tuple[Any, ...]]) -> tuple[list[socket.socket], list[tuple[Any, OSError]]]:
    """Sockets for the addresses of a name.

    Args:
        found: as ``getaddrinfo`` gives them.

    Returns:
        The sockets; and the addresses that this machine does not have, as asyncio passes over them too: the kernel has
        no sockets of the family, or it is not enabled.

    Raises:
        OSError: no address is left, or another error than these.
    """
    sockets: list[socket.socket] = []
    absent: list[tuple[Any, OSError]] = []
    try:
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                if error.errno in EXHAUSTED:
                    raise
                absent.append((address, error))
                continue
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
            try:
                sock.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                absent.append((address, error))
                sockets.pop().close()
        if absent and not sockets:
            raise absent[0][1]
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets, absent
