"""AMQP error conditions and the exceptions of this project: one table, read in both directions."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from broker_adapter.errors import (
    DELETED,
    LIMIT_REACHED,
    MESSAGE_TOO_LARGE,
    ConnectionLostException,
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    JMSSecurityException,
    MessageFormatException,
    OperationTimedOutException,
    ProtocolException,
    QueueClaimedException,
    Redirect,
    ResourceAllocationException,
    StaleAcknowledgementException,
    StoreException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)


class AmqpError(NamedTuple):
    """What a peer says went wrong (AMQP 1.0 section 2.8.14)."""

    condition: str
    description: str | None = None
    info: dict[str, Any] | None = None


#: The answer to a discharge of which the server cannot tell whether it was done.
IN_DOUBT: Final = "holdfast:transaction-in-doubt"
#: (condition, exception).  From a condition, the first row that names it counts; from an exception, the first row
#: that names its class or the nearest class above it.
CONDITIONS: Final[tuple[tuple[str, type[JMSException]], ...]] = (
    ("amqp:unauthorized-access", JMSSecurityException),
    ("amqp:not-found", InvalidDestinationException),
    ("amqp:resource-deleted", InvalidDestinationException),
    ("amqp:resource-limit-exceeded", ResourceAllocationException),
    ("amqp:link:message-size-exceeded", ResourceAllocationException),
    ("amqp:link:transfer-limit-exceeded", ProtocolException),
    ("amqp:transaction:rollback", TransactionRolledBackException),
    ("amqp:transaction:unknown-id", TransactionRolledBackException),
    ("amqp:transaction:timeout", TransactionRolledBackException),
    (IN_DOUBT, TransactionInDoubtException),
    ("holdfast:invalid-selector", InvalidSelectorException),
    ("holdfast:invalid-client-id", InvalidClientIDException),
    ("holdfast:timed-out", OperationTimedOutException),
    ("holdfast:store", StoreException),
    ("holdfast:stale", StaleAcknowledgementException),
    ("holdfast:claimed", QueueClaimedException),
    ("amqp:illegal-state", IllegalStateException),
    ("amqp:resource-locked", IllegalStateException),
    ("amqp:link:stolen", IllegalStateException),
    ("amqp:decode-error", MessageFormatException),
    ("amqp:connection:framing-error", ProtocolException),
    ("amqp:session:window-violation", ProtocolException),
    ("amqp:session:errant-link", ProtocolException),
    ("amqp:session:handle-in-use", ProtocolException),
    ("amqp:session:unattached-handle", ProtocolException),
    ("amqp:invalid-field", ProtocolException),
    ("amqp:not-allowed", IllegalStateException),
    ("amqp:connection:forced", ConnectionLostException),
    ("amqp:connection:redirect", ConnectionLostException),
    ("amqp:link:redirect", InvalidDestinationException),
    ("amqp:not-implemented", JMSException),
    ("amqp:internal-error", JMSException),
)

#: The engine's codes, and the conditions that tell a peer of them.
CODES: Final = {
    DELETED: "amqp:resource-deleted",
    LIMIT_REACHED: "amqp:resource-limit-exceeded",
    MESSAGE_TOO_LARGE: "amqp:link:message-size-exceeded",
}

_EXCEPTIONS: Final[dict[str, type[JMSException]]] = dict(reversed(CONDITIONS))
_NAMES: Final[dict[type[JMSException], str]] = {cls: name for name, cls in reversed(CONDITIONS)} | {
    JMSException: "amqp:internal-error"
}


def exception_for(error: AmqpError | None, otherwise: str, default: type[JMSException] = JMSException) -> JMSException:
    """The exception that a peer's error stands for; its ``error_code`` is the condition.

    Args:
        error: what the peer said, or None where it said nothing.
        otherwise: the reason to give where the peer gave none.
        default: the class for an error that is absent or not in the table.
    """
    if error is None or not error.condition:
        return default(otherwise)
    cls = _EXCEPTIONS.get(error.condition, default)
    # A client id that is in use is told by what field is invalid (AMQP 1.0 section 2.4.1, JMS mapping).
    if error.condition == "amqp:invalid-field" and (error.info or {}).get("invalid-field") == "container-id":
        cls = InvalidClientIDException
    reason = error.description or otherwise
    # Artemis rejects an anonymous producer's message to an address that there is not by the condition "failed".
    if error.condition == "failed" and reason.startswith("AMQ119002"):
        cls = InvalidDestinationException
    if error.condition.endswith(":redirect"):
        reason += _where_to(error.info or {})
    if error.condition == "amqp:connection:redirect":
        return ConnectionLostException(reason, error_code=error.condition, redirect=_redirect(error.info or {}))
    return cls(reason, error_code=error.condition)


def _redirect(info: dict[str, Any]) -> Redirect | None:
    """Return where a redirect of a connection leads, where it says so in the right types."""
    network_host, port, hostname, scheme = [info.get(key) for key in ("network-host", "port", "hostname", "scheme")]
    host = network_host or hostname
    if not isinstance(host, str) or not host or type(port) is bool or not isinstance(port, int):
        return None
    if not 0 < port < 65536:
        return None
    return Redirect(
        str(host),
        int(port),
        str(hostname) if isinstance(hostname, str) else None,
        str(scheme) if isinstance(scheme, str) else None,
    )


def _where_to(info: dict[str, Any]) -> str:
    """Return where a redirect leads (AMQP 1.0 sections 2.8.16 and 2.8.18), in words."""
    host, port, address = info.get("network-host") or info.get("hostname"), info.get("port"), info.get("address")
    words = [] if address is None else [repr(str(address))]
    if host is not None:
        words.append(f"at {host}" if port is None else f"at {host}:{port}")
    return f"; it is {' '.join(words)}" if words else ""


def sent_code(exception: JMSException) -> str | None:
    """The code of an exception as a peer is told: for the engine's own codes, a condition."""
    code = exception.error_code
    return None if code is None else CODES.get(code, code)


def error_for(exception: JMSException) -> AmqpError:
    """Return what to tell a peer.  A condition that the exception already carries is kept."""
    if isinstance(exception, InvalidClientIDException):
        return AmqpError("amqp:invalid-field", exception.reason, {"invalid-field": "container-id"})
    code = sent_code(exception)
    if isinstance(exception, ConnectionLostException) and exception.redirect is not None:
        host, port, hostname, scheme = exception.redirect
        info = {"network-host": host, "port": port, "hostname": hostname, "scheme": scheme}
        return AmqpError("amqp:connection:redirect", exception.reason, {k: v for k, v in info.items() if v is not None})
    if code is not None and code in _EXCEPTIONS:
        return AmqpError(code, exception.reason)
    for cls in type(exception).__mro__:
        name = _NAMES.get(cls)
        if name is not None:
            return AmqpError(name, exception.reason)
    return AmqpError("amqp:internal-error", exception.reason)
