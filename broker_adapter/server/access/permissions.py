"""The one door to destinations: whatever a client of the server wants with one is asked here first.  Pure.

Every user may do everything today (``docs/security.md``).  What asks: links that send, receive and browse, messages of
links that name their destinations one by one (in transactions as well), changes of regions in transactions, temporary
destinations, the end of subscriptions (also where an attach replaces one that has another topic or selector), and each
request.

What the door does not decide, because a name says too little or the engine knows better:

- A client consumes, deletes and declares only temporary destinations of its own connection; the engine checks that.
  Every user may send to those of others, whose names are in messages (``reply_to``).
- A client chooses its client id, and ``UNSUBSCRIBE`` names the subscription alone: who may end a subscription of this
  name may end that of each client id that is not in use.
- ``RECEIVE_EVENTS`` names a topic of the client id, which is the name of the queue of a durable client: who may receive
  events under a client id that is not in use gets what is queued for it, and may drop that.  Which regions a client
  wants is asked with each ``register_interest``.  The other requests of a durable client name none: they concern the
  client of the connection alone.
- ``clients``, ``regions`` and ``queries`` of all name none, and tell the names of all; where they name a client, it is
  asked about, as a topic.
- ``seen_rest``, ``uncount_rest`` and ``resolve_commit`` name connections and sessions by words that only their client
  knows (UUIDs).  ``seen``, ``uncount`` and ``settle_positions`` also name the queue, which is asked about.
- A batch that the gateway of another site sends (``apply_batch``, the right ``gateway``) goes to the destinations that
  it names: that right is one to send to all.
- ``publish``, ``renew`` and ``discard`` name staged transactions, whoever staged them; those of others can be guessed,
  and ``discard`` takes prefixes.  A rule that keeps users apart must not permit them to every user.
- A message id may contain the producer id of its sender, and the engine rejects duplicates by it: a user that may send
  to the same destination can have later messages of that producer taken for duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine.operations import request as of_requests
from broker_adapter.engine.operations.request import Names
from broker_adapter.engine.operations.requests import REQUESTS
from broker_adapter.engine.queues.directory import named_queue

#: What a client may want; of requests it is the name of the operation, such as ``purge``.
SEND: Final = of_requests.SEND
CONSUME: Final = "consume"
BROWSE: Final = "browse"
CREATE_TEMPORARY: Final = "create_temporary"
UNSUBSCRIBE: Final = "unsubscribe"
RECEIVE_EVENTS: Final = "receive_events"

#: Checks a permission: called with the user, the action and the destination; raises JMSSecurityException.
Authorize = Callable[[str | None, str, Destination | None], None]


def authorize(user: str | None, action: str, destination: Destination | None) -> None:
    """Let a user do something; never blocks.

    Args:
        user: that has logged in; None: a client of a server without users.
        action: one of the constants of this module, or the operation that is requested.
        destination: what it is done with; of ``UNSUBSCRIBE`` a topic of the subscription's name, of ``RECEIVE_EVENTS``
            one of the client id; None: a request that names none.

    Raises:
        JMSSecurityException: the user may not.
    """


def asked_of_request(
    operation: str, arguments: Mapping[str, Any], dead_letter_queue: str
) -> list[tuple[str, Destination | None]]:
    """Return what a user must be allowed, for a request: actions, each with its destination.

    A redrive that names a queue to move messages to is a send to that queue as well.  One that names none puts
    messages back to where they were set aside, which needs no right but that to redrive the queue.

    A request names a queue or a topic as the engine does: only the prefix of temporary queues tells their kind.

    To stage messages for a queue is a send to it as well: a publication, which names transactions and no queue, puts
    there what was allowed when it was staged.

    To ask for the positions of several queues is to ask for those of each.

    A region is the topic of its name, and a durable client that of its id, as for ``RECEIVE_EVENTS``.

    Which arguments name what, and which right that takes, is part of each request
    (:mod:`broker_adapter.engine.operations.request`).

    Args:
        operation: its name.
        arguments: by name, not checked yet; one that is not of its type names nothing, and is refused by
            the operation.
        dead_letter_queue: the queue that a redrive is of where it names none.
    """
    request = REQUESTS.get(operation)
    asked: list[tuple[str, Destination | None]] = []
    for name, wanted in () if request is None else request.naming:
        value = arguments.get(name)
        if value is None and wanted.names is Names.DESTINATION:
            value = dead_letter_queue if wanted.default is None else None
        found = _named(wanted.names, value, is_topic=arguments.get("kind") == "topic")
        if not found and not asked:
            asked.append((operation, None))
        asked += [(right or operation, each) for each in found for right in wanted.rights]
    return asked or [(operation if request is None else request.right, None)]


def _named(names: Names | None, value: Any, *, is_topic: bool) -> list[Destination]:
    """Return the destinations that the value of an argument names; none where it is not of its type."""
    if names is Names.QUEUES:
        return [named_queue(each) for each in value] if isinstance(value, list) else []
    if not isinstance(value, str):
        return []
    if names is Names.TOPIC or (names is Names.DESTINATION and is_topic):
        return [Destination(value, DestinationKind.TOPIC)]
    return [named_queue(value)]
