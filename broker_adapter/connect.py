"""From a connection URL to a transport: the only file that knows every transport.

Each is loaded when it is first needed: importing the SDK, or using the engine in the process, needs no AMQP.
"""

from __future__ import annotations

from functools import partial
from typing import Final, cast

import attrs

from broker_adapter.amqp.messages.payloads import decode_payload
from broker_adapter.errors import JMSException
from broker_adapter.gateways.bridge import Bridge
from broker_adapter.settings import ClientSettings
from broker_adapter.transport import Refresh, RemoteTransport, Transport
from broker_adapter.urls.url import AmqpURL, EmbeddedURL, FailoverURL, parse_url

_INSTALL_PROTON: Final = "; install it: pip install python-qpid-proton"
#: What to do where a module cannot be loaded.
_REMEDIES: Final = {
    "proton": _INSTALL_PROTON,
    "cproton": _INSTALL_PROTON,
    "cproton_ffi": _INSTALL_PROTON,
    "scramp": "; install it: pip install scramp",
    "ssl": "; use a Python that was built with OpenSSL",
    "_ssl": "; use a Python that was built with OpenSSL",
}


def transport_for(
    url: str | FailoverURL, *, refresh: Refresh | None = None, restores: bool = True
) -> tuple[Transport, ClientSettings]:
    """Return what connects to the broker that a URL names; it is not open yet.

    Args:
        url: see :func:`broker_adapter.urls.url.parse_url`; or what that has returned.
        refresh: asked once for fresh credentials where a login is refused.
        restores: whether a lost connection is restored, unless the URL says ``nofailover``.

    Returns:
        The transport, and the client's settings in the URL.

    Raises:
        InvalidURLException
        JMSException: it is one of AMQP, and a module that AMQP needs cannot be loaded.
    """
    parsed = parse_url(url) if isinstance(url, str) else url
    if isinstance(parsed, EmbeddedURL):
        from broker_adapter.in_process import InProcessTransport

        return InProcessTransport(parsed, decode_payload, transport_to_site), parsed.client
    if not restores:
        parsed = attrs.evolve(parsed, failover=attrs.evolve(parsed.failover, failover="nofailover"))
    return _over_amqp(parsed, refresh), parsed.client


def transport_to_site(url: str) -> Bridge:
    """Return what a gateway connects with to the server that a URL names; it is not open yet, and not restored.

    Args:
        url: of a server.

    Raises:
        JMSException: as :func:`transport_for`.
    """
    transport, settings = transport_for(url, restores=False)
    return Bridge(cast(RemoteTransport, transport), decode_payload, settings.request_timeout_seconds)


def _over_amqp(url: FailoverURL, refresh: Refresh | None) -> Transport:
    try:
        from broker_adapter.amqp.client.login import login_for
        from broker_adapter.amqp.client.transport import AmqpTransport
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        needed = f"the module {module!r}" if module else "a module"
        remedy = _REMEDIES.get(module, "")
        raise JMSException(
            f"AMQP needs {needed}, which cannot be loaded here: {error}{remedy} (embedded: URLs work without it)"
        ) from error
    from broker_adapter.failover.inner import Identification, Inner
    from broker_adapter.failover.transport import FailoverTransport

    def connected(address: AmqpURL, epoch: int, identification: Identification) -> Inner:
        return AmqpTransport(
            address,
            epoch=epoch,
            commit_prefix=identification.commit_prefix,
            connection_token=identification.token,
            make_login=partial(login_for, trust=identification.trust),
        )

    return FailoverTransport(url, connected, refresh=refresh)
