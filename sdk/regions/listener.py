"""What listeners of regions and of queries are told."""

from __future__ import annotations

from enum import Enum
from typing import Any

import attrs

from sdk.messages.message import Message
from sdk.regions.cache import RegionOperation


class ResultPolicy(Enum):
    """What a registration of interest reads into the cache at once."""

    NONE = "none"  #: nothing
    KEYS = "keys"  #: which keys there are
    KEYS_VALUES = "keys_values"  #: the keys and their values


@attrs.frozen(eq=False)
class RegionEvent:
    """What has happened to a key of a region."""

    region: str  #: its name
    key: str
    operation: RegionOperation
    version: int  #: of the key from then on; it only grows
    replayed: bool  #: whether it happened before the client was ready for events
    message: Message | None = attrs.field(default=None, repr=False)  #: with the value, where it has one
    old_message: Message | None = attrs.field(default=None, repr=False)  #: with the value that the cache had before

    query_operation: RegionOperation | None = (
        None  #: what it is to a query: whether its result has, had or gets the key
    )

    @property
    def value(self) -> Any:
        """The value, as it was put; None where there is none.

        Raises:
            MessageFormatException: the body cannot be read.
        """
        return None if self.message is None else self.message.body

    @property
    def old_value(self) -> Any:
        """The value that the cache had before the event; None where it had none, or was ahead of the event already.

        It is never the new value, nor a newer one.
        """
        return None if self.old_message is None else self.old_message.body


class QueryListener:
    """What is called with the events of a continuous query; see :class:`RegionListener` for threads and errors."""

    def on_event(self, event: RegionEvent) -> None:
        """The result of the query has changed.

        ``event.query_operation`` says how: a key has come into it (create), has another value (update) or has left it
        (destroy), and ``event.operation`` what has happened to the key.
        """

    def on_close(self, query: str) -> None:
        """The query of this name was closed; nothing more comes."""


class RegionListener:
    """What is called with the events of a region, in their order, on the connection's thread for events.

    Override what is of interest.  What a method raises is logged, and the others are called.  A method may use the
    region; it must not close or stop the connection, and what takes long holds up all events of the connection.
    """

    def after_create(self, event: RegionEvent) -> None:
        """A key is there, with a value, that was not there."""

    def after_update(self, event: RegionEvent) -> None:
        """A key has another value, or has one again after an invalidation."""

    def after_invalidate(self, event: RegionEvent) -> None:
        """A key has no value any more, or its value changed and was not asked for (``receive_values=False``)."""

    def after_destroy(self, event: RegionEvent) -> None:
        """A key is not there any more."""

    def after_region_live(self, region: str) -> None:
        """All events of the region of this name that had waited were told; those that follow change the cache too."""
