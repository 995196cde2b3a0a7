"""The log of events: one record for an event, whatever the number of clients that want it.

Theory of operation
    Positions are those of one queue of the engine, in which each event's message has a place: so messages, counters and
    checks are those of any other queue.  Beside it, an event has a record, and a posting for each audience that wants
    it, or one for all where there are many (:mod:`event_records`).

    An event ends when every audience that wanted it has *passed* it: when each client that belonged to the audience, at
    that position, has processed its queue up to there.  How far an audience has passed follows from the cursors of its
    clients, which are stored with the commit that moves them; so there is no count for each event that could be wrong
    after a crash.  The events of an audience are walked from its oldest posting on, those that many want from the
    oldest one of their region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker_adapter.engine.regions.audience import Audience
from broker_adapter.engine.regions.event_records import (
    FEW,
    EventRecord,
    encode_event,
    encode_numbers,
    encode_posting,
    encode_run,
    position_key,
    posting_key,
    run_key,
)

#: Puts a record into a table: the table's name, key and value.
Put = Callable[[str, bytes, bytes], None]


class BroadStream:
    """The events of a region that many audiences want.

    Attributes:
        id: its number, as an audience has one.
        postings: how many events it has got.
    """

    __slots__ = ("id", "postings")

    def __init__(self, number: int, postings: int = 0) -> None:
        self.id = number
        self.postings = postings


def append_event(
    event: EventRecord,
    position: int,
    broad: BroadStream,
    wanting: Sequence[Audience],
    put: Put,
) -> None:
    """Write the record and the postings of an event, and the place in its run that an update has.

    Args:
        event: without its audiences.
        position: of it.
        broad: the region's stream of what many want.
        wanting: the audiences that want it; in any order.
        put: puts a record into a table.
    """
    audiences = sorted([audience.id for audience in wanting])
    key_of = position_key(position)
    put("events", key_of, encode_event(key_of, event, encode_numbers(audiences)))
    for audience in wanting:
        audience.events += 1
    if len(audiences) <= FEW:
        for audience in wanting:
            audience.postings += 1
            posting = posting_key(audience.id, position)
            put("postings", posting, encode_posting(posting, audience.postings))
    else:
        broad.postings += 1
        posting = posting_key(broad.id, position)
        put("postings", posting, encode_posting(posting, broad.postings))
    if event.run:
        update = run_key(event.run, position)
        put("runs", update, encode_run(update))
