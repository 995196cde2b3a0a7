"""The files that TLS needs, at either end."""

from __future__ import annotations


def check_readable(named: str, path: str | None) -> None:
    """Check whether a file can be read, since the errors of the ssl module do not say which file it was.

    Args:
        named: the file, as the user named it.
        path: its path; None: there is none, which is right.

    Raises:
        ValueError: it cannot be read.
    """
    if path is None:
        return
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ValueError(f"{named} cannot be read: {error.strerror or error}") from error
