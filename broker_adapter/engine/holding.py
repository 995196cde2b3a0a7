"""Sends, commits and publications that wait for room: where each of them waits, and who is next.

Theory of operation
    Who waits stands in a *line*: that of the queue that has no room, or the one *at large* where the whole engine has
    none.  Commits that end messages make room as well, and have a line at large of their own, so that they do not wait
    behind those who only want some.  A line is in the order of arrival; who has to go back into one takes the place
    that is due to it.  Each connection has one more line, of what a topic's subscriptions are *choosing* for, where
    their selectors take longer than one decision may.  Connections take turns there, and nobody is refused for the
    time that it takes.

    What a connection sends or commits to one destination stays in its order, whatever each message waits for: those of
    them that wait are a *row*, and only who is the first in each of its rows stands in a line.  A commit is in the rows
    of all its destinations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from broker_adapter.destination import Destination
from broker_adapter.engine import commands as c
from broker_adapter.engine.queue_state import QueueState
from broker_adapter.engine.selection import Choice
from broker_adapter.errors import JMSException

#: A connection and a destination.
Row = tuple[int, Destination]


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
        is_choosing: whether subscriptions are choosing, so that it stands in that line of its connection.
        rows: those that it is in; None: it does not wait.
        behind: in how many of them it is not the first.
        line: where it stands; None: it does not, or not any more.
        queue: that of the line; None: it is of no queue in particular.
    """

    __slots__ = (
        "arrival",
        "behind",
        "choice",
        "chosen",
        "command",
        "deadline_ms",
        "errors",
        "index",
        "is_choosing",
        "line",
        "queue",
        "reason",
        "rows",
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
        self.is_choosing = False
        self.rows: Sequence[Row] | None = None
        self.behind = 0
        self.line: deque[Held] | None = None
        self.queue: QueueState | None = None


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
        at_large: the line of those who wait for no queue in particular.
        making_room: the line of the commits among them that end messages.
    """

    def __init__(self) -> None:
        self.at_large: deque[Held] = deque()
        self.making_room: deque[Held] = deque()
        #: lines of those for which subscriptions are choosing, by connection, in the order of their turns
        self._choosing: dict[int, deque[Held]] = {}
        self._all: dict[Held, None] = {}
        self._rows: dict[Row, deque[Held]] = {}
        self._of_clients: dict[int, dict[Held, None]] = {}
        self._of_sessions: dict[str, dict[Held, None]] = {}
        self._queues: dict[int, QueueState] = {}
        self._arrivals = 0
        #: a heap of (deadline, arrival) of those that came into a line; those that have left it are passed over
        self._deadlines: list[tuple[int, int]] = []
        self._timed: dict[int, Held] = {}

    def __iter__(self) -> Iterator[Held]:
        return iter(self._all)

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._all)

    @property
    def waits_at_large(self) -> bool:
        """Whether somebody waits for no queue in particular."""
        return bool(self.at_large or self.making_room)

    def arrived(self, command: c.Enqueue | c.Commit | c.Publish, now_ms: int, deadline_ms: int) -> Held:
        """A send, commit or publication has come; it does not wait yet."""
        self._arrivals += 1
        return Held(command, self._arrivals, now_ms, deadline_ms)

    # Rows.

    def first_before(self, held: Held) -> Held | None:
        """Whom one that has just come must not overtake; None where there is nobody, or where it waits already."""
        if not self._rows or held.rows is not None:
            return None
        return next((self._rows[row][0] for row in _rows_of(held.command) if row in self._rows), None)

    def follow(self, held: Held, reason: str) -> None:
        """Wait for those that came before."""
        held.reason = reason
        self._join(held)

    def behind(self, held: Held, destination: Destination) -> int:
        """How many wait behind one that waits, for the same destination."""
        return sum(len(self._rows[row]) - 1 for row in held.rows or () if row[1] == destination)

    def _join(self, held: Held) -> None:
        command = held.command
        rows = held.rows = _rows_of(command)
        for row in rows:
            others = self._rows.setdefault(row, deque())
            if others:
                held.behind += 1
            others.append(held)
        self._all[held] = None
        if not isinstance(command, c.Publish):
            self._of_clients.setdefault(command.client, {})[held] = None
        if isinstance(command, c.Commit) and command.commit_id is not None:
            self._of_sessions.setdefault(command.commit_id.session, {})[held] = None

    # Lines.

    def wait(self, held: Held, queue: QueueState | None, *, is_choosing: bool = False) -> None:
        """Stand in the line of a queue, or at large (None), or in that where subscriptions are choosing."""
        if held.rows is None:
            self._join(held)
        command = held.command
        if queue is not None:
            line = queue.held
            self._queues[queue.id] = queue
        elif is_choosing and not isinstance(command, c.Publish):
            line = self._choosing.setdefault(command.client, deque())
        elif isinstance(command, c.Commit) and command.settlements:
            line = self.making_room
        else:
            line = self.at_large
        held.line, held.queue, held.is_choosing = line, queue, is_choosing
        if held.arrival not in self._timed and not is_choosing:
            heappush(self._deadlines, (held.deadline_ms, held.arrival))
            self._timed[held.arrival] = held
            self._tidy()
        if line and held.arrival < line[0].arrival:
            line.appendleft(held)
            return
        if line and held.arrival - line[0].arrival < line[-1].arrival - held.arrival:
            index = 1
            while held.arrival > line[index].arrival:
                index += 1
        else:
            index = len(line)
            while index and held.arrival < line[index - 1].arrival:
                index -= 1
        line.insert(index, held)

    def _tidy(self) -> None:
        """What has ended must not pile up."""
        most = 2 * self.count + 64
        if len(self._deadlines) > most:
            self._deadlines = [each for each in self._deadlines if each[1] in self._timed]
            heapify(self._deadlines)
        if len(self._queues) > most:
            self.queues()

    def queues(self) -> Collection[QueueState]:
        """The queues for which somebody waits."""
        self._queues = {number: queue for number, queue in self._queues.items() if queue.held}
        return self._queues.values()

    def take(self, line: deque[Held]) -> Held:
        """The first of a line leaves it, to :meth:`wait` again or to :meth:`end`."""
        held = line.popleft()
        held.line = None
        return held

    @property
    def is_choosing(self) -> bool:
        """Whether there is somebody for :meth:`take_choosing`."""
        return any(self._choosing.values())

    def take_choosing(self) -> Held | None:
        """The first of the connection whose turn it is, as by :meth:`take`; None where subscriptions choose nothing."""
        while self._choosing:
            client = next(iter(self._choosing))
            line = self._choosing.pop(client)
            if line:
                self._choosing[client] = line  # behind the others
                return self.take(line)
        return None

    def withdraw(self, held: Held) -> None:
        """One that stands in a line leaves it, to :meth:`wait` again or to :meth:`end`."""
        assert held.line is not None
        held.line.remove(held)
        held.line = None

    # The end.

    def of_row(self, held: Held, destination: Destination) -> list[Held]:
        """One that waits, and those of its connection that wait behind it for this destination."""
        row = next((row for row in held.rows or () if row[1] == destination), None)
        return [held] if row is None else list(self._rows[row])

    def of_client(self, client: int) -> list[Held]:
        """What a connection has sent and committed, by arrival."""
        return sorted(self._of_clients.get(client, ()), key=_arrival)

    def of_session(self, session: str) -> list[Held]:
        """What a session has committed, by arrival."""
        return sorted(self._of_sessions.get(session, ()), key=_arrival)

    def end(self, ended: Collection[Held]) -> list[Held]:
        """Some wait no more, or never did.

        Returns:
            those that waited for nobody but these, by arrival.  They are to :meth:`wait` in a line, or to :meth:`end`.
        """
        over = {held for held in ended if held.rows is not None}
        rows: dict[Row, None] = {}
        lines: dict[int, deque[Held]] = {}
        for held in over:
            rows.update(dict.fromkeys(held.rows or ()))
            if held.line is not None:
                lines[id(held.line)] = held.line
            self._forget(held)
        for line in lines.values():
            left = [held for held in line if held not in over]
            line.clear()
            line.extend(left)
        free = []
        for row in rows:
            others = self._rows[row]
            before = others[0]
            if len(over) == 1 and before in over:
                others.popleft()  # most end so
            else:
                others = self._rows[row] = deque(held for held in others if held not in over)
            if not others:
                del self._rows[row]
            elif others[0] is not before:
                others[0].behind -= 1
                if not others[0].behind:
                    free.append(others[0])
        return sorted(free, key=_arrival)

    def _forget(self, held: Held) -> None:
        command = held.command
        held.rows = held.line = None
        del self._all[held]
        self._timed.pop(held.arrival, None)
        if not isinstance(command, c.Publish):
            _drop(self._of_clients, command.client, held)
        if isinstance(command, c.Commit) and command.commit_id is not None:
            _drop(self._of_sessions, command.commit_id.session, held)

    # Time.

    def overdue(self, now_ms: int) -> list[Held]:
        """Those whose time is over.  Those for which subscriptions are choosing have all the time that it takes."""
        found: list[Held] = []
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            held = self._timed.pop(heappop(self._deadlines)[1])
            if not held.is_choosing:
                found.append(held)
        return found

    def next_deadline_ms(self) -> int | None:
        """When the next one is to be refused.  Who stands in no line has to wait for others in any case."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self._timed:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None


def _rows_of(command: c.Enqueue | c.Commit | c.Publish) -> Sequence[Row]:
    if isinstance(command, c.Enqueue):
        return ((command.client, command.destination),)
    if isinstance(command, c.Commit):
        return [(command.client, each) for each in dict.fromkeys(destination for destination, _ in command.sends)]
    return ()


def _arrival(held: Held) -> int:
    return held.arrival


def _drop(groups: dict[Any, dict[Held, None]], key: object, held: Held) -> None:
    group = groups[key]
    del group[held]
    if not group:
        del groups[key]
