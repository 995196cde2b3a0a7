"""Which version of this software runs."""

from __future__ import annotations

#: What we call ourselves to a peer.
PRODUCT = "Holdfast"


def own_version() -> str:
    """The version of the installed distribution; "unknown" where the source tree is used as it is."""
    from importlib.metadata import PackageNotFoundError, version  # which takes longer than all of ours

    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "unknown"
