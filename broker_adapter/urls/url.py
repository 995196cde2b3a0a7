"""Connection URLs: ``embedded:PATH``, ``embedded:``, ``amqp://host:port``, ``amqps://host:port``, with ``?options``;
``failover:(URL,URL,...)?options``; and the form of Qpid (:mod:`broker_adapter.urls.qpid_url`).
"""

from __future__ import annotations

import re
from unicodedata import normalize
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import attrs

from broker_adapter.errors import InvalidURLException
from broker_adapter.settings import (
    AmqpSettings,
    ClientSettings,
    EmbeddedSettings,
    EngineSettings,
    FailoverSettings,
    options_of,
    settings_from,
)
from broker_adapter.urls.qpid_url import is_qpid_url, parse_qpid_url
from broker_adapter.wording import most_similar

#: Longest connection URL, in characters.
MAX_URL_LENGTH = 8192
#: Most addresses of a connection.
MAX_ADDRESSES = 100

_DIVIDING = r"\s/?#,;()\[\]@&'\""
#: A user with or without a password, in which nothing divides the URL.
_USER = rf"amqps?://[^{_DIVIDING}]*"
_HOST = rf"(?:\[[0-9A-Fa-f:.%]*\]|[^{_DIVIDING}:]*)(?::[0-9]*)?"
#: What is ahead of the last ``@`` of a URL whose users and passwords are encoded as they must be.
_ENCODED = re.compile(rf"{_USER}|failover:\((?:\s*{_USER}@{_HOST}/?(?:\?[^@,]*|\s*),)*\s*{_USER}")
#: What is ahead of a user, as far as it is certain that it is no part of one.
_AHEAD = re.compile(r"\s*(?:failover:\(?\s*)?(?:[a-z][a-z0-9+.-]*://|amqps?:)?", re.IGNORECASE)
#: Arguments that some take for options.
_ARGUMENTS = ("client_id", "durable_timeout")
_OF_EMBEDDED = frozenset(info.name for info in options_of(EmbeddedSettings))
_OF_THE_ENGINE = frozenset(info.name for info in options_of(EngineSettings))
_FORMS = (
    "embedded:PATH, embedded:, amqp://HOST:PORT, amqps://HOST:PORT or failover:(URL,URL,...), each with"
    " ?option=value&..."
)


@attrs.frozen
class EmbeddedURL:
    """An engine in this process: durable under a directory, or in memory where ``path`` is None.

    An engine in memory may have a name, ``memory``.
    """

    path: str | None
    client: ClientSettings
    engine: EngineSettings
    engine_options: frozenset[str] = frozenset()  #: names of the engine's options that the URL gives
    memory: str | None = None
    config: str | None = None  #: file with the settings of single queues

    def __str__(self) -> str:
        return f"embedded:{self.path or ''}" if self.memory is None else f"embedded:?memory={quote(self.memory)}"


@attrs.frozen
class AmqpURL:
    """A peer on the network."""

    host: str
    port: int
    tls: bool
    client: ClientSettings
    amqp: AmqpSettings
    username: str | None = None
    password: str | None = attrs.field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'amqps' if self.tls else 'amqp'}://{host}:{self.port}"


@attrs.frozen
class FailoverURL:
    """Where a client may connect, and how a lost connection is restored.  A single ``amqp://`` URL is one as well."""

    addresses: tuple[AmqpURL, ...]  #: at least one
    client: ClientSettings
    failover: FailoverSettings
    client_id: str | None = None  #: used where the application gives none


def parse_url(text: str) -> EmbeddedURL | FailoverURL:
    """Take a connection URL apart.

    Args:
        text: one of the forms above.  A user and a password in it (``amqp://user:password@host``) are
            percent-decoded and used where ``create_connection`` is given none.

    Raises:
        InvalidURLException: it has another form, an unknown option (the error lists the valid ones) or a
            value that does not fit.
    """
    if not isinstance(text, str) or not text:
        shown = "''" if text == "" else f"of the type {type(text).__name__}"  # bytes may have a password, too
        raise InvalidURLException(f"connection URL {shown} is not a string of the form {_FORMS}")
    if len(text) > MAX_URL_LENGTH:
        raise InvalidURLException(
            f"connection URL of {len(text)} characters is longer than the limit of {MAX_URL_LENGTH}"
        )
    scheme, separator, rest = text.partition(":")
    if separator and scheme == "embedded":
        if any(sign in rest.rpartition("@")[0] for sign in (":", "//")):
            raise InvalidURLException(
                f"connection URL {masked(text)!r} has another URL where embedded: takes a directory"
            )
        return _embedded(rest)
    if not separator or scheme not in ("amqp", "amqps", "failover"):
        raise InvalidURLException(f"connection URL {masked(text)!r} has none of the forms {_FORMS}")
    try:
        return _several(rest) if scheme == "failover" else _single(text, scheme)
    except InvalidURLException:
        if not _may_cut_a_password(text):
            raise
    # The error may hold a part of the password, so it is not the context of this one either.
    raise InvalidURLException(
        f"connection URL {masked(text)!r} is not understood; write each address as amqp://USER:PASSWORD@HOST:PORT or"
        " amqps://..., with all but letters, digits and -._~ of the user and the password percent-encoded (as"
        " urllib.parse.quote(password, safe='') does)"
    )


def _embedded(rest: str) -> EmbeddedURL:
    path, _, query = rest.partition("?")
    options = _options(query, (ClientSettings, EmbeddedSettings, EngineSettings))
    engine_names = {info.name for info in options_of(EngineSettings)}
    memory, config = attrs.astuple(_settings(EmbeddedSettings, options))
    if path and memory is not None:
        raise InvalidURLException(
            f"memory={memory!r} names an engine in memory, and {unquote(path)!r} is a directory; give one of them"
        )
    return EmbeddedURL(
        path=unquote(path) or None,
        memory=memory,
        config=config,
        client=_settings(ClientSettings, options),
        engine=_settings(EngineSettings, options),
        engine_options=frozenset(engine_names & options.keys()),
    )


