"""How a client logs in and encrypts, by the options of its URL."""

from __future__ import annotations

import ssl
from functools import partial

from broker_adapter.amqp.sasl import ClientLogin, Login
from broker_adapter.amqp.security.tls_files import check_readable, refuse_pass_phrase
from broker_adapter.errors import InvalidURLException, JMSSecurityException
from broker_adapter.mechanisms import Trust, usable_mechanisms
from broker_adapter.transport import Credentials
from broker_adapter.urls.url import AmqpURL


def login_for(url: AmqpURL, credentials: Credentials, trust: Trust | None = None) -> Login:
    """The login of a connection: with the given credentials, or else those of the URL; a password alone is of its user.

    Args:
        url: the address.
        credentials: of the application.
        trust: what is known of brokers, noted down when the login succeeds; None: only the address.

    Raises:
        JMSSecurityException: the URL asks for mechanisms of which none can be used, or a user name has no password.
        ConnectionLostException: the only mechanisms left are too weak for an address that may not be the broker's.
    """
    trust = trust or Trust((url,))
    username, password = credentials.username, credentials.password
    of_url = username is None and password is None
    if of_url:
        username, password = url.username, url.password
    elif username is None:
        username = url.username  # whose password the application has, as from a file
    usable = usable_mechanisms(url, username, password, trust, of_url=of_url)
    if (username is None) is not (password is None) and url.amqp.sasl_mechanisms is None:
        have, lack = ("password", "user name") if username is None else (f"user name {username!r}", "password")
        raise JMSSecurityException(f"there is a {have} without a {lack}; give both, or none to log in as ANONYMOUS")
    return ClientLogin(
        usable.mechanisms,
        username,
        password,
        url.amqp.vhost if url.amqp.vhost is not None else url.host,
        withheld=usable.withheld,
        is_unverified=usable.is_unverified,
        on_welcome=partial(trust.note, tls=url.tls),
    )


def tls_context(url: AmqpURL) -> ssl.SSLContext:
    """Return how a connection is encrypted.

    Args:
        url: the address, with its TLS files.

    Raises:
        InvalidURLException: a file cannot be read, or holds something else.
    """
    settings = url.amqp
    for name in ("tls_ca_file", "tls_certificate_file", "tls_key_file"):
        path = getattr(settings, name)
        try:
            check_readable(f"{name}={path!r}", path)
        except ValueError as error:
            raise InvalidURLException(f"the TLS files of the URL cannot be used: {error}") from error
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidURLException(
            f"the TLS files of the URL cannot be used: tls_ca_file={settings.tls_ca_file!r} has no certificate: {error}"
        ) from error
    if settings.tls_certificate_file is not None:
        try:
            context.load_cert_chain(settings.tls_certificate_file, settings.tls_key_file, refuse_pass_phrase)
        except (OSError, ValueError) as error:
            key = "" if settings.tls_key_file is None else f" with tls_key_file={settings.tls_key_file!r}"
            raise InvalidURLException(
                f"the TLS files of the URL cannot be used: tls_certificate_file={settings.tls_certificate_file!r}{key}:"
                f" {error}"
            ) from error
    context.check_hostname = settings.tls_verify_host
    return context
