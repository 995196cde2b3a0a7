"""Where a connection comes from, as limits count it; pure."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

#: Bits of an IPv6 address that one customer of a network is usually given: a customer with one address has 2 ** 64.
_IPV6_NETWORK: Final = 64


_LOCAL_NAMES: Final = ("localhost", "localhost.localdomain")


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, as far as its spelling tells."""
    if host.lower() in _LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def origin_of(host: str) -> str:
    """The origin of a connection: its IPv4 address, or the network of its IPv6 address.

    Args:
        host: as ``getpeername()`` gives it; anything else is an origin of its own.
    """
    address, _, _ = host.partition("%")
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    mapped = found.ipv4_mapped
    if mapped is not None:
        return str(mapped)
    if found.is_loopback:
        return str(found)
    return str(ipaddress.ip_network((found, _IPV6_NETWORK), strict=False))
