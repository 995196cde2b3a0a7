"""What the engine refuses, and what a transport refuses ahead of its broker, in the same words.  Pure.

A transport has to: a broker of another make might take such a call for something else, or say nothing.
"""

from __future__ import annotations

from broker_adapter.destination import Destination
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    UnsupportedOperationException,
)


def not_browsable(topic: Destination) -> InvalidDestinationException:
    """The error where a topic is to be browsed."""
    return InvalidDestinationException(f"cannot browse {topic.name!r}: it is a topic")


def not_durable(topic: Destination) -> InvalidDestinationException:
    """The error where a temporary topic is to have a durable subscription."""
    return InvalidDestinationException(
        f"temporary topic {topic.name!r} cannot have a durable subscription: it ends with its connection"
    )


def not_own(temporary: Destination) -> InvalidDestinationException:
    """The error where a connection deletes a temporary destination that it has not made, or has deleted."""
    return InvalidDestinationException(f"{temporary.name!r} is no temporary destination of this connection")


def consumed(temporary: Destination) -> IllegalStateException:
    """The error where a temporary destination is to be deleted that has a consumer."""
    return IllegalStateException(f"cannot delete {temporary.name!r}: a consumer uses it; close it first")


def subscribed(name: str) -> IllegalStateException:
    """The error where a durable subscription is to be deleted that has a consumer."""
    return IllegalStateException(f"cannot unsubscribe {name!r}: a consumer uses it; close it first")


def has_consumer(name: str) -> IllegalStateException:
    """The error where a subscription that is not shared is to have a second consumer."""
    return IllegalStateException(
        f"subscription {name!r} is in use by another consumer; close it first, or share the subscription"
    )


def of_other_kind(name: str, *, shared: bool) -> IllegalStateException:
    """The error where one consumer wants a durable subscription alone that is shared, or the reverse.

    Args:
        name: of the subscription.
        shared: whether it is shared.
    """
    kind = "a shared" if shared else "an unshared"
    return IllegalStateException(f"subscription {name!r} is {kind} durable one; unsubscribe it first")


def no_destination(kind: str, name: str, *, is_region: bool) -> InvalidDestinationException:
    """The error where a queue or topic is named that does not exist.

    Args:
        kind: "queue" or "topic".
        name: of it.
        is_region: whether there is a region of this name.
    """
    region = (
        f": it is a region, which cannot be deleted; create_region({name!r}) reads its keys, and destroys them"
        if is_region
        else ""
    )
    return InvalidDestinationException(f"there is no {kind} {name!r}{region}")


def needs_holdfast(what: str, product: str) -> UnsupportedOperationException:
    """Return the error where another broker is asked for what only ours has.

    Args:
        what: is asked for.
        product: what the broker calls itself.
    """
    return UnsupportedOperationException(
        f"{what} needs a Holdfast server, and this broker is {product!r}; connect to a Holdfast server, or to the"
        " engine in the process (embedded:)"
    )
