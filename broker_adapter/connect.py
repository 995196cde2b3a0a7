"""From a connection URL to an open transport: the only file that knows every transport."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs

from broker_adapter.amqp.codec import decode_payload
from broker_adapter.amqp.transport import AmqpTransport, login_for
from broker_adapter.failover import FailoverTransport, Identification, Inner, Refresh
from broker_adapter.in_process import InProcessTransport
from broker_adapter.settings import ClientSettings
from broker_adapter.transport import Credentials, Peer, Transport, TransportEvent
from broker_adapter.url import AmqpURL, EmbeddedURL, parse_url


def open_transport(
    url: str,
    credentials: Credentials,
    listener: Callable[[TransportEvent], None],
    timeout: float | None = None,
    *,
    refresh: Refresh | None = None,
    restores: bool = True,
) -> tuple[Transport, Peer, ClientSettings]:
    """Connect to the broker that a URL names.

    Args:
        url: see :func:`broker_adapter.url.parse_url`.
        credentials: who connects; a user in the URL is taken where they have none.
        listener: gets the transport's events.
        timeout: longest wait in seconds; None: ``connect_timeout_seconds`` of the URL for each attempt.
        refresh: asked once for fresh credentials where a login is refused.
        restores: whether a lost connection is restored, where the URL does not say ``nofailover``.

    Returns:
        The open transport, what is known of the broker, and the client's settings in the URL.

    Raises:
        InvalidURLException, ConnectionLostException, JMSSecurityException, InvalidClientIDException, StoreException
    """
    parsed = parse_url(url)
    transport: Transport
    if isinstance(parsed, EmbeddedURL):
        transport = InProcessTransport(parsed, decode_payload)
        own = parsed.client.connect_timeout_seconds
        return transport, transport.open(credentials, listener, own if timeout is None else timeout), parsed.client
    if not restores:
        parsed = attrs.evolve(parsed, failover=attrs.evolve(parsed.failover, failover="nofailover"))
    transport = FailoverTransport(parsed, _amqp, refresh=refresh)
    return transport, transport.open(credentials, listener, timeout), parsed.client


def _amqp(address: AmqpURL, epoch: int, identification: Identification) -> Inner:
    return AmqpTransport(
        address,
        epoch=epoch,
        commit_prefix=identification.commit_prefix,
        connection_token=identification.token,
        make_login=partial(login_for, trust=identification.trust),
    )
