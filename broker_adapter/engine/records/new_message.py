"""A message on its way into the engine, and how a command is answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from broker_adapter.envelope import Identity

#: Gets the result of a command, or a JMSException.
Reply = Callable[[Any], None]
#: Gets the events of a durable client, and its marker, in order.
EventSink = Callable[[Sequence[Any]], None]


class NewMessage(NamedTuple):
    """A message on its way in: what the engine must know, and the payload that it only carries."""

    format: int
    payload: bytes
    priority: int = 4
    persistent: bool = True
    expires_at_ms: int | None = None
    deliver_at_ms: int | None = None
    identity: Identity | None = None
    group: int = 0  #: see :func:`broker_adapter.engine.commands.messaging.group_number`
