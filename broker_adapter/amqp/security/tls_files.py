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


def refuse_pass_phrase() -> str:
    """Take the place of OpenSSL's question for a pass phrase at the terminal, which waits without limit.

    Raises:
        ValueError: in every case, as the key has one.
    """
    raise ValueError(
        "the key has a pass phrase; write one without (openssl pkey -in KEY -out NEW) that only this user can read"
    )
