"""Who waits: sends that found no room, first come, first served.  Commits and publications do not wait for room.

Theory of operation
    A blocked send stands in a *line*: that of the queue that has no room, or the engine-wide one where the whole engine
    has none (one for all: what waits for memory waits behind what waits for the disk).  A line is in the order of
    arrival.  When its queue has changed, its sends are tried in their order, until one has to stay; so many a decision,
    and the next decision continues.  A send whose time is over is tried once more
    and then refused.  A line per connection is for sends and commits whose messages are still to be *matched* with the
    selectors of a topic's subscriptions, where that takes longer than one decision may.  Connections take turns there,
    and nothing is refused for the time that it takes.

    What a connection sends to one destination stays in its order, whatever each send waits for: a connection and a
    destination are a *route*, only the first send of a route stands in a line, and the next one takes its place.  A
    commit that would overtake a send of its routes that waits for room is refused.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Any

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.failures import fault
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.rules.admission import Admission
from broker_adapter.engine.rules.matching import Matched, Matching
from broker_adapter.errors import LIMIT_REACHED, IllegalStateException, JMSException, ResourceAllocationException
from broker_adapter.settings import EngineSettings
from broker_adapter.wording import counted

#: How many blocked sends are tried or refused in one round of a decision; the next decision continues.
MOST_TRIES = 1_000
#: Stands for the engine-wide line where a queue has its number.
_ENGINE_WIDE = 0


class BlockedSend(Matched):
    """A send or commit that waits, or may have to.

    Attributes:
        command: the send or commit.
        arrival: a number that grows with each.
        since_ms: when it came.
        deadline_ms: when it is to be refused.
        index: of the first message that is not taken.
        errors: of its messages, where there are some.
        reason: what it waits for.
        line: where it stands; None: it does not, or it is not the first of its route.
        queue: that of the line; None: it is of no queue in particular.
        is_matching: whether the line is that of its connection, for selectors.
        is_current: of a commit, whether what it has of keys was read in this cycle.
        asked_parts: of a commit, of how many parts of its changes all selectors were asked.
    """

    __slots__ = (
        "arrival",
        "asked_parts",
        "command",
        "deadline_ms",
        "errors",
        "index",
        "is_current",
        "is_matching",
        "line",
        "queue",
        "reason",
        "since_ms",
    )

    def __init__(self, command: c.Enqueue | c.Commit, arrival: int, now_ms: int, deadline_ms: int) -> None:
        super().__init__()
        self.command = command
        self.arrival = arrival
        self.since_ms = now_ms
        self.deadline_ms = deadline_ms
        self.index = 0
        self.errors: list[JMSException | None] | None = None
        self.reason = ""
        self.line: deque[BlockedSend] | None = None
        self.queue: QueueState | None = None
        self.is_matching = False
        self.is_current = True
        self.asked_parts = 0

    def note_error(self, index: int, error: JMSException) -> None:
        """Note that a message of a send is refused."""
        assert isinstance(self.command, c.Enqueue)
        if self.errors is None:
            self.errors = [None] * len(self.command.messages)
        self.errors[index] = error


class BlockedSends:
    """Blocks sends, tries them again, or refuses them.

    Attributes:
        all: everything that waits, in the order of the deadlines.
        changing: those of them that are commits with changes of regions.
        engine_wide: the line of those that wait for no queue in particular.
        take: carries out a send; returns False where it waits again.
        commit: the same for a commit; raises nothing.
        refuse_commit: rolls a commit back.
        is_known: whether a message is there already, though its send was repeated.
    """

    def __init__(
        self,
        settings: EngineSettings,
        admission: Admission,
        matching: Matching,
        changed: dict[int, QueueState],
        totals: Totals,
        time: DecisionTime,
    ) -> None:
        self._most = settings.max_blocked_sends
        self._timeout_ms = int(settings.blocked_send_timeout_seconds * 1000)
        self._admission = admission
        self._matching = matching
        self._changed = changed
        self._totals = totals
        self._time = time
        self._arrivals = 0
        self.all: OrderedDict[BlockedSend, None] = OrderedDict()
        self.changing: dict[BlockedSend, None] = {}
        self.engine_wide: deque[BlockedSend] = deque()
        #: lines of those that are to be matched, by connection, in the order of their turns
        self._lines_to_match: dict[int, deque[BlockedSend]] = {}
        #: the sends of each route, by connection and destination
        self._routes: dict[int, dict[Destination, deque[BlockedSend]]] = {}
        self._commits: dict[str, BlockedSend] = {}  #: by session
        self._queues: dict[int, QueueState] = {}  #: those that have a line, where subscriptions may give way
        self._next: dict[int, QueueState | None] = {}  #: lines that are to be tried without a change of their queue
        self._left = 0  #: how many are still tried in this round
        # Of rules that are made later, and need this one.
        self.take: Callable[[BlockedSend, int, Effects], bool]
        self.commit: Callable[[BlockedSend, int, Effects], bool]
        self.refuse_commit: Callable[[c.Commit, JMSException, Effects], None]
        self.is_known: Callable[[Destination, c.NewMessage], bool]

    # Waiting.

    def arrived(self, command: c.Enqueue | c.Commit) -> BlockedSend:
        """Return what stands for a send or commit that has come; it does not wait yet."""
        self._arrivals += 1
        since_ms = self._time.elapsed_ms
        return BlockedSend(command, self._arrivals, since_ms, since_ms + self._timeout_ms)

    def waits_behind(self, blocked: BlockedSend, queues: Collection[QueueState], effects: Effects) -> bool:
        """Let a new send wait behind those of its route and those in the lines of its queues; return whether it does.

        Args:
            blocked: the send, which may be refused instead.
            queues: those that get it.
            effects: of the decision.
        """
        command = blocked.command
        assert isinstance(command, c.Enqueue)
        route = self._routes.get(command.client, {}).get(command.destination)
        if route:
            if self._may_wait(blocked, route[0].reason, effects):
                blocked.reason = route[0].reason
                route.append(blocked)
                self.all[blocked] = None
            return True
        for queue in queues:
            if queue.wait_queue:
                self.block(blocked, queue, "others wait before it", effects)
                return True
        return False

    def first_before(self, blocked: BlockedSend, command: c.Commit) -> BlockedSend | None:
        """Return a send that a commit must not overtake: of its connection, to one of its destinations."""
        routes = self._routes.get(command.client)
        if routes:
            for destination in dict.fromkeys(destination for destination, _ in command.sends):
                if destination in routes and routes[destination][0].arrival < blocked.arrival:
                    return routes[destination][0]
        return None

    def _may_wait(self, blocked: BlockedSend, reason: str, effects: Effects) -> bool:
        """Whether it may wait; otherwise it is refused."""
        if blocked in self.all or len(self.all) < self._most:
            return True
        waiting = f"{counted(len(self.all), 'send', ('waits', 'wait'))} already (the limit max_blocked_sends)"
        self.refuse(blocked, f"{reason}, and {waiting}", effects)
        return False

    def block(
        self,
        blocked: BlockedSend,
        queue: QueueState | None,
        reason: str,
        effects: Effects,
        *,
        is_matching: bool = False,
    ) -> bool:
        """Let a send wait, or a commit for its selectors.

        Args:
            blocked: the send or commit.
            queue: that has no room; None: the whole engine has none.
            reason: for the error, if its wait times out.
            effects: of the decision.
            is_matching: whether it waits for selectors, and not for room.

        Returns:
            False where it is refused instead.
        """
        if queue is not None and queue.settings.when_full == "refuse" and not is_matching:
            self.refuse(blocked, reason, effects)
            return False
        if not blocked.reason and not is_matching:  # it has not waited before
            ahead = queue.wait_queue[0].reason if queue is not None and queue.wait_queue else reason
            effects.warn(("blocked", 0 if queue is None else queue.id), "! producers are blocked: %s", ahead)
        blocked.reason = reason
        if not self._may_wait(blocked, reason, effects):
            return False
        if blocked not in self.all:
            command = blocked.command
            self.all[blocked] = None
            if isinstance(command, c.Enqueue):
                self._routes.setdefault(command.client, {}).setdefault(command.destination, deque()).append(blocked)
            else:
                if command.commit_id is not None:
                    self._commits[command.commit_id.session] = blocked
                if command.changes:
                    self.changing[blocked] = None
        self._stand(blocked, queue, is_matching=is_matching)
        return True

    def _stand(self, blocked: BlockedSend, queue: QueueState | None, *, is_matching: bool) -> None:
        """Put what waits into a line, at the place that its arrival gives it."""
        if is_matching:
            line = self._lines_to_match.setdefault(blocked.command.client, deque())
        elif queue is None:
            line = self.engine_wide
        else:
            line = queue.wait_queue
            if self._admission.may_give_way:
                self._queues[queue.id] = queue
        blocked.line, blocked.queue, blocked.is_matching = line, queue, is_matching
        if not line or line[-1].arrival < blocked.arrival:
            line.append(blocked)
        elif blocked.arrival < line[0].arrival:
            line.appendleft(blocked)
        else:
            insort(line, blocked, key=_arrival)

    def count_for(self, queue: QueueState) -> int:
        """Return how many sends wait for a queue, with those behind them."""
        return sum(len(self._routes[each.command.client][each.command.destination]) for each in queue.wait_queue)

    # The end.

    def refuse(self, blocked: BlockedSend, reason: str, effects: Effects) -> None:
        """Answer a send with the error that it finds no room."""
        self._totals.refused += 1
        self._fail(blocked, ResourceAllocationException(reason, error_code=LIMIT_REACHED), effects)

    def _fail(self, blocked: BlockedSend, error: JMSException, effects: Effects) -> None:
        """Answer a send or commit with an error for what of it is not taken yet."""
        command = blocked.command
        if isinstance(command, c.Commit):
            self.refuse_commit(command, error, effects)
            return
        for index in range(blocked.index, len(command.messages)):
            if not self.is_known(command.destination, command.messages[index]):
                blocked.note_error(index, error)
        effects.answer(command, blocked.errors)

    def _end(self, blocked: BlockedSend) -> None:
        """Take out what has ended; the next one of its route takes its place."""
        command = blocked.command
        del self.all[blocked]
        if blocked.line is not None:
            blocked.line.remove(blocked)
            blocked.line = None
        if isinstance(command, c.Commit):
            self._forget(blocked, command)
            return
        routes = self._routes[command.client]
        route = routes[command.destination]
        is_first = route[0] is blocked
        if is_first:
            route.popleft()
        else:
            route.remove(blocked)
        if not route:
            del routes[command.destination]
            if not routes:
                del self._routes[command.client]
        elif is_first:
            self._stand(route[0], blocked.queue, is_matching=blocked.is_matching)

    def _forget(self, blocked: BlockedSend, command: c.Commit) -> None:
        """Forget a commit that has ended."""
        self.changing.pop(blocked, None)
        if command.commit_id is not None:
            del self._commits[command.commit_id.session]

    def _fail_all(self, over: Collection[BlockedSend], error: JMSException, effects: Effects) -> None:
        """Answer all sends of some routes, and all commits of some sessions, with an error."""
        lines = {id(blocked.line): blocked.line for blocked in over if blocked.line is not None}
        gone = set(over)
        for line in lines.values():
            left = [blocked for blocked in line if blocked not in gone]
            line.clear()
            line.extend(left)
        for blocked in over:
            command = blocked.command
            del self.all[blocked]
            if isinstance(command, c.Commit):
                self._forget(blocked, command)
            elif routes := self._routes.get(command.client):
                routes.pop(command.destination, None)
                if not routes:
                    del self._routes[command.client]
            if blocked.line is not None:
                blocked.line = None
                self._next[_ENGINE_WIDE if blocked.queue is None else blocked.queue.id] = blocked.queue
            self._fail(blocked, error, effects)

    def end_session(self, command: c.EndSession, now_ms: int, effects: Effects) -> None:
        """Carry out an EndSession."""
        self.give_up_session(command.session, "the session was closed while the commit waited", effects)
        effects.answer(command, None)

    def give_up_session(self, session: str, reason: str, effects: Effects) -> None:
        """Refuse the commit of a session that waits for its selectors, for this reason."""
        if session in self._commits:
            self._fail_all((self._commits[session],), IllegalStateException(reason), effects)

    def give_up_client(self, client: int, effects: Effects) -> None:
        """Refuse what a connection that is gone has sent and that is not taken yet."""
        over = [blocked for route in self._routes.get(client, {}).values() for blocked in route]
        over += [each for each in self._lines_to_match.get(client, ()) if isinstance(each.command, c.Commit)]
        if over:
            closed = IllegalStateException("the connection was closed while this was held back at a limit")
            self._fail_all(sorted(over, key=_arrival), closed, effects)

    def refuse_waiting_for(self, queue: QueueState, effects: Effects) -> None:
        """Refuse the sends that wait for a queue that ends, and those behind them."""
        if queue.wait_queue:
            over = [e for b in queue.wait_queue for e in self._routes[b.command.client][queue.destination]]
            self._totals.refused += len(over)
            deleted = ResourceAllocationException(f"{queue.label!r} was deleted", error_code=LIMIT_REACHED)
            self._fail_all(over, deleted, effects)

    def release(self, queue: QueueState) -> None:
        """Let what waits for a subscription that ends wait for no queue in particular."""
        waiting = list(queue.wait_queue)
        queue.wait_queue.clear()
        for blocked in waiting:
            self._stand(blocked, None, is_matching=False)

    # Trying again.

    def supply_commits(self, supply: Callable[[c.Command], Any]) -> None:
        """Begin a cycle: what commits that wait have of keys may be old; read it again for those that only need that.

        Args:
            supply: reads it, as the driver does for each command of a cycle.
        """
        for blocked in self.changing:
            command = blocked.command
            assert isinstance(command, c.Commit)
            blocked.is_current = blocked.asked_parts == len(command.changes)
            if blocked.is_current:
                blocked.command, blocked.asked_parts = supply(command), 0

    @property
    def has_more(self) -> bool:
        """Whether something can be tried although nothing has changed."""
        return bool(self.all) and (bool(self._next) or any(self._lines_to_match.values()))

    def next_due_ms(self) -> int | None:
        """Return when a send is to be refused, or a subscription gives way; None where nothing waits."""
        if not self.all:
            return None
        due_ms = next(iter(self.all)).deadline_ms
        if self._admission.may_give_way:
            for each in map(self._admission.gives_way_from_ms, self._with_line()):
                if each is not None and self._time.elapsed_ms < each < due_ms:
                    due_ms = each
        return due_ms

    def _with_line(self) -> Collection[QueueState]:
        """Return the queues for which sends wait, where subscriptions may give way."""
        self._queues = {number: queue for number, queue in self._queues.items() if queue.wait_queue}
        return self._queues.values()

    def resume(self, now_ms: int, effects: Effects) -> None:
        """Try again what waits for selectors, for a queue that has changed, or for the whole engine.

        What waits for longer than it may is refused.
        """
        self._left = MOST_TRIES
        self._match(now_ms, effects)
        self._end_overdue(now_ms, effects)
        lines, self._next = self._next, {}
        for queue in self._changed.values():
            if queue.wait_queue:
                lines[queue.id] = queue
        for queue in self._with_line() if self._admission.may_give_way else ():
            if self._admission.gives_way(queue):
                lines[queue.id] = queue
        lines[_ENGINE_WIDE] = None
        for number, of_queue in lines.items():
            line = self.engine_wide if of_queue is None else of_queue.wait_queue
            while line:
                if self._left <= 0:
                    self._next[number] = of_queue  # the next decision continues
                    break
                first = line[0]
                self._try(first, now_ms, effects)
                if line and line[0] is first:
                    break

    def _try(self, blocked: BlockedSend, now_ms: int, effects: Effects) -> bool:
        """Try again what stands in a line; return False where it waits (again)."""
        self._left -= 1
        line = blocked.line
        assert line is not None
        if line[0] is blocked:
            line.popleft()
        else:
            line.remove(blocked)
        blocked.line = None
        try:
            if not (self.take if isinstance(blocked.command, c.Enqueue) else self.commit)(blocked, now_ms, effects):
                return False
        except JMSException as error:
            effects.answer(blocked.command, error)
        except Exception as error:  # a fault of ours: it is this command's alone, as in ``decide``
            effects.faults.append((blocked.command, error))
            self._fail(blocked, fault(blocked.command, error), effects)
        self._end(blocked)
        return True

    def _match(self, now_ms: int, effects: Effects) -> None:
        """Match more of what waits for selectors, as far as there is time in this decision.

        What is still to be matched when the slice is over has had its turn if it had the whole slice; else it comes
        first in the next one.
        """
        matching = self._matching
        is_late = matching.used_up is matching.is_late
        lines, is_whole = self._lines_to_match, True
        while not is_late and self._left > 0 and lines:
            client, line = next(iter(lines.items()))
            if not line:
                del lines[client]
                continue
            first = line[0]
            is_late = matching.is_late() if self._try(first, now_ms, effects) else first.is_matching
            if is_whole or first.line is not line:
                lines[client] = lines.pop(client)  # behind the others
            is_whole = False
        if is_late:
            matching.used_up = matching.is_late

    def _end_overdue(self, now_ms: int, effects: Effects) -> None:
        """Refuse the sends whose time is over, unless there is room now."""
        elapsed_ms = self._time.elapsed_ms
        while self.all and self._left > 0:
            blocked = next(iter(self.all))
            if blocked.deadline_ms > elapsed_ms:
                return
            command = blocked.command
            first = self._routes[command.client][command.destination][0] if isinstance(command, c.Enqueue) else blocked
            if blocked.line is None or blocked.is_matching:
                self._left -= 1
            elif self._try(blocked, now_ms, effects):
                continue
            if first.is_matching:
                blocked.deadline_ms = elapsed_ms + max(1, self._timeout_ms)
                self.all.move_to_end(blocked)
                continue
            self._next[_ENGINE_WIDE if blocked.queue is None else blocked.queue.id] = blocked.queue  # for smaller ones
            waited = (elapsed_ms - blocked.since_ms) / 1000
            self.refuse(blocked, f"{first.reason}; held back for {waited:.1f} s", effects)
            self._end(blocked)


def _arrival(blocked: BlockedSend) -> int:
    return blocked.arrival
