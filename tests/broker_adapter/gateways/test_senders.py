"""The threads of senders: one for each gateway that is running."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from broker_adapter.connect import transport_to_site
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.records.gateway_records import GatewayRecord
from broker_adapter.gateways.senders import Senders, _SenderThread
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.sites import Site, in_queue
from tests.faults.scenarios import wait_for
from tests.threads import no_new_threads

NOBODY = "amqp://127.0.0.1:1"


@pytest.fixture
def broker() -> Iterator[Broker]:
    engine = Broker(EngineSettings(site=1, gateway_retry_seconds=0.01), None)
    yield engine
    engine.close()


def create(broker: Broker, name: str, state: str = "running") -> None:
    arguments = {"name": name, "url": NOBODY, "destinations": [f"queue:{name}"], "state": state}
    broker.request("create_gateway", arguments, 60)


def threads() -> set[str]:
    names = [each.name for each in threading.enumerate()]
    return {name.removeprefix("holdfast-gateway ") for name in names if name.startswith("holdfast-gateway ")}


def test_each_gateway_that_is_running_has_a_thread(broker: Broker) -> None:
    create(broker, "before")
    create(broker, "paused", "created")
    senders = Senders(broker, transport_to_site)
    senders.start()
    create(broker, "after")
    assert wait_for(lambda: threads() == {"before", "after"})
    broker.request("change_gateway", {"name": "paused", "state": "running"}, 60)
    broker.request("change_gateway", {"name": "before", "state": "paused"}, 60)
    broker.request("destroy_gateway", {"name": "after"}, 60)
    assert wait_for(lambda: threads() == {"paused"})
    for _ in range(20):
        for state in ("paused", "running"):
            broker.request("change_gateway", {"name": "before", "state": state}, 60)
    assert wait_for(lambda: threads() == {"before", "paused"})
    senders.stop()
    assert threads() == set()
    senders.stop()


class Remote:
    """The connection to another site, without a network.

    Args:
        site: the other one.
        ahead: called ahead of each answer.
    """

    def __init__(self, site: Site, ahead: Callable[[], None] = lambda: None) -> None:
        self._site = site
        self._ahead = ahead

    def begin_request(self, operation: str, arguments: dict[str, Any], done: Callable[[Any, None], bool]) -> None:
        answer = self._site.ask(operation, **arguments)
        self._ahead()
        done(answer, None)

    def close(self, timeout: float) -> None:
        """There is nothing to close."""


def test_a_gateway_that_is_paused_and_resumed_in_mid_batch_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = Site(1), Site(2)
    end = _SenderThread._end
    states = iter(["paused", "running"])
    sent = threading.Event()

    def change() -> None:
        for state in states:
            near.ask("change_gateway", name="g", state=state)
            return
        sent.set()

    def resumed_ahead(self: _SenderThread, now: float) -> None:
        change()
        end(self, now)

    def connected(self: _SenderThread, record: GatewayRecord) -> Remote:
        self._url = record.url
        return Remote(far, change)

    monkeypatch.setattr(_SenderThread, "_connected", connected)
    monkeypatch.setattr(_SenderThread, "_end", resumed_ahead)
    with closing(near.broker), closing(far.broker):
        near.gateway("g", "queue:q", batch_messages=10)
        near.send("q", *map(str, range(100)))
        senders = Senders(near.broker, transport_to_site)
        senders.start()
        assert sent.wait(60)
        assert wait_for(lambda: near.gateways("g")["waiting"] == 0)
        near.send("q", "last")
        assert wait_for(lambda: len(in_queue(far)) == 101)
        assert [each.name for each in threading.enumerate()].count("holdfast-gateway g") == 1
        senders.stop()
        assert threads() == set()


def test_senders_that_were_never_started_can_be_stopped(broker: Broker) -> None:
    Senders(broker, transport_to_site).stop()


def test_a_sender_for_which_there_is_no_thread_is_started_later(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    senders = Senders(broker, transport_to_site)
    senders.start()
    with no_new_threads():
        create(broker, "g")
        assert wait_for(lambda: "could not be looked at, and are once more: can't start new thread" in caplog.text)
    assert wait_for(lambda: threads() == {"g"})
    senders.stop()
    assert threads() == set()


def test_senders_end_with_their_engine(broker: Broker) -> None:
    create(broker, "g")
    senders = Senders(broker, transport_to_site)
    senders.start()
    assert wait_for(lambda: threads() == {"g"})
    broker.close()
    senders.stop()
    assert threads() == set()


@pytest.mark.parametrize("how", ["altered", "made again"])
def test_what_was_queued_for_another_site_does_not_go_to_the_one_that_just_let_it_in(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    near, sites = Site(1), {"amqp://two": Site(2), "amqp://three": Site(3)}
    comes_in, may_come_in = threading.Event(), threading.Event()

    def connected(self: _SenderThread, record: GatewayRecord) -> Remote:
        self._url = record.url
        comes_in.set()
        assert may_come_in.wait(60)
        return Remote(sites[record.url])

    monkeypatch.setattr(_SenderThread, "_connected", connected)
    with closing(near.broker), closing(sites["amqp://two"].broker), closing(sites["amqp://three"].broker):
        gateway = {"name": "g", "destinations": ["queue:q"], "state": "running", "batch_ms": 0}
        near.ask("create_gateway", url="amqp://two", **gateway)
        senders = Senders(near.broker, transport_to_site)
        senders.start()
        near.send("q", "1")
        assert comes_in.wait(60)
        if how == "altered":
            near.ask("change_gateway", name="g", url="amqp://three")
        else:
            near.ask("destroy_gateway", name="g")
            near.ask("create_gateway", url="amqp://three", **gateway)
        near.send("q", "2")
        may_come_in.set()
        assert wait_for(lambda: near.gateways("g")["waiting"] == 0)
        senders.stop()
        sites["amqp://two"].ask("bounds", destination="q", make=True)
        assert in_queue(sites["amqp://two"]) == []
        assert in_queue(sites["amqp://three"]) == (["1", "2"] if how == "altered" else ["2"])
