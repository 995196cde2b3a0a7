"""What there is to know of regions and durable clients, for those who operate an engine."""

from __future__ import annotations

from collections import Counter
from heapq import nsmallest
from itertools import islice

from broker_adapter.engine.clients.durable_client import DurableClient
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.rules.event_state import EventState
from broker_adapter.errors import IllegalStateException


class EventDescriptions:
    """Carries out the commands that describe, and change nothing."""

    def __init__(self, state: EventState, time: DecisionTime) -> None:
        self._state = state
        self._clients = state.clients
        self._time = time

    def clients(self, command: e.DescribeClients, now_ms: int, effects: Effects) -> None:
        """Carry out a DescribeClients."""
        known = self._clients.clients
        if command.client_id is not None:
            found = known.get(command.client_id)
            effects.answer(command, [] if found is None else [self._client(found, command.most_interests)])
            return
        names = nsmallest(_checked(command.limit), (name for name in known if name > command.after))
        effects.answer(command, [self._client(known[name], command.most_interests) for name in names])

    def regions(self, command: e.DescribeRegions, now_ms: int, effects: Effects) -> None:
        """Carry out a DescribeRegions."""
        known = self._state.regions
        names = nsmallest(_checked(command.limit), (name for name in known if name > command.after))
        interested = Counter(number for client in self._clients.clients.values() for number in client.interests)
        answer = [
            e.RegionDescription(name, region.conflates, region.keys, interested[region.id], region.events)
            for name, region in ((name, known[name]) for name in names)
        ]
        effects.answer(command, answer)

    def totals(self, command: e.EventTotals, now_ms: int, effects: Effects) -> None:
        """Carry out an EventTotals."""
        totals = self._clients.totals
        states = Counter(client.state.name.lower() for client in self._clients.clients.values())
        events = sum([region.events for region in self._state.regions.values()])
        effects.answer(
            command,
            e.EventStatistics(
                dict(sorted(states.items())), events, totals.timed_out, totals.overflowed, totals.markers
            ),
        )

    def _client(self, client: DurableClient, most_interests: int) -> e.ClientDescription:
        wanted = (
            e.InterestDescription(self._state.by_number[number].name, interest, durable)
            for number, found in client.interests.items()
            for interest, durable in found.items()
        )
        audiences = self._clients.audiences
        counters = client.all_counters()
        if client.connection is None and client.state.has_queue:
            while_away = max(0, client.came(audiences) - client.came_by)
            counters = counters._replace(while_away=counters.while_away + while_away)
        return e.ClientDescription(
            client.id,
            client.state.name.lower(),
            client.timeout_ms,
            None if client.away_ms is None else max(0, self._time.age_ms - client.away_ms),
            client.conflation.name.lower(),
            list(islice(wanted, min(most_interests, e.MOST_DESCRIBED))),
            sum(map(len, client.interests.values())),
            client.came(audiences),
            counters,
            self._clients.size(client),
            len(client.queue.in_hand),
            self._clients.is_exact(client),
        )


def _checked(limit: int) -> int:
    """How many are described at once; raises IllegalStateException where that cannot be."""
    if not 0 < limit <= e.MOST_DESCRIBED:
        raise IllegalStateException(f"one answer describes 1 to {e.MOST_DESCRIBED}, and not {limit}")
    return limit
