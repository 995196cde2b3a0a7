"""What the source and the target of a link ask for, in the manner of the JMS mapping.  Pure."""

from __future__ import annotations

from typing import Final

from broker_adapter.amqp.events import Terminus
from broker_adapter.amqp.messages.values import Described, ULong
from broker_adapter.amqp.wire import (
    DELETE_ON_CLOSE_CODE,
    DESTINATION_CAPABILITIES,
    FORMER_NAME,
    NO_LOCAL_CODE,
    SELECTOR_CODE,
)
from broker_adapter.destination import Destination, DestinationKind, resolved
from broker_adapter.errors import IllegalStateException, InvalidDestinationException, InvalidSelectorException
from broker_adapter.transport import Subscription

_KINDS: Final = {name: kind for kind, name in DESTINATION_CAPABILITIES.items()}
_SELECTOR_NAMES: Final = (SELECTOR_CODE, "apache.org:selector-filter:string")
_NO_LOCAL_NAMES: Final = (NO_LOCAL_CODE, "apache.org:no-local-filter:list")


def destination_of(terminus: Terminus) -> Destination:
    """The destination of a terminus with an address."""
    return resolved(Destination(terminus.address or "", _kind_of(terminus, DestinationKind.QUEUE)))


def browses(source: Terminus, destination: Destination) -> bool:
    """Return whether a consumer of this source gets copies, and takes nothing."""
    return source.copies and not destination.is_topic


def subscription_of(name: str, source: Terminus) -> tuple[Subscription | None, Terminus]:
    """The subscription that a source of a topic asks for, and the source as the server keeps it.

    Args:
        name: of the subscription.
        source: of the link.

    Returns:
        The subscription; None: one without a name, which ends with its link, as does any that is not durable.

    Raises:
        IllegalStateException: it is to last for a while, or as long as its session or connection (AMQP 1.0 part 3,
            3.5.3), which this server does not do.
    """
    durable, shared = source.expiry == "never", "shared" in source.capabilities
    if source.durable and not durable and (source.expiry != "link-detach" or source.timeout):
        raise IllegalStateException(
            f"a durable subscription with the expiry-policy {source.expiry} and a timeout of {source.timeout} s is not"
            " supported; ask for never, and it lasts until its link is closed, or for link-detach with no timeout",
            error_code="amqp:not-implemented",
        )
    found = Subscription(name, durable, shared, "global" not in source.capabilities) if durable or shared else None
    # A timeout is of an expiring source (3.5.3), and none of these is one.
    kept = source if durable else source._replace(durable=0, expiry="link-detach")
    return found, kept._replace(timeout=0)


def temporary_kind(terminus: Terminus) -> DestinationKind:
    """The kind of the temporary destination that a dynamic terminus asks for."""
    kind = _kind_of(terminus, DestinationKind.TEMPORARY_QUEUE)
    if kind in (DestinationKind.TOPIC, DestinationKind.TEMPORARY_TOPIC):
        return DestinationKind.TEMPORARY_TOPIC
    return DestinationKind.TEMPORARY_QUEUE


def _kind_of(terminus: Terminus, default: DestinationKind) -> DestinationKind:
    for name in terminus.capabilities:
        if name in _KINDS:
            return _KINDS[name]
    return default


def former_name(terminus: Terminus, kind: DestinationKind) -> str | None:
    """The name that a temporary destination had before its connection was lost.

    Raises:
        InvalidDestinationException: such a destination cannot have had it.
    """
    name = (terminus.dynamic_properties or {}).get(FORMER_NAME)
    if name is None:
        return None
    if not isinstance(name, str) or resolved(Destination(str(name))).kind is not kind:
        raise InvalidDestinationException(f"{name!r:.100} is not the name of a temporary destination of this kind")
    return str(name)


def temporary_terminus(destination: Destination) -> Terminus:
    """The terminus of a new temporary destination, as the answer to an attach."""
    return Terminus(
        destination.name,
        dynamic=True,
        expiry="link-detach",
        dynamic_properties={"lifetime-policy": Described(ULong(DELETE_ON_CLOSE_CODE), [])},
        capabilities=(DESTINATION_CAPABILITIES[destination.kind],),
    )


def filters_of(source: Terminus) -> tuple[str | None, bool]:
    """The selector and no-local filters of a source.

    Raises:
        InvalidSelectorException: the selector is no string.
        IllegalStateException: there is a filter that this server does not know, so that it could not apply it.
    """
    selector: str | None = None
    no_local = False
    for key, value in (source.filters or {}).items():
        descriptor = getattr(value, "descriptor", None)
        if descriptor in _SELECTOR_NAMES:
            if not isinstance(value.value, str):
                raise InvalidSelectorException(f"selector {value.value!r:.200} is not a string")
            selector = value.value
        elif descriptor in _NO_LOCAL_NAMES:
            no_local = True
        else:
            raise IllegalStateException(f"unknown filter {str(key)!r:.200}", error_code="amqp:not-implemented")
    return selector, no_local
