"""Which messages match which selectors: of a topic's subscriptions, and of consumers.

Theory of operation
    A selector may take long, so selectors are asked in *slices* of time.  The first slice of a decision is for the
    messages of its commands, the second one for sends that are blocked until they are matched, and one more in the same
    cycle for consumers that search their queues.  What a slice has no time for goes on in the next decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Candidate, Scan
from broker_adapter.engine.commands.selection import (
    SMALL_AT_ONCE,
    SMALL_BYTES,
    Choice,
    Formats,
    Selectable,
    selects,
    wanting_of,
)
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.records.layout import RawEntry
from broker_adapter.selectors.language import Selector

#: Why a send or commit waits for which there is room.
MATCHING = "the selectors of subscriptions take their time"


class CommitMatches:
    """How far the messages of a commit are matched with the subscriptions of topics.

    Attributes:
        queues: the subscriptions of each topic, as they were when it began.
        wanting: those that match the message, for each message so far.
        places: how many these are.
    """

    __slots__ = ("places", "queues", "wanting")

    def __init__(self, queues: dict[Destination, Sequence[QueueState]]) -> None:
        self.queues = queues
        self.wanting: list[Sequence[QueueState]] = []
        self.places = 0


class Matched:
    """A send or commit whose messages are matched, maybe over several decisions.

    Attributes:
        match: of a topic's subscriptions with the message that is not taken; None: not begun.
        matches: of a commit: subscriptions that match its messages; None: not begun, or none of them has a selector.
    """

    __slots__ = ("match", "matches")

    def __init__(self) -> None:
        self.match: Choice | None = None
        self.matches: CommitMatches | None = None


class Matching:
    """Asks selectors.

    Attributes:
        formats: the message formats that can be read.
        selector_fault: the last selector that failed unexpectedly, with the error; for the log.
        new_slice: makes what is asked between two selectors; once that returns True, the others wait for the next
            decision.
        is_late: the slice of now.
        used_up: the slice in which no more blocked sends are matched.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._changed = directory.changed
        self.formats = Formats()
        self.selector_fault: tuple[str, Exception] | None = None
        self.new_slice: Callable[[], Callable[[], bool]] = lambda: lambda: False
        self.is_late = self.new_slice()
        self.used_up: Callable[[], bool] | None = None
        self._unasked = 0  #: how many selectors may be asked, of small messages, before the clock is

    def is_selected(self, selector: Selector, message: Selectable) -> bool:
        """Whether a selector is true of a message; an unexpected failure is noted, and counts as False."""
        try:
            return selects(selector, message)
        except MemoryError:
            raise
        except Exception as error:
            self.selector_fault = selector.text, error
            return False

    def begin_candidates(self) -> None:
        """Begin the slice of consumers with selectors: that of subscriptions is over in this cycle."""
        self.is_late = self.used_up = self.new_slice()

    def scanned(
        self,
        scan: Scan,
        messages: Sequence[tuple[RawEntry, Selectable]],
        through: int,
        complete: bool,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        """Messages that a ``Scan`` asked for.  ``settle_down`` must follow.

        Args:
            scan: the question.
            messages: those that can be read.
            through: the position up to which the answer goes.
            complete: whether there is nothing behind it.
            is_late: asked after each message; once it returns True, the others are left for the next scan.
        """
        consumer = self._directory.consumers.get(scan.consumer)
        if consumer is None or consumer.search is None:
            return
        selector = consumer.search.selector
        found = []
        for index, (entry, message) in enumerate(messages, 1):
            if self.is_selected(selector, message):
                found.append(entry)
            if index < len(messages) and is_late():
                through, complete = entry.position, False
                break
        consumer.queue.scanned(consumer, scan.lane, through, found, complete)
        self._changed[consumer.queue.id] = consumer.queue

    def match_candidate(self, candidate: Candidate, message: Selectable | None) -> bool:
        """Match a message that came in or came back with the consumers that search, if it can be read (else None).

        ``settle_down`` must follow.

        Returns:
            Whether all were asked; otherwise this was all that may be done in this cycle.
        """
        queue = candidate.queue
        if message is not None and not queue.match_candidate(
            candidate, lambda selector: self.is_selected(selector, message), self.is_late
        ):
            return False
        queue.pending_candidates -= 1
        if queue.id in self._directory.queues:
            self._changed[queue.id] = queue
        return True

    def wanting(
        self, blocked: Matched, message: c.NewMessage, queues: Sequence[QueueState]
    ) -> Sequence[QueueState] | None:
        """The subscriptions of a topic that match a message; None where it takes longer than this decision may.

        Args:
            blocked: the send or commit, which keeps how far it has come.
            message: one of its messages.
            queues: the subscriptions to ask.
        """
        match = blocked.match
        if match is None and len(message.payload) <= SMALL_BYTES and len(queues) <= self._unasked:
            self._unasked -= len(queues)  # most messages come here: nothing is made for them
            return wanting_of(queues, Selectable(self.formats, message.format, message.payload), self.is_selected)
        self._unasked = SMALL_AT_ONCE
        if match is None or match.subject is not message:
            fields = Selectable(self.formats, message.format, message.payload)
            match = blocked.match = Choice(message, fields, len(message.payload), queues, self.is_selected)
        # Subscriptions made since it began get later messages only, or it might never end.
        return still_subscribed(match.wanting) if match.go_on(self.is_late) else None


def still_subscribed(wanting: Sequence[QueueState]) -> Sequence[QueueState]:
    """Those of some subscriptions that have not ended since they were asked."""
    return [each for each in wanting if each.record.kind == "subscription"]
