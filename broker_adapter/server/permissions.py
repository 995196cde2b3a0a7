"""The one door to destinations: whatever a client of the server wants with one is asked here first.  Pure.

Every user may do everything today (``docs/security.md``).  What asks: links that send, receive and browse, messages of
links that name their destinations one by one (in transactions as well), temporary destinations, the end of
subscriptions, and each request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker_adapter.destination import Destination, DestinationKind

#: What a client may want; of requests it is the name of the operation, such as ``purge``.
SEND: Final = "send"
CONSUME: Final = "consume"
BROWSE: Final = "browse"
CREATE_TEMPORARY: Final = "create_temporary"
UNSUBSCRIBE: Final = "unsubscribe"

#: Who may do what: called with the user, the action and the destination; raises JMSSecurityException.
Authorize = Callable[[str | None, str, Destination | None], None]


def authorize(user: str | None, action: str, destination: Destination | None) -> None:
    """Let a user do something; never blocks.

    Args:
        user: who has logged in; None: a client of a server without users.
        action: one of the constants of this module, or the operation that is requested.
        destination: what it is done with; of ``UNSUBSCRIBE`` a topic of the subscription's name; None: a request that
            names none.

    Raises:
        JMSSecurityException: the user may not.
    """


def destination_of(arguments: Mapping[str, Any]) -> Destination | None:
    """The destination that a request names; None where it names none, or not by a text."""
    name = arguments.get("destination", arguments.get("queue"))
    if not isinstance(name, str):
        return None
    return Destination(name, DestinationKind.TOPIC if arguments.get("kind") == "topic" else DestinationKind.QUEUE)
