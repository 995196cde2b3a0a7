"""The walks through whole queues that are under way, and what becomes of what they find."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping

from broker_adapter.engine.clients.durable_client import DurableClient
from broker_adapter.engine.clients.left_out import Closed
from broker_adapter.engine.clients.queue_walks import Answer, Walk, count_behind
from broker_adapter.engine.regions.audience import Audience


class Walks:
    """Begins and ends walks, at most one for each client at a time.

    Args:
        audiences: by number.
        drained: called with a client of whose queue events were taken out, or would have been.

    Attributes:
        walking: the clients of whose queues a walk is under way.
        answers: what is to be answered, and to whom; None: the queue is gone.
    """

    def __init__(self, audiences: Mapping[int, Audience], drained: Callable[[DurableClient], None]) -> None:
        self.walking: dict[DurableClient, None] = {}
        self.answers: list[tuple[Answer, int | None]] = []
        self._audiences = audiences
        self._drained = drained

    def go_on(self, client: DurableClient) -> None:
        """Begin the first drain of a client that is due, if it has one; a walk that only counts gives way to it."""
        if client.drains and (client.walk is None or client.walk.drain is not client.drains[0]):
            drain = client.drains[0]
            client.walk = Walk(client.queue.read_through, drain.through, drain)
            self.walking[client] = None

    def count(self, client: DurableClient, head: int) -> None:
        """Have it counted how much of the queue of a client is conflated, if no walk is under way."""
        if client.walk is None:
            client.walk = Walk(client.queue.read_through, head)
            self.walking[client] = None

    def note_part(self, client: DurableClient, walk: Walk, found: Iterable[int], through: int, head: int) -> bool:
        """A part of a queue was examined.

        Args:
            client: of the queue.
            walk: the walk of which it is a part.
            found: the positions that it asks for.
            through: up to where the part goes.
            head: the last position of the log.

        Returns:
            Whether the walk is done, and what is conflated is counted.
        """
        if client.walk is not walk:
            return False
        walk.note_part(found, through)
        if not walk.is_done:
            return False
        client.walk = None
        self.walking.pop(client, None)
        if client.queue.read_through < walk.first:  # its connection was lost meanwhile, and more is queued again
            if walk.drain is None:
                self.count(client, head)
            else:
                self.go_on(client)
            return False
        if walk.drain is None:
            client.foresee(walk.found, client.came(self._audiences) if walk.through == head else -1)
            return True
        client.drains.remove(walk.drain)
        count = count_behind(walk.found, client.queue.read_through)
        first = client.queue.read_through + 1
        if first <= walk.drain.through:  # an event may be for this query and another one that is closed later
            client.closed.append(Closed(walk.drain.region, walk.drain.names, first, walk.drain.through))
            client.drained += count
            client.counters = client.counters._replace(drained=client.counters.drained + count)
            client.foresee(array("Q"), -1)  # what was superseded by one of these is not any more
        if walk.drain.answer is not None:
            self.answers.append((walk.drain.answer, count))
        self._drained(client)
        self.go_on(client)
        return False

    def waiting(self) -> list[Answer]:
        """Those that wait for an answer.  For the end of the engine."""
        of_drains = [each.answer for client in self.walking for each in client.drains if each.answer is not None]
        return of_drains + [answer for answer, _ in self.answers]

    def give_up(self, client: DurableClient) -> None:
        """A client has no queue any more that could be walked."""
        client.walk = None
        self.walking.pop(client, None)
        self.answers += [(each.answer, None) for each in client.drains if each.answer is not None]
        client.drains = []