def _single(text: str, scheme: str) -> FailoverURL:
    if is_qpid_url(text):
        qpid = parse_qpid_url(text)
        client, options = _settings(ClientSettings, qpid.options), qpid.options
        addresses = [
            _amqp(f"{'amqps' if each.tls else 'amqp'}://{each.address}", options | each.options)
            for each in qpid.brokers
        ]
        named = [attrs.evolve(each, username=qpid.username, password=qpid.password) for each in addresses]
        return _checked(FailoverURL(tuple(named), client, _settings(FailoverSettings, options), qpid.client_id))
    base, _, query = text.partition("?")
    options = _options(query, (ClientSettings, AmqpSettings, FailoverSettings))
    address = _amqp(base, options, text)
    return _checked(FailoverURL((address,), address.client, _settings(FailoverSettings, options)))


def _several(rest: str) -> FailoverURL:
    """``(URL,URL,...)?options``: the options hold for all addresses that do not say otherwise."""
    inner, closed, query = rest.rpartition(")")
    if not closed or not inner.startswith("(") or (query and not query.startswith("?")):
        raise InvalidURLException(
            f"connection URL {masked('failover:' + rest)!r} is not of the form failover:(URL,URL,...)?option=value&..."
        )
    options = _options(query[1:], (ClientSettings, AmqpSettings, FailoverSettings))
    addresses = []
    for text in inner[1:].split(","):
        base, _, own = text.strip().partition("?")
        if base.partition(":")[0] not in ("amqp", "amqps"):
            raise InvalidURLException(f"{masked(base)!r} in a failover URL is neither amqp://... nor amqps://...")
        addresses.append(_amqp(base, options | _options(own, (AmqpSettings,)), text))
    return _checked(
        FailoverURL(tuple(addresses), _settings(ClientSettings, options), _settings(FailoverSettings, options))
    )


def _checked(url: FailoverURL) -> FailoverURL:
    count = len(url.addresses)
    if count > MAX_ADDRESSES:
        raise InvalidURLException(f"{count} addresses are more than the limit of {MAX_ADDRESSES}")
    if len({(each.host, each.port) for each in url.addresses}) < count:
        raise InvalidURLException("an address is given twice; name each once (option retries tries one again)")
    if url.failover.failover == "singlebroker" and count > 1:
        raise InvalidURLException(f"failover=singlebroker has one address, not {count}; use roundrobin")
    return url


def _amqp(base: str, options: dict[str, str], whole: str | None = None) -> AmqpURL:
    shown = masked(whole or base)
    reason = None
    try:
        parts = urlsplit(base)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        reason = str(error)
    if reason is not None:
        # The reason may hold a part of a password, so the error is not the context of this one either.
        reason = "its host or port is not one" if "***@" in shown else reason
        raise InvalidURLException(f"connection URL {shown!r}: {reason}")
    scheme = parts.scheme
    if not host:
        raise InvalidURLException(f"connection URL {shown!r} names no host; write {scheme}://HOST:PORT")
    if parts.path not in ("", "/") or parts.fragment:
        raise InvalidURLException(f"connection URL {shown!r} has a path; write {scheme}://HOST:PORT?option=value")
    return AmqpURL(
        host=host,
        port=port if port is not None else (5671 if scheme == "amqps" else 5672),
        tls=scheme == "amqps",
        client=_settings(ClientSettings, options),
        amqp=_settings(AmqpSettings, options),
        username=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
    )


def _options(query: str, classes: tuple[type, ...]) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise InvalidURLException(f"options {query!r} are not of the form name=value&name=value") from error
    known = [info.name for info in options_of(*classes)]
    options: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            if name in _ARGUMENTS:
                raise InvalidURLException(f"{name!r} is no option: it is an argument of create_connection()")
            if name in _OF_EMBEDDED:
                raise InvalidURLException(
                    f"{name!r} is an option of embedded: URLs: it is about an engine in this process"
                )
            if name in _OF_THE_ENGINE:
                raise InvalidURLException(
                    f"{name!r} is an option of the engine, and so of the server here: holdfast serve --option"
                    f" {name}={value}; other brokers have settings of their own"
                )
            raise InvalidURLException(
                f"unknown option {name!r}{most_similar(name, known)}; the options here are {', '.join(known)}"
            )
        if name in options:
            raise InvalidURLException(f"option {name!r} is given twice")
        options[name] = value
    return options


def _settings(cls: type, options: dict[str, str]):  # type: ignore[no-untyped-def]
    try:
        return settings_from(cls, options)
    except ValueError as error:
        raise InvalidURLException(str(error)) from error


def _may_cut_a_password(text: str) -> bool:
    """Return whether what stands ahead of the last ``@`` may be one password that has what divides a URL."""
    head, separator, _ = text.rpartition("@")
    return bool(separator) and _ENCODED.fullmatch(head) is None


def masked(text: str) -> str:
    """The URL without what stands between its scheme and the last ``@``: it may hold passwords."""
    if not text.isascii() and "@" in (usual := normalize("NFKC", text)):
        text = usual  # a full-width @ is one for urlsplit
    if "@" not in text:
        text = text.replace("%40", "@")  # what was meant for the password, or for the separator
    head, separator, tail = text.rpartition("@")
    ahead = _AHEAD.match(head)
    return f"{ahead[0] if ahead else ''}***@{tail}" if separator else text
