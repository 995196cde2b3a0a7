"""Sends, commits and publications that wait for room: where each of them waits, and which one is next.

Theory of operation
    A blocked send stands in a *wait queue*: that of the queue that has no room, or the *engine-wide* one where the
    whole engine has none.  Commits that end messages make room as well, and have engine-wide wait queues of their own,
    small ones and large ones, so that they do not wait behind sends that only need room.  A wait queue is in the order
    of arrival; a send that goes back into one takes the place that is due to it.  Each connection has one more wait
    queue, of the sends whose messages are still to be *matched* with the selectors of a topic's subscriptions, where
    that takes longer than one decision may.  Connections take turns there, and no send is refused for the time that it
    takes.

    What a connection sends or commits to one destination stays in its order, whatever each message waits for.  A
    connection and a destination are a *route*, and of the blocked sends of a route only the first one stands in a wait
    queue.  A commit is in the routes of all its destinations.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from operator import gt
from typing import Any, Final

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.selection import Choice
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.errors import JMSException

#: A connection and a destination.
Route = tuple[int, Destination]
#: How much room the whole engine has, of each kind:
#: :meth:`broker_adapter.engine.rules.admission.Admission.engine_wide_room`.
EngineWideRoom = tuple[float, ...]
NO_ROOM: Final[EngineWideRoom] = (-math.inf,) * 6
_ALL_ROOM: Final[EngineWideRoom] = (math.inf,) * 6

#: What a commit that is tried again without success costs, in milliseconds for each of its sends and settlements, and a
#: publication for each of its transactions.
_FAILED_TRY_MS = 0.02
_FAILED_PUBLICATION_MS = 0.005
#: What costs no more than that, in milliseconds, is small.
SMALL_MS = 5


class BlockedSend:
    """A send, commit or publication that waits for room, or may have to.

    Attributes:
        arrival: a number that grows with each.
        match: of a topic's subscriptions with the message that is not taken; None: not begun.
        matches: of a commit: subscriptions that match its messages; None: not begun, or none of them has a selector.
        since_ms: when it came.
        deadline_ms: when it is to be refused.
        index: of the first message that is not taken.
        errors: of its messages, where there are some.
        reason: what it waits for.
        needs: messages and bytes that its queue must be able to take, as far as that is known; None: not known.
        is_matching: whether selectors are still to be asked, so that it stands in that wait queue of its connection.
        routes: those that it is in; None: it does not wait.
        behind: in how many of them it is not the first.
        tried_with: the engine-wide room when it was last tried and did not have enough of it.
        wait_queue: where it stands; None: it does not, or not any more.
        queue: that of the wait queue; None: it is of no queue in particular.
    """

    __slots__ = (
        "arrival",
        "behind",
        "command",
        "deadline_ms",
        "errors",
        "index",
        "is_matching",
        "match",
        "matches",
        "needs",
        "queue",
        "reason",
        "routes",
        "since_ms",
        "tried_with",
        "wait_queue",
    )

    def __init__(self, command: c.Enqueue | c.Commit | c.Publish, arrival: int, now_ms: int, deadline_ms: int) -> None:
        self.command = command
        self.arrival = arrival
        self.since_ms = now_ms
        self.deadline_ms = deadline_ms
        self.index = 0
        self.match: Choice | None = None
        self.matches: CommitMatches | None = None
        self.errors: list[JMSException | None] | None = None
        self.reason = ""
        self.needs: tuple[int, int] | None = None
        self.is_matching = False
        self.routes: Sequence[Route] | None = None
        self.behind = 0
        self.tried_with = NO_ROOM
        self.wait_queue: deque[BlockedSend] | None = None
        self.queue: QueueState | None = None

    def note_error(self, index: int, error: JMSException) -> None:
        """A message of a send is refused."""
        assert isinstance(self.command, c.Enqueue)
        if self.errors is None:
            self.errors = [None] * len(self.command.messages)
        self.errors[index] = error


def failed_try_ms(command: c.Enqueue | c.Commit | c.Publish) -> float:
    """What a try of a commit or publication without success costs, in milliseconds."""
    if isinstance(command, c.Commit):
        return _FAILED_TRY_MS * (len(command.sends) + len(command.settlements))
    return _FAILED_PUBLICATION_MS * len(command.transactions) if isinstance(command, c.Publish) else 0.0


def is_large(command: c.Enqueue | c.Commit | c.Publish) -> bool:
    """Whether a try without success costs so much that small commits do not wait for the same room."""
    return failed_try_ms(command) > SMALL_MS


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


class MakingRoom:
    """The commits of one size that make room, and which of them is to be tried next.

    One is due when there is more room, of any kind, than when it was last tried.  They take turns, so that one
    that needs more than there will be keeps no other one from being tried.

    Attributes:
        wait_queue: the commits, by arrival.
    """

    def __init__(self) -> None:
        self.wait_queue: deque[BlockedSend] = deque()
        self._next_arrival = 0  #: where the next pass begins
        self._left = 0  #: how many are still to be examined
        self._examined_with = _ALL_ROOM  #: the most room of each kind since all were to be examined
        self._lowest = _ALL_ROOM  #: no more room than at the last try of any of them
        self._lowest_seen = _ALL_ROOM  #: the same of those that were examined

    def joined(self, blocked: BlockedSend) -> None:
        """A commit stands in the wait queue now."""
        self._lowest = tuple(map(min, self._lowest, blocked.tried_with))
        self._lowest_seen = tuple(map(min, self._lowest_seen, blocked.tried_with))

    def may_have_due(self, room: EngineWideRoom) -> bool:
        """Whether a commit that is due may be found with so much room."""
        if not self.wait_queue:
            self._left, self._examined_with, self._lowest, self._lowest_seen = 0, *(_ALL_ROOM,) * 3
            return False
        if any(map(gt, room, self._lowest)) and (not self._left or any(map(gt, room, self._examined_with))):
            self._left, self._examined_with, self._lowest_seen = len(self.wait_queue), room, _ALL_ROOM
        return self._left > 0

    def next_candidates(self, most: int) -> list[BlockedSend]:
        """So many of those that are still to be examined, in the order of their turns."""
        waiting = self.wait_queue
        first = bisect_left(waiting, self._next_arrival, key=_arrival)
        return [waiting[(first + index) % len(waiting)] for index in range(min(most, self._left, len(waiting)))]

    def is_due(self, blocked: BlockedSend, room: EngineWideRoom) -> bool:
        """Whether a commit is to be tried now."""
        return any(map(gt, room, blocked.tried_with))

    def note_examined(self, blocked: BlockedSend) -> None:
        """This one was tried, or is not due: the turn of the next one comes."""
        self._next_arrival = blocked.arrival + 1
        self._left -= 1
        if blocked.wait_queue is self.wait_queue:
            self._lowest_seen = tuple(map(min, self._lowest_seen, blocked.tried_with))
        if self._left <= 0:
            self._left, self._lowest = 0, self._lowest_seen


class WaitQueues:
    """All blocked sends.

    Attributes:
        engine_wide: the wait queue of those that wait for no queue in particular.
        making_room: the commits among them that end messages: small ones, and large ones.
        all: every one that waits.
    """

    def __init__(self) -> None:
        self.engine_wide: deque[BlockedSend] = deque()
        self.making_room = MakingRoom(), MakingRoom()
        #: wait queues of those that are to be matched, by connection, in the order of their turns
        self._matching: dict[int, deque[BlockedSend]] = {}
        self.all: dict[BlockedSend, None] = {}
        self._routes: dict[Route, deque[BlockedSend]] = {}
        self._of_clients: dict[int, dict[BlockedSend, None]] = {}
        self._of_sessions: dict[str, dict[BlockedSend, None]] = {}
        self._queues: dict[int, QueueState] = {}
        self._arrivals = 0
        #: a heap of (deadline, arrival) of those that came into a wait queue; those that have left it are passed over
        self._deadlines: list[tuple[int, int]] = []
        self._timed: dict[int, BlockedSend] = {}

    def __iter__(self) -> Iterator[BlockedSend]:
        return iter(self.all)

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self.all)

    @property
    def waits_engine_wide(self) -> bool:
        """Whether a send waits for no queue in particular."""
        return bool(self.engine_wide or any(each.wait_queue for each in self.making_room))

    def arrived(self, command: c.Enqueue | c.Commit | c.Publish, now_ms: int, deadline_ms: int) -> BlockedSend:
        """A send, commit or publication has come; it does not wait yet."""
        self._arrivals += 1
        return BlockedSend(command, self._arrivals, now_ms, deadline_ms)

    # Routes.

    def first_before(self, blocked: BlockedSend) -> BlockedSend | None:
        """The send that a new one must not overtake; None where there is none, or where this one waits already."""
        if not self._routes or blocked.routes is not None:
            return None
        return next((self._routes[route][0] for route in _routes_of(blocked.command) if route in self._routes), None)

    def wait_behind(self, blocked: BlockedSend, reason: str) -> None:
        """Wait for those that came before."""
        blocked.reason = reason
        self._join(blocked)

    def behind(self, blocked: BlockedSend, destination: Destination) -> int:
        """How many wait behind one that waits, for the same destination."""
        return sum(len(self._routes[route]) - 1 for route in blocked.routes or () if route[1] == destination)

    def _join(self, blocked: BlockedSend) -> None:
        command = blocked.command
        routes = blocked.routes = _routes_of(command)
        for route in routes:
            others = self._routes.setdefault(route, deque())
            if others:
                blocked.behind += 1
            others.append(blocked)
        self.all[blocked] = None
        if not isinstance(command, c.Publish):
            self._of_clients.setdefault(command.client, {})[blocked] = None
        if isinstance(command, c.Commit) and command.commit_id is not None:
            self._of_sessions.setdefault(command.commit_id.session, {})[blocked] = None

    # Wait queues.

    def wait(self, blocked: BlockedSend, queue: QueueState | None, *, is_matching: bool = False) -> None:
        """Stand in the wait queue of a queue, or in the engine-wide one (None), or in that of sends to be matched."""
        if blocked.routes is None:
            self._join(blocked)
        command = blocked.command
        if queue is not None:
            wait_queue = queue.wait_queue
            self._queues[queue.id] = queue
        elif is_matching and not isinstance(command, c.Publish):
            wait_queue = self._matching.setdefault(command.client, deque())
        elif isinstance(command, c.Commit) and command.settlements:
            making_room = self.making_room[is_large(command)]
            making_room.joined(blocked)
            wait_queue = making_room.wait_queue
        else:
            wait_queue = self.engine_wide
        blocked.wait_queue, blocked.queue, blocked.is_matching = wait_queue, queue, is_matching
        if blocked.arrival not in self._timed and not is_matching:
            heappush(self._deadlines, (blocked.deadline_ms, blocked.arrival))
            self._timed[blocked.arrival] = blocked
            self._tidy()
        if wait_queue and blocked.arrival < wait_queue[0].arrival:
            wait_queue.appendleft(blocked)
            return
        if wait_queue and blocked.arrival - wait_queue[0].arrival < wait_queue[-1].arrival - blocked.arrival:
            index = 1
            while blocked.arrival > wait_queue[index].arrival:
                index += 1
        else:
            index = len(wait_queue)
            while index and blocked.arrival < wait_queue[index - 1].arrival:
                index -= 1
        wait_queue.insert(index, blocked)

    def _tidy(self) -> None:
        """Drop what is left of sends that have ended, once there is much of it."""
        most = 2 * self.count + 64
        if len(self._deadlines) > most:
            self._deadlines = [each for each in self._deadlines if each[1] in self._timed]
            heapify(self._deadlines)
        if len(self._queues) > most:
            self.queues()

    def queues(self) -> Collection[QueueState]:
        """The queues for which sends wait."""
        self._queues = {number: queue for number, queue in self._queues.items() if queue.wait_queue}
        return self._queues.values()

    def take(self, wait_queue: deque[BlockedSend]) -> BlockedSend:
        """The first of a wait queue leaves it, to :meth:`wait` again or to :meth:`end`."""
        blocked = wait_queue.popleft()
        blocked.wait_queue = None
        return blocked

    @property
    def is_matching(self) -> bool:
        """Whether there is a send for :meth:`take_matching`."""
        return any(self._matching.values())

    def take_matching(self) -> BlockedSend | None:
        """The first of the connection whose turn it is, as by :meth:`take`; None where nothing is to be matched."""
        while self._matching:
            client = next(iter(self._matching))
            wait_queue = self._matching.pop(client)
            if wait_queue:
                self._matching[client] = wait_queue  # behind the others
                return self.take(wait_queue)
        return None

    def withdraw(self, blocked: BlockedSend) -> None:
        """One that stands in a wait queue leaves it, to :meth:`wait` again or to :meth:`end`."""
        assert blocked.wait_queue is not None
        blocked.wait_queue.remove(blocked)
        blocked.wait_queue = None

    def release(self, queue: QueueState) -> None:
        """No send waits for this queue any more: those that do wait for no queue in particular."""
        waiting = list(queue.wait_queue)
        for blocked in waiting:
            self.withdraw(blocked)
        for blocked in waiting:
            self.wait(blocked, None)

    # The end.

    def of_route(self, blocked: BlockedSend, destination: Destination) -> list[BlockedSend]:
        """One that waits, and those of its connection that wait behind it for this destination."""
        route = next((route for route in blocked.routes or () if route[1] == destination), None)
        return [blocked] if route is None else list(self._routes[route])

    def of_client(self, client: int) -> list[BlockedSend]:
        """What a connection has sent and committed, by arrival."""
        return sorted(self._of_clients.get(client, ()), key=_arrival)

    def of_session(self, session: str) -> list[BlockedSend]:
        """What a session has committed, by arrival."""
        return sorted(self._of_sessions.get(session, ()), key=_arrival)

    def end(self, ended: Collection[BlockedSend]) -> list[BlockedSend]:
        """Take out sends that have ended; some of them may not have waited.

        Returns:
            those that waited for these only, by arrival.  They are to :meth:`wait` in a wait queue, or to :meth:`end`.
        """
        over = {blocked for blocked in ended if blocked.routes is not None}
        routes: dict[Route, None] = {}
        wait_queues: dict[int, deque[BlockedSend]] = {}
        for blocked in over:
            routes.update(dict.fromkeys(blocked.routes or ()))
            if blocked.wait_queue is not None:
                wait_queues[id(blocked.wait_queue)] = blocked.wait_queue
            self._remove(blocked)
        for wait_queue in wait_queues.values():
            left = [blocked for blocked in wait_queue if blocked not in over]
            wait_queue.clear()
            wait_queue.extend(left)
        free = []
        for route in routes:
            others = self._routes[route]
            before = others[0]
            if len(over) == 1 and before in over:
                others.popleft()  # most end so
            else:
                others = self._routes[route] = deque(blocked for blocked in others if blocked not in over)
            if not others:
                del self._routes[route]
            elif others[0] is not before:
                others[0].behind -= 1
                if not others[0].behind:
                    free.append(others[0])
        return sorted(free, key=_arrival)

    def _remove(self, blocked: BlockedSend) -> None:
        command = blocked.command
        blocked.routes = blocked.wait_queue = None
        del self.all[blocked]
        self._timed.pop(blocked.arrival, None)
        if not isinstance(command, c.Publish):
            _drop(self._of_clients, command.client, blocked)
        if isinstance(command, c.Commit) and command.commit_id is not None:
            _drop(self._of_sessions, command.commit_id.session, blocked)

    # Time.

    def overdue(self, now_ms: int) -> list[BlockedSend]:
        """The sends whose time is over.  Sends that are to be matched have no deadline."""
        found: list[BlockedSend] = []
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            blocked = self._timed.pop(heappop(self._deadlines)[1])
            if not blocked.is_matching:
                found.append(blocked)
        return found

    def next_deadline_ms(self) -> int | None:
        """When the next one is to be refused.  One that stands in no wait queue waits for others in any case."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self._timed:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None


def _routes_of(command: c.Enqueue | c.Commit | c.Publish) -> Sequence[Route]:
    if isinstance(command, c.Enqueue):
        return ((command.client, command.destination),)
    if isinstance(command, c.Commit):
        return [(command.client, each) for each in dict.fromkeys(destination for destination, _ in command.sends)]
    return ()


def _arrival(blocked: BlockedSend) -> int:
    return blocked.arrival


def _drop(groups: dict[Any, dict[BlockedSend, None]], key: object, blocked: BlockedSend) -> None:
    group = groups[key]
    del group[blocked]
    if not group:
        del groups[key]
