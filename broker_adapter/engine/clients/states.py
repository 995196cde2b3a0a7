"""The life of a durable client at the server, as one table.

=========  =========  =============  =========  ========  =========  ===========  =========  =========
state      connect    ready          away       close     expire     begin drain  end drain  overflow
=========  =========  =============  =========  ========  =========  ===========  =========  =========
ABSENT     CONNECTED  unknown        ABSENT     unknown   ABSENT     unknown      ABSENT     ABSENT
CONNECTED  running    LIVE           PAUSED     ABSENT    CONNECTED  connected    CONNECTED  TIMED_OUT
LIVE       running    LIVE           PAUSED     ABSENT    LIVE       connected    LIVE       TIMED_OUT
PAUSED     CONNECTED  not connected  PAUSED     ABSENT    TIMED_OUT  DRAINING     PAUSED     TIMED_OUT
DRAINING   draining   not connected  DRAINING   draining  DRAINING   draining     PAUSED     TIMED_OUT
TIMED_OUT  CONNECTED  unknown        TIMED_OUT  unknown   TIMED_OUT  unknown      TIMED_OUT  TIMED_OUT
=========  =========  =============  =========  ========  =========  ===========  =========  =========

A word in small letters refuses the event: see :class:`Refusal`.  What keeps its state in spite of an event was told of
it late, or twice.

*Away* is a crash, a connection that is lost, or ``close(keep_alive=True)``; *close* is ``close()``, or a command of an
administrator, which is only for a client that is away.  The queue is there in all states but ABSENT and TIMED_OUT; of
a client that timed out, only this is left, for it to be told (``pending_event_count()``: -1).  A client whose queue has
more events than it may have (*overflow*) loses it in the same way, connected or not: it holds back no other client.

The words are those of the seed *Durable Client/Server Event Messaging*, "Disconnection" and "Reconnection".
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from broker_adapter.errors import IllegalStateException, InvalidClientIDException, JMSException

#: What ``pending_event_count()`` returns for a client that timed out, and for one that had no queue.
TIMED_OUT_COUNT: Final = -1
NO_QUEUE_COUNT: Final = -2


class State(Enum):
    """Where a durable client is in its life."""

    ABSENT = auto()  #: it was never here, or it has closed
    CONNECTED = auto()  #: it may register interest; events are queued
    LIVE = auto()  #: it is ready for events, and gets them
    PAUSED = auto()  #: it is away, and its queue is kept until its time is over
    DRAINING = auto()  #: it is away, and an administrator has a closed query's events taken out of its queue
    TIMED_OUT = auto()  #: it was away for too long, or its queue was too long, and it has none any more

    @property
    def has_queue(self) -> bool:
        """Whether events are queued for it."""
        return self not in (State.ABSENT, State.TIMED_OUT)

    @property
    def is_here(self) -> bool:
        """Whether it is connected."""
        return self in (State.CONNECTED, State.LIVE)


class Event(Enum):
    """What happens to a durable client."""

    CONNECT = auto()
    READY = auto()
    AWAY = auto()
    CLOSE = auto()
    EXPIRE = auto()
    BEGIN_DRAIN = auto()
    END_DRAIN = auto()
    OVERFLOW = auto()


class Refusal(Enum):
    """Why an event cannot be, with the text of the error, in which ``{}`` is the client's id."""

    UNKNOWN = "there is no durable client {!r}: it has never connected here, or has closed"
    RUNNING = (
        "a durable client {!r} is connected already, and stays connected: two programs cannot have one client id at a"
        " time"
    )
    CONNECTED = "durable client {!r} is connected: this is only done to the queue of a client that is away"
    NOT_CONNECTED = "durable client {!r} is not connected: it connects first, and is then ready for events"
    BEING_DRAINED = (
        "durable client {!r} is having the events of a closed query removed from its queue: try again when that is done"
    )

    def error(self, client_id: str) -> JMSException:
        """The error for a client: one of its id where the id is taken, else one of its state."""
        text = self.value.format(client_id)
        return InvalidClientIDException(text) if self is Refusal.RUNNING else IllegalStateException(text)


_ORDER: Final = tuple(Event)
_TABLE: Final[dict[State, tuple[State | Refusal, ...]]] = {
    State.ABSENT: (
        State.CONNECTED,
        Refusal.UNKNOWN,
        State.ABSENT,
        Refusal.UNKNOWN,
        State.ABSENT,
        Refusal.UNKNOWN,
        State.ABSENT,
        State.ABSENT,
    ),
    State.CONNECTED: (
        Refusal.RUNNING,
        State.LIVE,
        State.PAUSED,
        State.ABSENT,
        State.CONNECTED,
        Refusal.CONNECTED,
        State.CONNECTED,
        State.TIMED_OUT,
    ),
    State.LIVE: (
        Refusal.RUNNING,
        State.LIVE,
        State.PAUSED,
        State.ABSENT,
        State.LIVE,
        Refusal.CONNECTED,
        State.LIVE,
        State.TIMED_OUT,
    ),
    State.PAUSED: (
        State.CONNECTED,
        Refusal.NOT_CONNECTED,
        State.PAUSED,
        State.ABSENT,
        State.TIMED_OUT,
        State.DRAINING,
        State.PAUSED,
        State.TIMED_OUT,
    ),
    State.DRAINING: (
        Refusal.BEING_DRAINED,
        Refusal.NOT_CONNECTED,
        State.DRAINING,
        Refusal.BEING_DRAINED,
        State.DRAINING,
        Refusal.BEING_DRAINED,
        State.PAUSED,
        State.TIMED_OUT,
    ),
    State.TIMED_OUT: (
        State.CONNECTED,
        Refusal.UNKNOWN,
        State.TIMED_OUT,
        Refusal.UNKNOWN,
        State.TIMED_OUT,
        Refusal.UNKNOWN,
        State.TIMED_OUT,
        State.TIMED_OUT,
    ),
}


def outcome(state: State, event: Event) -> State | Refusal:
    """Return what an event does to a client in a state: the state that follows, or why it cannot be."""
    return _TABLE[state][_ORDER.index(event)]


def after(state: State, event: Event, client_id: str) -> State:
    """The state of a client after an event.

    Args:
        state: before it.
        event: what happens.
        client_id: of the client, for the error.

    Raises:
        InvalidClientIDException: a client of this id is connected.
        IllegalStateException: another refusal of the table.
    """
    found = outcome(state, event)
    if isinstance(found, Refusal):
        raise found.error(client_id)
    return found


def pending_count(before: State, size: int) -> int:
    """Return what a client that connects is told of its queue: ``size`` events, or why it had none.

    Args:
        before: its state before it connected.
        size: of the queue that it had.
    """
    if before is State.TIMED_OUT:
        return TIMED_OUT_COUNT
    return size if before.has_queue else NO_QUEUE_COUNT
