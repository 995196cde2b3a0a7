"""From a connection URL to a transport: the only file that knows every transport."""

from __future__ import annotations

from functools import partial

import attrs

from broker_adapter.amqp.codec import decode_payload
from broker_adapter.amqp.transport import AmqpTransport, login_for
from broker_adapter.failover import FailoverTransport, Identification, Inner, Refresh
from broker_adapter.in_process import InProcessTransport
from broker_adapter.settings import ClientSettings
from broker_adapter.transport import Transport
from broker_adapter.url import AmqpURL, EmbeddedURL, parse_url


def transport_for(
    url: str, *, refresh: Refresh | None = None, restores: bool = True
) -> tuple[Transport, ClientSettings]:
    """What connects to the broker that a URL names; it is not open yet.

    Args:
        url: see :func:`broker_adapter.url.parse_url`.
        refresh: asked once for fresh credentials where a login is refused.
        restores: whether a lost connection is restored, where the URL does not say ``nofailover``.

    Returns:
        The transport, and the client's settings in the URL.

    Raises:
        InvalidURLException
    """
    parsed = parse_url(url)
    if isinstance(parsed, EmbeddedURL):
        return InProcessTransport(parsed, decode_payload), parsed.client
    if not restores:
        parsed = attrs.evolve(parsed, failover=attrs.evolve(parsed.failover, failover="nofailover"))
    return FailoverTransport(parsed, _amqp, refresh=refresh), parsed.client


def _amqp(address: AmqpURL, epoch: int, identification: Identification) -> Inner:
    return AmqpTransport(
        address,
        epoch=epoch,
        commit_prefix=identification.commit_prefix,
        connection_token=identification.token,
        make_login=partial(login_for, trust=identification.trust),
    )
