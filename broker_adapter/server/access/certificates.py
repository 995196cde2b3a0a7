"""The TLS certificates of a server, which are read again when their files change.

A new context takes the place of the old one as a whole, so that a certificate whose key is not written yet, or any
other broken file, changes nothing.  Connections that are open keep theirs.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final

from asn1crypto import pem, x509

from broker_adapter.amqp.security.tls_files import check_readable, refuse_pass_phrase
from broker_adapter.server.access.users import identity_of

_log = logging.getLogger(f"holdfast.{__name__}")

#: How often the files are examined, in seconds.
CHECK_SECONDS: Final = 60.0
#: How often a certificate that ends soon is warned of, in seconds.
DAY_SECONDS: Final = 86400.0
#: How long before its end.
_AHEAD: Final = timedelta(days=14)


class Certificates:
    """The certificate of a server, its key, and the issuers of its clients' certificates.

    Args:
        certificate: PEM file of the certificate chain (--tls-certificate).
        key: PEM file of the private key (--tls-key); None: it is in the file of the certificate.
        client_ca: PEM file of the issuers of clients' certificates (--tls-client-ca); None: clients show none.

    Attributes:
        context: what new connections use.

    Raises:
        ValueError: a file cannot be read or used.
    """

    def __init__(self, certificate: str, key: str | None, client_ca: str | None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._seen = self._identity()
        self.context = self._read()
        self._check_at = self._warn_at = -inf

    def check(self, elapsed: float) -> None:
        """Read the files again where they changed, and warn of certificates that end soon, if it is time for that.

        Args:
            elapsed: seconds of a clock that is never set.
        """
        if elapsed < min(self._check_at, self._warn_at):
            return
        self._check_at = elapsed + CHECK_SECONDS
        if self._identity() != self._seen:
            self.reload()
        if elapsed >= self._warn_at:
            self._warn_at = elapsed + DAY_SECONDS
            self._warn(datetime.now(UTC))

    def reload(self) -> None:
        """Read the files again.  One that cannot be read or used changes nothing, and is logged."""
        self._seen = self._identity()  # first: a change while they are read is noticed by the next check
        try:
            self.context = self._read()
        except ValueError as error:
            _log.error("! the certificates stay as they were: %s", error)
            return
        self._warn_at = -inf
        _log.info("= the certificates were read again: %s", self._certificate)

    def _identity(self) -> list[tuple[int, ...] | None]:
        return [identity_of(each) for each in (self._certificate, self._key, self._client_ca) if each is not None]

    def _read(self) -> ssl.SSLContext:
        for name in ("certificate", "key", "client_ca"):
            path = getattr(self, f"_{name}")
            check_readable(f"--tls-{name.replace('_', '-')} {path!r}", path)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self._certificate, self._key, refuse_pass_phrase)
        except (OSError, ValueError) as error:
            key = "the same file" if self._key is None else repr(self._key)
            raise ValueError(
                f"the certificate in {self._certificate!r}, with its key in {key}, cannot be used: {error}; both are"
                " PEM files, and the key belongs to the certificate"
            ) from error
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except (OSError, ssl.SSLError) as error:
                raise ValueError(f"--tls-client-ca {self._client_ca!r} has no certificate: {error}") from error
            context.verify_mode = ssl.CERT_OPTIONAL  # a client without one may log in with a password
        return context

    def _warn(self, now: datetime) -> None:
        """Log a warning for each certificate that ends soon."""
        for path in (self._certificate, self._client_ca):
            for name, end in _ends(path) if path is not None else ():
                if end - now <= _AHEAD:
                    _log.warning(
                        "! the certificate %r in %s %s %s UTC; replace the file, which is then read again",
                        *(name, path, "ended on" if end <= now else "ends on", f"{end:%F %R}"),
                    )


def _ends(path: str) -> Iterator[tuple[str, datetime]]:
    """Read the certificates of a PEM file; yields whose each is, and when it ends."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        for kind, _, der in pem.unarmor(data, multiple=True):
            if kind == "CERTIFICATE":
                found = x509.Certificate.load(der)
                yield found.subject.human_friendly or ", ".join(found.valid_domains), found.not_valid_after
    except (OSError, ValueError, TypeError, LookupError) as error:  # OpenSSL took it, or it is changed at this moment
        _log.debug("the end of the certificates in %s is not known: %s", path, error)
