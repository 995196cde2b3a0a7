"""The threads of senders: one for each gateway that is running."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.server.gateways.senders import Senders
from broker_adapter.settings import EngineSettings
from tests.faults.scenarios import wait_for
from tests.threads import no_new_threads

NOBODY = "amqp://127.0.0.1:1"


@pytest.fixture
def broker() -> Iterator[Broker]:
    engine = Broker(EngineSettings(site=1), None)
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
    senders = Senders(broker, 0.01)
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


def test_senders_that_were_never_started_can_be_stopped(broker: Broker) -> None:
    Senders(broker, 1).stop()


def test_a_sender_for_which_there_is_no_thread_is_started_later(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    senders = Senders(broker, 0.01)
    senders.start()
    with no_new_threads():
        create(broker, "g")
        assert wait_for(lambda: "could not be looked at, and are once more: can't start new thread" in caplog.text)
    assert wait_for(lambda: threads() == {"g"})
    senders.stop()
    assert threads() == set()


def test_senders_end_with_their_engine(broker: Broker) -> None:
    create(broker, "g")
    senders = Senders(broker, 0.01)
    senders.start()
    assert wait_for(lambda: threads() == {"g"})
    broker.close()
    senders.stop()
    assert threads() == set()
