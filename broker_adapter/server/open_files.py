"""How many files this process may have open, and how many connections that allows."""

from __future__ import annotations

import os
import resource
import sys
from typing import Final, NamedTuple

from broker_adapter.errors import IllegalStateException

#: Descriptors that are kept free beside those of connections: for the store, the users file, logs.
RESERVE: Final = 32
#: Connections above the limit that are accepted all the same, to log in and be told that they are too many, or to
#: replace an old connection of the same client.  Further ones are dropped.
TOLD_AT_ONCE: Final = 100


class ConnectionPlaces(NamedTuple):
    """How many connections there may be."""

    connections: int  #: open at once
    sockets: int  #: with those that are to be told that they are too many


def places_for(wanted: int, soft_limit: int, already_open: int) -> ConnectionPlaces:
    """The places that a limit of open files allows.

    Args:
        wanted: connections that the settings allow.
        soft_limit: files that the process may have open.
        already_open: files that it has open now.

    Raises:
        IllegalStateException: the limit leaves no place at all.
    """
    affordable = soft_limit - already_open - RESERVE
    if affordable < 1:
        raise IllegalStateException(
            f"the process may have {soft_limit} files open and has {already_open}: with {RESERVE} in reserve none is"
            " left for connections; raise the limit with 'ulimit -n'"
        )
    if wanted + TOLD_AT_ONCE <= affordable:
        return ConnectionPlaces(wanted, wanted + TOLD_AT_ONCE)
    told = min(TOLD_AT_ONCE, affordable // 10)
    return ConnectionPlaces(min(wanted, affordable - told), affordable)


def soft_limit() -> int:
    """Files that this process may have open."""
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def raise_soft_limit() -> tuple[int, int]:
    """Let this process have as many files open as it may allow itself; returns the limit before and after."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, _most_of_the_system()):
        if wanted is None or _number(wanted) <= _number(soft):
            continue
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # some systems allow less than their hard limit says
            continue
        return _number(soft), _number(wanted)
    return _number(soft), _number(soft)


def _number(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _most_of_the_system() -> int | None:
    """The highest limit that Linux takes."""
    try:
        with open("/proc/sys/fs/nr_open", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def open_now() -> int:
    """Files that this process has open, as far as the system tells."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 64
