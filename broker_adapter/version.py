"""Which version of this software runs."""

from __future__ import annotations

from functools import cache

#: What we call ourselves to a peer.
PRODUCT = "Holdfast"


def own_version() -> str:
    """The version of the installed distribution; "unknown" where the source tree is used as it is."""
    return _read()


@cache  # both ends of each connection ask for it
def _read() -> str:
    from importlib.metadata import PackageNotFoundError, version  # which takes longer than all of ours

    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "unknown"
