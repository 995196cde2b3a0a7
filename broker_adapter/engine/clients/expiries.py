"""When the time of durable clients is over that are away, the first one first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import Final

from broker_adapter.engine.clients.durable_client import DurableClient

#: So many times are noted, beyond twice the number of clients, before those are dropped that do not hold any more.
_SPARE: Final = 1000


class Expiries:
    """When clients are over; to note one, and to find those that are over, costs nothing for the others.

    Args:
        clients: by client id.
    """

    def __init__(self, clients: Mapping[str, DurableClient]) -> None:
        self._clients = clients
        self._due: list[tuple[int, str]] = []  #: a heap; what does not hold any more is passed over

    def note(self, client: DurableClient) -> None:
        """Note when a client is over, if it can be."""
        expiry_ms = client.expiry_ms()
        if expiry_ms is None:
            return
        heappush(self._due, (expiry_ms, client.id))
        if len(self._due) > 2 * len(self._clients) + _SPARE:
            found = [(each.expiry_ms(), each.id) for each in self._clients.values()]
            self._due = sorted((at, of) for at, of in found if at is not None)  # a sorted list is a heap

    def over(self, age_ms: int) -> Iterator[DurableClient]:
        """The clients that are over at an age of the store, each once."""
        while self._due and self._due[0][0] <= age_ms:
            expiry_ms, client_id = heappop(self._due)
            client = self._clients.get(client_id)
            if client is not None and client.expiry_ms() == expiry_ms:
                yield client

    def next_ms(self) -> int | None:
        """Return when the first client is over, by the age of the store; None: the time of none runs."""
        due = self._due
        while due:
            expiry_ms, client_id = due[0]
            client = self._clients.get(client_id)
            if client is not None and client.expiry_ms() == expiry_ms:
                return expiry_ms
            heappop(due)
        return None
