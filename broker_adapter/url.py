"""Connection URLs: ``embedded:PATH``, ``embedded:``, ``amqp://host:port``, ``amqps://host:port``, with ``?options``."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

from broker_adapter.errors import InvalidURLException
from broker_adapter.settings import AmqpSettings, ClientSettings, EngineSettings, options_of, settings_from

#: Longest connection URL, in characters.
MAX_URL_LENGTH = 8192

_FORMS = "embedded:PATH, embedded:, amqp://HOST:PORT or amqps://HOST:PORT, each with ?option=value&..."


@attrs.frozen
class EmbeddedURL:
    """An engine in this process: durable under a directory, or in memory where ``path`` is None."""

    path: str | None
    client: ClientSettings
    engine: EngineSettings
    engine_options: frozenset[str] = frozenset()  #: names of the engine's options that the URL gives


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


def parse_url(text: str) -> EmbeddedURL | AmqpURL:
    """Take a connection URL apart.

    Args:
        text: one of the forms above.  A user and a password in it (``amqp://user:password@host``) are
            percent-decoded and used where ``create_connection`` is given none.

    Raises:
        InvalidURLException: it has another form, an unknown option (the error lists the valid ones) or a
            value that does not fit.
    """
    if not isinstance(text, str) or not text:
        raise InvalidURLException(f"connection URL {text!r} is not a string of the form {_FORMS}")
    if len(text) > MAX_URL_LENGTH:
        raise InvalidURLException(
            f"connection URL of {len(text)} characters is longer than the limit of {MAX_URL_LENGTH}"
        )
    scheme, separator, rest = text.partition(":")
    if separator and scheme == "embedded":
        path, _, query = rest.partition("?")
        options = _options(query, (ClientSettings, EngineSettings))
        engine_names = {info.name for info in options_of(EngineSettings)}
        return EmbeddedURL(
            path=unquote(path) or None,
            client=_settings(ClientSettings, options),
            engine=_settings(EngineSettings, options),
            engine_options=frozenset(engine_names & options.keys()),
        )
    if separator and scheme in ("amqp", "amqps"):
        return _amqp(text, scheme)
    raise InvalidURLException(f"connection URL {_masked(text)!r} has none of the forms {_FORMS}")


def _amqp(text: str, scheme: str) -> AmqpURL:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidURLException(f"connection URL {_masked(text)!r}: {error}") from error
    if not host:
        raise InvalidURLException(f"connection URL {_masked(text)!r} names no host; write {scheme}://HOST:PORT")
    if parts.path not in ("", "/") or parts.fragment:
        raise InvalidURLException(
            f"connection URL {_masked(text)!r} has a path; write {scheme}://HOST:PORT?option=value"
        )
    options = _options(parts.query, (ClientSettings, AmqpSettings))
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
            raise InvalidURLException(f"unknown option {name!r}; the options here are {', '.join(known)}")
        if name in options:
            raise InvalidURLException(f"option {name!r} is given twice")
        options[name] = value
    return options


def _settings(cls: type, options: dict[str, str]):  # type: ignore[no-untyped-def]
    try:
        return settings_from(cls, options)
    except ValueError as error:
        raise InvalidURLException(str(error)) from error


def _masked(text: str) -> str:
    """The URL without what stands between ``//`` and ``@``: it may hold a password."""
    head, separator, tail = text.rpartition("@")
    return f"{head.partition('//')[0]}//***@{tail}" if separator else text
