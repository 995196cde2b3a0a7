"""Commands about gateways to other sites; see :mod:`broker_adapter.engine.commands.messaging`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from broker_adapter.engine.records.gateway_records import GatewayRecord
from broker_adapter.engine.records.layout import RawEntry
from broker_adapter.engine.records.new_message import NewMessage, Reply


class CreateGateway(NamedTuple):
    """Make a gateway.  Replies with the number of its queue."""

    name: str
    record: GatewayRecord
    reply: Reply | None = None


class ChangeGateway(NamedTuple):
    """Change fields of the record of a gateway.  Replies None."""

    name: str
    fields: Mapping[str, Any]
    passed: int = 0  #: the position ahead of which nothing waits; for a new selector it is that of the last one
    reply: Reply | None = None


class DestroyGateway(NamedTuple):
    """Remove a gateway with all that waits.  Replies with how many messages these were."""

    name: str
    reply: Reply | None = None


class EndBatch(NamedTuple):
    """What was read of a gateway's queue is done.

    Replies with how many messages were removed, and the position from which on others are left up to there; None:
    none.
    """

    queue: int  #: number of the gateway's queue
    through: int  #: the last position
    expired: frozenset[int] = frozenset()  #: positions of those that were left out
    filtered: frozenset[int] = frozenset()  #: likewise
    conflated: frozenset[int] = frozenset()  #: likewise
    refused: Mapping[int, str] = {}  #: position → why
    kept: Mapping[int, NewMessage] = {}  #: position → what goes into the queue here, of those that were left out
    applied: int = 0  #: the last position that the other site has confirmed
    drops: bool = False  #: nothing of it was sent, by a clean start
    url: str | None = None  #: to which it was sent; None: to none
    first: int = 0  #: the first position
    found: Sequence[RawEntry] = ()  #: supplied by the driver
    next: int | None = None  #: supplied by the driver
    reply: Reply | None = None


class CopyToGateway(NamedTuple):
    """Queue for a gateway what one of its destinations has already.  Replies None."""

    name: str
    destination: str  #: kind and name, as the gateway has it
    messages: Sequence[tuple[NewMessage, dict[str, Any] | None]]  #: with the annotations of its entry each
    is_first: bool = False  #: refused where a copy was begun already
    reply: Reply | None = None


class CountFetched(NamedTuple):
    """A gateway has fetched messages, which were ``taken`` here or ``refused``.  Replies None."""

    name: str
    taken: int
    refused: int
    reply: Reply | None = None


GatewayCommand = CreateGateway | ChangeGateway | DestroyGateway | EndBatch | CopyToGateway | CountFetched
