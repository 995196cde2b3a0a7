"""From a connection URL to an open transport: the only file that knows every transport."""

from __future__ import annotations

from collections.abc import Callable

from broker_adapter.amqp.codec import decode_payload
from broker_adapter.amqp.transport import AmqpTransport, login_for
from broker_adapter.in_process import InProcessTransport
from broker_adapter.settings import ClientSettings
from broker_adapter.transport import Credentials, Peer, Transport, TransportEvent
from broker_adapter.url import AmqpURL, parse_url


def open_transport(
    url: str,
    credentials: Credentials,
    listener: Callable[[TransportEvent], None],
    timeout: float | None = None,
) -> tuple[Transport, Peer, ClientSettings]:
    """Connect to the broker that a URL names.

    Args:
        url: see :func:`broker_adapter.url.parse_url`.
        credentials: who connects; a user in the URL is taken where they have none.
        listener: gets the transport's events.
        timeout: longest wait in seconds; None: ``connect_timeout_seconds`` of the URL.

    Returns:
        The open transport, what is known of the broker, and the client's settings in the URL.

    Raises:
        InvalidURLException, ConnectionLostException, JMSSecurityException, InvalidClientIDException, StoreException
    """
    parsed = parse_url(url)
    transport: Transport
    transport = (
        AmqpTransport(parsed, make_login=login_for)
        if isinstance(parsed, AmqpURL)
        else InProcessTransport(parsed, decode_payload)
    )
    peer = transport.open(credentials, listener, parsed.client.connect_timeout_seconds if timeout is None else timeout)
    return transport, peer, parsed.client
