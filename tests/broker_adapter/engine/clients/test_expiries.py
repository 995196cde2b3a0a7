"""When the time of clients is over that are away."""

from __future__ import annotations

import random

import pytest

from broker_adapter.engine.clients import expiries
from broker_adapter.engine.clients.client_queue import ClientQueue
from broker_adapter.engine.clients.durable_client import DurableClient
from broker_adapter.engine.clients.expiries import Expiries
from broker_adapter.engine.clients.states import State


def away(name: str, since_ms: int, timeout_ms: int | None) -> DurableClient:
    client = DurableClient(name, ClientQueue(0))
    client.state = State.PAUSED
    client.away_ms, client.timeout_ms = since_ms, timeout_ms
    return client


def noted(*clients: DurableClient) -> tuple[dict[str, DurableClient], Expiries]:
    known = {client.id: client for client in clients}
    found = Expiries(known)
    for client in clients:
        found.note(client)
    return known, found


def names(found: Expiries, age_ms: int) -> list[str]:
    return [client.id for client in found.over(age_ms)]


def test_clients_are_over_in_the_order_of_their_times_and_each_once() -> None:
    _, found = noted(away("slow", 0, 300), away("quick", 100, 50), away("next", 0, 200))
    assert found.next_ms() == 150
    assert names(found, 149) == []
    assert names(found, 200) == ["quick", "next"]
    assert (found.next_ms(), names(found, 200)) == (300, [])
    assert names(found, 1000) == ["slow"]
    assert found.next_ms() is None


def test_a_client_that_is_here_or_has_no_time_out_is_never_over() -> None:
    here = away("here", 0, 10)
    here.state = State.LIVE
    _, found = noted(here, away("patient", 0, None))
    assert found.next_ms() is None
    assert names(found, 10**12) == []


def test_what_was_noted_of_a_client_that_came_back_or_closed_does_not_hold() -> None:
    back, closed = away("back", 0, 100), away("closed", 0, 100)
    known, found = noted(back, closed)
    del known["closed"]
    back.away_ms = 50  # it was here, and went again
    found.note(back)
    assert names(found, 100) == []
    assert names(found, 150) == ["back"]


def test_clients_that_come_and_go_for_ever_leave_few_times_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiries, "_SPARE", 10)
    clients = [away(f"client {number}", 0, 100) for number in range(5)]
    _, found = noted(*clients)
    for now_ms in range(1, 200):
        client = random.choice(clients)
        client.away_ms = now_ms
        found.note(client)
        assert len(found._due) <= 2 * len(clients) + 10
    latest = {client.id: client.expiry_ms() for client in clients}
    assert names(found, 10**6) == sorted(latest, key=lambda name: (latest[name], name))
