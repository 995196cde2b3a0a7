"""Which SASL mechanisms a client may use, and with which brokers: the rules that keep a password to those it is meant
for; pure.

Theory of operation
    ANONYMOUS says nothing, EXTERNAL shows a certificate.  SCRAM-SHA-256 proves that the client knows the password
    without sending it, and has the broker prove the same.  Only PLAIN gives the password away.  So

    ==============  ===================================================================================================
    mechanism       may be used
    ==============  ===================================================================================================
    EXTERNAL        over TLS, with a certificate of the client
    SCRAM-SHA-256   with a user name and a password, with any host
    PLAIN           with a user name and a password, over TLS or where ``allow_plain_without_tls`` is set, also on this
                    machine; and with hosts that the URL names or ``trusted_hosts`` does: not with those to which a
                    broker sends the client
    ANONYMOUS       without a user name and a password, or where ``sasl_mechanisms`` names it
    ==============  ===================================================================================================

    and none that is weaker than one by which the same connection has logged in before it was lost or redirected.
    Otherwise a program that listens at the broker's address while the broker is away could ask for the password by
    PLAIN, or receive the messages that are meant for the broker.  From the weakest: ANONYMOUS; PLAIN without TLS; PLAIN
    over TLS; SCRAM-SHA-256 and EXTERNAL.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from broker_adapter.errors import ConnectionLostException, JMSSecurityException
from broker_adapter.urls.url import AmqpURL

EXTERNAL: Final = "EXTERNAL"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
PLAIN: Final = "PLAIN"
ANONYMOUS: Final = "ANONYMOUS"
#: Fewest iterations of the hash of a password, which slows down guessing (RFC 7677).
MIN_ITERATIONS: Final = 4096
#: Most iterations for a login: from half a second to a few, of one core.
MAX_ITERATIONS: Final = 1_000_000
#: Iterations where the administrator gives no number: about 20 ms of one core for each login, the client's by
#: SCRAM-SHA-256 and the server's by PLAIN.
ITERATIONS: Final = 100_000
#: The advice for a client that needs a login and has none.
GIVE_LOGIN: Final = "give a user name and a password"
#: The SASL mechanisms that a client can do, strongest first.
MECHANISMS: Final[tuple[str, ...]] = (EXTERNAL, SCRAM_SHA_256, PLAIN, ANONYMOUS)


class Strength(IntEnum):
    """How well a login protects the password and authenticates the broker."""

    NOTHING = 0
    OPEN_PASSWORD = 1
    PASSWORD_OVER_TLS = 2
    PROOF = 3


def strength_of(mechanism: str, *, tls: bool) -> Strength:
    """Of a login by this mechanism."""
    if mechanism == ANONYMOUS:
        return Strength.NOTHING
    if mechanism == PLAIN:
        return Strength.PASSWORD_OVER_TLS if tls else Strength.OPEN_PASSWORD
    return Strength.PROOF


class Trust:
    """What is known of the brokers of one connection, over all network connections that replace one another.

    Args:
        addresses: those of the URL.
        trusted_hosts: the option: further hosts, separated by commas; ``.domain`` is all hosts of a domain.

    Attributes:
        strongest: the strength of the strongest login so far.
    """

    def __init__(self, addresses: Iterable[AmqpURL], trusted_hosts: str | None = None) -> None:
        self.strongest = Strength.NOTHING
        self._addresses = tuple(addresses)
        self._trusted = tuple(_normal(each.strip()) for each in (trusted_hosts or "").split(",") if each.strip())

    def __repr__(self) -> str:
        return f"<Trust in {', '.join(map(str, self._addresses))}, logged in by {self.strongest.name}>"

    def note(self, mechanism: str, *, tls: bool) -> None:
        """A login has succeeded."""
        self.strongest = max(self.strongest, strength_of(mechanism, tls=tls))

    def may_have_password(self, url: AmqpURL, *, of_url: bool) -> bool:
        """Return whether the password may be sent to the host of an address as it is.

        Args:
            url: the address.
            of_url: whether the user name and the password are those of the address, and not of the application.
        """
        host = _normal(url.host)
        if any(host == each or (each.startswith(".") and host.endswith(each)) for each in self._trusted):
            return True
        return any(
            host == _normal(each.host)
            and (not of_url or (each.username, each.password) == (url.username, url.password))
            for each in self._addresses
        )


class Usable(NamedTuple):
    """What may be used with one address."""

    mechanisms: tuple[str, ...]  #: strongest first
    withheld: dict[str, str]  #: mechanism → why it is not used, where that is to protect the client
    is_unverified: bool  #: whether it is not known yet that the address belongs to the broker


def usable_mechanisms(
    url: AmqpURL, username: str | None, password: str | None, trust: Trust | None = None, *, of_url: bool = False
) -> Usable:
    """The mechanisms to use with an address; see the table of this module.

    Args:
        url: the address.
        username: None where there is none.
        password: the same.
        trust: what is known of the brokers; None: only this address, and no login before.
        of_url: whether the user name and the password are those of the URL.

    Raises:
        JMSSecurityException: the URL asks for mechanisms of which none can be used.
        ConnectionLostException: the same, because it is not known whether the address is the broker's.
    """
    trust = trust or Trust((url,))
    named = username is not None and password is not None
    is_named_host = trust.may_have_password(url, of_url=of_url)
    withheld: dict[str, str] = {}
    if not (url.tls or url.amqp.allow_plain_without_tls):
        withheld[PLAIN] = (
            f"PLAIN would send the password unencrypted to {url.host!r}; use amqps://, or set"
            " allow_plain_without_tls=true where the network and this machine are trusted"
        )
    elif not is_named_host:
        withheld[PLAIN] = (
            f"PLAIN would give the password to {url.host!r}, to which a broker has sent this client and which its URL"
            " does not name; name it there, or in the option trusted_hosts"
        )
    for mechanism in MECHANISMS:
        if strength_of(mechanism, tls=url.tls) < trust.strongest:
            withheld[mechanism] = (
                f"{mechanism} is weaker than the login of this connection before; if the broker was changed, make a new"
                " connection"
            )
    possible = {
        EXTERNAL: url.tls and url.amqp.tls_certificate_file is not None,
        SCRAM_SHA_256: named,
        PLAIN: named,
        ANONYMOUS: not named,
    }
    wanted = MECHANISMS
    if url.amqp.sasl_mechanisms is not None:
        wanted = tuple(name.strip().upper() for name in url.amqp.sasl_mechanisms.split(","))
        unknown = [name for name in wanted if name not in MECHANISMS]
        if unknown:
            raise JMSSecurityException(f"unknown SASL mechanism {unknown[0]!r}; known are {', '.join(MECHANISMS)}")
        # An application that names ANONYMOUS means it, also where there is a user name.
        possible[ANONYMOUS] = True
    considered = [name for name in MECHANISMS if name in wanted and possible[name]]
    found = Usable(
        tuple(name for name in considered if name not in withheld),
        {name: withheld[name] for name in considered if name in withheld},
        trust.strongest > Strength.NOTHING or not is_named_host,
    )
    if found.mechanisms:
        return found
    reasons = "; ".join(found.withheld.values())
    if not reasons:
        reasons = GIVE_LOGIN if not named else "they need something that the URL does not give"
    text = f"none of the SASL mechanisms {', '.join(wanted)} can be used with {url}: {reasons}"
    raise ConnectionLostException(text) if found.is_unverified and found.withheld else JMSSecurityException(text)


def _normal(host: str) -> str:
    """A host as it is compared: names without case and final dot, addresses in one spelling."""
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return host.lower().rstrip(".")
