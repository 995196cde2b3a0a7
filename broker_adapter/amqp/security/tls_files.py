"""The files that TLS needs, at either end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


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


def load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Load a certificate chain and its key.

    Args:
        context: into which they are loaded.
        certificate: PEM file of the chain.
        key: PEM file of the key; None: it is in the file of the certificate.

    Raises:
        OSError: a file cannot be read or used.
        ValueError: the key has a pass phrase, which OpenSSL by itself asks for at the terminal, for ever.
    """
    context.load_cert_chain(certificate, key, _refuse)


def _refuse() -> str:
    raise ValueError(
        "the key has a pass phrase; write one without (openssl pkey -in KEY -out NEW) that only this user can read"
    )
