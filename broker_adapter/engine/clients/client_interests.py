"""Gives durable clients what they want of regions: to which audience each one belongs, and from which event on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from broker_adapter.engine.clients.conflating import Conflating
from broker_adapter.engine.clients.durable_client import DurableClient
from broker_adapter.engine.regions.audience import MOST_SHARED, Audience, OwnAudience
from broker_adapter.engine.regions.interests import Interest, InterestKind
from broker_adapter.engine.regions.region import Region
from broker_adapter.engine.regions.routing import CLIENTS_PART, check_numbers
from broker_adapter.errors import ResourceAllocationException

#: How often the queues of an audience's clients are measured while as many events come as one of them may have.
_CHECKS: Final = 64


class ClientInterests:
    """What all durable clients want.

    Args:
        store_audience: called with each audience that changed, to be stored, and whether it is still there.
        store_span: called with each audience of one client and each interest that was added to it, or has ended.
        store_interest: called with each interest of a client that changed, its region, and whether it outlives the
            client's connection; None: it has ended.
        max_interests: most interests of a client.
        max_events: most events that wait for a client.

    Attributes:
        audiences: by number, those included that get nothing any more and have not been passed yet.
        to_trim: audiences whose members have processed something since they were trimmed.
        conflating: in which regions updates are conflated for any client.
        check_step: after so many events of an audience its clients' queues are measured.
        started_at: the last position of the log as the engine was started.
    """

    def __init__(
        self,
        store_audience: Callable[[Audience, bool], None],
        store_span: Callable[[OwnAudience, Interest], None],
        store_interest: Callable[[DurableClient, int, Interest, bool | None], None],
        max_interests: int,
        max_events: int,
    ) -> None:
        self.audiences: dict[int, Audience] = {}
        self.to_trim: dict[int, Audience] = {}
        self.conflating = Conflating()
        self.check_step = max(1, max_events // _CHECKS)
        self.started_at = 0
        self._store_audience = store_audience
        self._store_span = store_span
        self._store_interest = store_interest
        self._max_interests = max_interests

    def restore(self, client: DurableClient, interests: Mapping[int, Mapping[Interest, bool]], cursor: int) -> None:
        """Take over what a client wants, whose audiences are there."""
        for region, wanted in interests.items():
            client.want(region, wanted)
            self.conflating.wants(region, client.conflation, 1)
        for part in client.queue.parts:
            audience = self.audiences[part.audience]
            audience.members[client] = None
            if part.last is None:
                audience.belonging += 1
                client.seen[audience.id] = audience.events
            audience.passed = min(audience.passed, max(cursor, part.first - 1))
            self.to_trim[audience.id] = audience

    def put_right(self, client: DurableClient, region: Region, head: int) -> bool:
        """Let a client belong to an audience that wants what it wants; returns whether it did not.

        What its own audience wants is stored apart from what the client wants, and one of both may be damaged.
        """
        number = client.queue.audience_of(region.id)
        audience = None if number is None else self.audiences[number]
        wanted = client.interests.get(region.id, {})
        if not isinstance(audience, OwnAudience) or audience.interests == wanted.keys():
            return False
        self._belong(client, region, self._shared(region, wanted), head)
        return True

    def add(
        self, client: DurableClient, region: Region, interests: Iterable[Interest], durable: bool, head: int
    ) -> bool:
        """Let a client want more of a region, from the event behind ``head`` on; returns whether it does.

        One that it has already, and that is durable, stays durable.  With nothing new, as at each reconnect, this costs
        what these interests cost, however many others there are.

        Raises:
            IllegalStateException: it has another query of this name.
            ResourceAllocationException: it has as many interests as it may have, or its share of what a region has.
        """
        interests = list(interests)
        client.check_names(region.id, interests)
        had = client.interests.get(region.id, {})
        more = {each: durable or had.get(each, False) for each in interests}
        new = [each for each in more if each not in had]
        if new and sum(map(len, client.interests.values())) + len(new) > self._max_interests:
            raise ResourceAllocationException(
                f"durable client {client.id!r} may have no more than {self._max_interests} interests (option"
                " max_client_interests): want keys that match an expression, or all keys"
            )
        if any(each.kind > InterestKind.ALL_KEYS for each in new):
            check_numbers((*had, *new), CLIENTS_PART)
        more = {each: outlives for each, outlives in more.items() if had.get(each) is not outlives}
        if not more:
            return False
        for interest, outlives in more.items():
            self._store_interest(client, region.id, interest, outlives)
        if new and not self._change_own(client, region, new, (), head):
            self._belong(client, region, self._one_of(client, region, {**had, **more}), head)
        client.want_more(region.id, more)
        if not had:
            self.conflating.wants(region.id, client.conflation, 1)
        return True

    def end(self, client: DurableClient, region: Region, interests: Iterable[Interest], head: int) -> list[Interest]:
        """Let a client not want something any more; returns what of that it wanted."""
        had = client.interests.get(region.id, {})
        ended = list(dict.fromkeys([each for each in interests if each in had]))
        if not ended:
            return ended
        for interest in ended:
            self._store_interest(client, region.id, interest, None)
        if not self._change_own(client, region, (), ended, head):
            gone = set(ended)
            left = [each for each in had if each not in gone]
            self._belong(client, region, self._one_of(client, region, left) if left else None, head)
        client.want_less(region.id, ended)
        if region.id not in client.interests:
            self.conflating.wants(region.id, client.conflation, -1)
        return ended

    def _change_own(
        self,
        client: DurableClient,
        region: Region,
        more: Collection[Interest],
        ended: Collection[Interest],
        head: int,
    ) -> bool:
        """Change the audience of a client in place; returns whether that can be."""
        number = client.queue.audience_of(region.id)
        audience = None if number is None else self.audiences[number]
        if not isinstance(audience, OwnAudience) or not audience.can_change(more, ended):
            return False
        region.routing.change(audience, more, ended, head)
        for interest in (*more, *ended):
            self._store_span(audience, interest)
        return True

    def _one_of(self, client: DurableClient, region: Region, wanted: Collection[Interest]) -> Audience:
        """An audience that wants this: one of its own for a client that has many interests, and changes them."""
        if len(wanted) <= MOST_SHARED or region.id not in client.interests:
            return self._shared(region, wanted)
        return region.routing.own_audience(wanted)

    def _shared(self, region: Region, wanted: Iterable[Interest]) -> Audience:
        return region.routing.audience(frozenset(wanted))

    def _belong(self, client: DurableClient, region: Region, audience: Audience | None, head: int) -> None:
        """Let a client belong to another audience of a region, from the event behind ``head`` on; None: to none."""
        queue = client.queue
        client.note_head(head)
        before = queue.audience_of(region.id)
        number = None if audience is None else audience.id
        if number == before:
            return
        got_nothing = before is not None and self.audiences[before].events == client.seen[before]
        queue.belong(region.id, region.broad.id, number, head, self.started_at if got_nothing else head)
        if audience is not None:
            if audience.id not in self.audiences:
                audience.passed = head
                self.audiences[audience.id] = audience
                self._store_audience(audience, True)
            if not audience.belonging:
                audience.check_at = audience.events + self.check_step
            audience.belonging += 1
            client.seen[audience.id] = audience.events
            audience.members[client] = None
            if not client.is_behind:
                audience.live[client] = None
        if before is not None:
            left = self.audiences[before]
            left.live.pop(client, None)
            left.belonging -= 1
            client.counted += left.events - client.seen.pop(before)
            if not left.belonging:  # it gets nothing any more
                region.routing.drop(left)
            if all(part.audience != before for part in queue.parts):
                self.leave(client, before)
            self.remove_ended_parts(client)

    def remove_ended_parts(self, client: DurableClient) -> bool:
        """A client may have processed all that it got by audiences to which it belonged; returns whether it has."""
        gone = client.queue.remove_ended_parts()
        for part in gone:
            if all(each.audience != part.audience for each in client.queue.parts):
                self.leave(client, part.audience)
        return bool(gone)

    def leave(self, client: DurableClient, number: int) -> None:
        """A client has processed all that it got by an audience, and does not belong to it."""
        audience = self.audiences[number]
        audience.members.pop(client, None)
        self.to_trim[number] = audience
