"""Sends, commits and publications that wait for room: where each of them waits, and who is next.

Theory of operation
    Who waits stands in a *line*: that of the queue that has no room, or the one *at large* where the whole engine has
    none.  A line is in the order of arrival; who has to go back into one takes the place that is due to it.  One more
    line is of those for which a topic's subscriptions are *choosing*, where their selectors take longer than one
    decision may.  Nobody is refused there for the time that it takes.

    What a connection sends to one destination stays in its order, whatever each message waits for: only the first send
    stands in a line, as the *head* of those that came after it.  Otherwise one could overtake another of its
    producer, which the engine would then take for one that it has already, and drop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from broker_adapter.destination import Destination
from broker_adapter.engine import commands as c
from broker_adapter.engine.queue_state import QueueState
from broker_adapter.engine.selection import Choice
from broker_adapter.errors import JMSException


class Held:
    """A send, commit or publication that waits for room, or may have to.

    Attributes:
        arrival: a number that grows with each.
        choice: of a topic's subscriptions, for the message that is not taken; None: they were not asked yet.
        chosen: of a commit: what subscriptions have chosen; None: they were not asked, or none of them has a selector.
        since_ms: when it came.
        deadline_ms: when it is to be refused.
        index: of the first message that is not taken.
        errors: of its messages, where there are some.
        reason: what it waits for.
        followers: later sends and commits of the same connection to the destination of which it is the head; None:
            there are none.
        heads: the connection and the destination whose later sends wait behind it; None: there are none.
        line: where it waits; None: it does not, or not any more.
        is_timed: whether its deadline is noted.
    """

    __slots__ = (
        "arrival",
        "choice",
        "chosen",
        "command",
        "deadline_ms",
        "errors",
        "followers",
        "heads",
        "index",
        "is_timed",
        "line",
        "reason",
        "since_ms",
    )

    def __init__(self, command: c.Enqueue | c.Commit | c.Publish, arrival: int, now_ms: int, deadline_ms: int) -> None:
        self.command = command
        self.arrival = arrival
        self.since_ms = now_ms
        self.deadline_ms = deadline_ms
        self.index = 0
        self.choice: Choice | None = None
        self.chosen: Chosen | None = None
        self.errors: list[JMSException | None] | None = None
        self.reason = ""
        self.followers: deque[Held] | None = None  # made where there are some: every send passes here
        self.heads: tuple[int, Destination] | None = None
        self.line: deque[Held] | None = None
        self.is_timed = False


class Chosen:
    """How far the subscriptions of topics have chosen from the messages of a commit.

    Attributes:
        queues: the subscriptions of each topic, as they were when it began.
        wanting: those that want the message, for each message so far.
        places: how many these are.
    """

    __slots__ = ("places", "queues", "wanting")

    def __init__(self, queues: dict[Destination, Sequence[QueueState]]) -> None:
        self.queues = queues
        self.wanting: list[Sequence[QueueState]] = []
        self.places = 0


class Holding:
    """All who wait.

    Attributes:
        count: how many there are, followers included.
        at_large: the line of those who wait for no queue in particular.
        choosing: the line of those for which subscriptions are choosing.
    """

    def __init__(self) -> None:
        self.count = 0
        self.at_large: deque[Held] = deque()
        self.choosing: deque[Held] = deque()
        self._queues: dict[int, QueueState] = {}
        self._heads: dict[tuple[int, Destination], Held] = {}
        self._arrivals = 0
        #: a heap of (deadline, arrival, held) of those that came into a line; those that wait no more are passed over
        self._deadlines: list[tuple[int, int, Held]] = []

    def __iter__(self) -> Iterator[Held]:
        for line in self.lines():
            for held in line:
                yield held
                yield from held.followers or ()

    def arrived(self, command: c.Enqueue | c.Commit | c.Publish, now_ms: int, deadline_ms: int) -> Held:
        """A send, commit or publication has come; it does not wait yet."""
        self._arrivals += 1
        return Held(command, self._arrivals, now_ms, deadline_ms)

    def head(self, command: c.Enqueue) -> Held | None:
        """Whom a send of this connection to this destination must not overtake."""
        return self._heads.get((command.client, command.destination)) if self._heads else None

    def head_for(self, commit: Held, client: int, destinations: Iterable[Destination]) -> Held | None:
        """Whom a commit of this connection to these destinations must not overtake."""
        if not self._heads:
            return None
        found = (self._heads.get((client, each)) for each in destinations)
        return next((head for head in found if head is not None and head is not commit), None)

    def follow(self, head: Held, held: Held) -> None:
        """Wait behind the head."""
        held.reason = head.reason
        if head.followers is None:
            head.followers = deque()
        head.followers.append(held)
        self.count += 1

    def wait(self, held: Held, queue: QueueState | None, *, is_choosing: bool = False) -> None:
        """Stand in the line of a queue, or at large (None), or in that where subscriptions are choosing."""
        self.count += 1
        if isinstance(held.command, c.Enqueue):
            self._become_head(held, (held.command.client, held.command.destination))
        line = self.choosing if is_choosing else self.at_large
        if queue is not None:
            line = queue.held
            self._queues[queue.id] = queue
        held.line = line
        if not held.is_timed and not is_choosing:
            held.is_timed = True
            heappush(self._deadlines, (held.deadline_ms, held.arrival, held))
            self._tidy()
        if line and held.arrival < line[0].arrival:
            line.appendleft(held)
            return
        index = len(line)
        while index and held.arrival < line[index - 1].arrival:
            index -= 1
        line.insert(index, held)

    def _tidy(self) -> None:
        """What has ended must not pile up."""
        most = 2 * self.count + 64
        if len(self._deadlines) > most:
            for _, _, held in self._deadlines:
                held.is_timed = held.line is not None
            self._deadlines = [each for each in self._deadlines if each[2].is_timed]
            heapify(self._deadlines)
        if len(self._queues) > most:
            self.lines()

    def lines(self) -> list[deque[Held]]:
        """All lines in which somebody waits, and last the two that always exist."""
        return [*(queue.held for queue in self.queues()), self.at_large, self.choosing]

    def queues(self) -> Collection[QueueState]:
        """The queues for which somebody waits."""
        self._queues = {number: queue for number, queue in self._queues.items() if queue.held}
        return self._queues.values()

    def take(self, line: deque[Held]) -> Held:
        """The first of a line waits no more, or has to be sent back by :meth:`wait`."""
        self.count -= 1
        held = line.popleft()
        held.line = None
        return held

    def withdraw(self, held: Held) -> None:
        """One that waits, waits no more, or has to be sent back by :meth:`wait`."""
        assert held.line is not None
        self.count -= 1
        held.line.remove(held)
        held.line = None

    def _become_head(self, held: Held, heads: tuple[int, Destination]) -> None:
        held.heads = heads
        self._heads[heads] = held

    def end(self, held: Held) -> deque[Held]:
        """One that was taken out of its line has ended; returns its followers, who wait for nobody now."""
        if held.heads is not None:
            self._heads.pop(held.heads, None)
        followers, held.followers = held.followers or deque(), None
        self.count -= len(followers)
        return followers

    def lead(self, held: Held, followers: deque[Held], heads: tuple[int, Destination]) -> None:
        """One who waits in a line again is the head of these, and of what their connection sends there later."""
        self._become_head(held, heads)
        held.followers = followers
        self.count += len(followers)

    def remove(self, line: deque[Held], is_over: Callable[[Held], bool] = lambda _held: True) -> list[Held]:
        """Take those out of a line for whom it is over, and those out of its followers.

        Returns:
            them in the order of arrival.  Whoever is a head and has followers left has not ended; see :meth:`end`.
        """
        removed: list[Held] = []
        kept: list[Held] = []
        for held in line:
            over = [each for each in held.followers or () if is_over(each)]
            if held.followers and over:
                held.followers = deque(each for each in held.followers if each not in over)
            if is_over(held):
                held.line = None
                over.append(held)
            else:
                kept.append(held)
            self.count -= len(over)
            removed += over
        line.clear()
        line.extend(kept)
        return sorted(removed, key=lambda held: held.arrival)

    def overdue(self, now_ms: int) -> list[Held]:
        """Those whose time is over."""
        found: list[Held] = []
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            held = heappop(self._deadlines)[2]
            held.is_timed = False
            if held.line is not self.choosing:
                found.append(held)
        return found

    def next_deadline_ms(self) -> int | None:
        """When the next one is to be refused.  Followers have to wait for their head in any case."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].line is None:
            heappop(deadlines)[2].is_timed = False
        return deadlines[0][0] if deadlines else None
