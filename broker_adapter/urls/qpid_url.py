"""The connection URL of Qpid: ``amqp://user:password@clientid/vhost?brokerlist='tcp://h1?retries='5';tcp://h2'&...``.

The seed *Client Failover Behaviour* points to it for how failover is configured.  Its options are translated to ours;
what has no counterpart is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote

import attrs

from broker_adapter.errors import InvalidURLException

_SCHEME = "amqp://"


def _milliseconds(text: str) -> str:
    return str(int(text) / 1000)


#: Option of the URL → ours, and how its value is translated.
_OPTIONS: dict[str, tuple[str, Callable[[str], str]]] = {
    "maxprefetch": ("prefetch_messages", str),
    "max_prefetch": ("prefetch_messages", str),
    "allow_plain_without_tls": ("allow_plain_without_tls", str),  # ours
}
#: The same for an address in the list of brokers.
_BROKER_OPTIONS: dict[str, tuple[str, Callable[[str], str]]] = {
    "retries": ("retries", str),
    "connectdelay": ("connect_delay_seconds", _milliseconds),
    "connecttimeout": ("connect_timeout_seconds", _milliseconds),
    "heartbeat": ("idle_timeout_seconds", str),
    "idle_timeout": ("idle_timeout_seconds", _milliseconds),
    "sasl_mechs": ("sasl_mechanisms", lambda text: ",".join(text.split())),
}
#: The same for a failover method.
_METHOD_OPTIONS: dict[str, tuple[str, Callable[[str], str]]] = {"cyclecount": ("cycle_count", str)}


@attrs.frozen
class QpidBroker:
    """One of the list of brokers."""

    address: str  #: host, or host:port
    tls: bool
    options: dict[str, str]  #: ours, as text


@attrs.frozen
class QpidURL:
    """A URL of this form, with its options translated."""

    brokers: tuple[QpidBroker, ...]
    options: dict[str, str]
    client_id: str | None
    username: str | None
    password: str | None = attrs.field(repr=False)


def is_qpid_url(text: str) -> bool:
    """Return whether a URL that begins with ``amqp://`` has this form: it has a list of brokers."""
    return any(part.startswith("brokerlist=") for part in text.partition("?")[2].split("&"))


def parse_qpid_url(text: str) -> QpidURL:
    """Take a URL of this form apart.

    Raises:
        InvalidURLException: it is not one, or has an option that is not known here.
    """
    base, _, query = text.partition("?")
    user, at, place = base.removeprefix(_SCHEME).rpartition("@")
    client_id, _, vhost = place.partition("/")
    username, colon, password = user.partition(":")
    given = _parse_options(query)
    brokers = given.pop("brokerlist", "")
    if not brokers:
        raise InvalidURLException("the brokerlist is empty; write brokerlist='tcp://HOST:PORT;tcp://HOST:PORT'")
    options = {"vhost": unquote(vhost)} if vhost else {}
    method = given.pop("failover", None)
    if method is not None:
        name, _, of_method = method.partition("?")
        options["failover"] = name
        options |= _translated(_parse_options(of_method), _METHOD_OPTIONS, f"failover method {name}")
    options |= _translated(given, _OPTIONS, "a Qpid connection URL", "brokerlist", "failover")
    return QpidURL(
        tuple([_broker(each) for each in _split(brokers, ";")]),
        options,
        unquote(client_id) or None,
        unquote(username) if at else None,
        unquote(password) if colon else None,
    )


def _broker(text: str) -> QpidBroker:
    address, _, query = text.strip().partition("?")
    scheme, separator, place = address.partition("://")
    if not separator or scheme != "tcp" or not place:
        raise InvalidURLException(f"broker {address!r} in the brokerlist is not of the form tcp://HOST:PORT")
    given = _parse_options(query)
    ssl = given.pop("ssl", "false")
    if ssl not in ("true", "false"):
        raise InvalidURLException(f"ssl={ssl!r} of broker {address!r} is neither 'true' nor 'false'")
    return QpidBroker(place, ssl == "true", _translated(given, _BROKER_OPTIONS, f"broker {address}", "ssl"))


def _translated(
    given: dict[str, str], known: dict[str, tuple[str, Callable[[str], str]]], where: str, *others: str
) -> dict[str, str]:
    options = {}
    for name, value in given.items():
        if name not in known:
            names = ", ".join((*others, *known))
            raise InvalidURLException(f"unknown option {name!r} of {where}; the options here are {names}")
        own, translate = known[name]
        try:
            options[own] = translate(value)
        except ValueError as error:
            raise InvalidURLException(f"{name}={value!r} of {where} is not a number") from error
    return options


def _parse_options(query: str) -> dict[str, str]:
    """``name='value'&...``; a value may hold further options in quotes of their own."""
    options: dict[str, str] = {}
    for part in _split(query, "&"):
        name, separator, value = part.partition("=")
        if not name or not separator or len(value) < 2 or value[0] != "'" or value[-1] != "'":
            raise InvalidURLException(f"option {part!r} is not of the form name='value'")
        if name in options:
            raise InvalidURLException(f"option {name!r} is given twice")
        options[name] = value[1:-1]
    return options


def _split(text: str, separator: str) -> list[str]:
    """The parts between separators that stand outside of quotes: one behind ``=`` opens, any other closes."""
    parts, start, depth = [], 0, 0
    for index, character in enumerate(text):
        if character == "'":
            depth += 1 if index and text[index - 1] == "=" else -1
            if depth < 0:
                break
        elif character == separator and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    if depth:
        raise InvalidURLException("the quotes in the connection URL do not match; write name='value'")
    parts.append(text[start:])
    return [part for part in parts if part]
