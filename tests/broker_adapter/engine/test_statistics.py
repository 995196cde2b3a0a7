"""Statistics as plain data, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_adapter.destination import topic
from broker_adapter.engine import commands as c
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.maintenance import drop_quarantined, quarantined
from broker_adapter.engine.statistics import BrokerStatistics, statistics_from
from broker_adapter.errors import MessageFormatException
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import WAIT, attach, connect, send
from tests.broker_adapter.engine.test_operations import ask, damage_body


def test_a_subscription_says_whose_it_is(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    for name in ("ann", None):
        attach(broker, connect(broker, name), topic("news"), subscription=Subscription("s", True, shared=name is None))
    found = statistics_from(ask(broker, "statistics"))
    assert [(each.name, each.client_id) for each in found.queues if each.kind == "subscription"] == [
        ("news:s", "ann"),
        ("news:s", None),
    ]
    broker.close()


@pytest.mark.damages
def test_what_is_in_quarantine_is_counted_also_after_a_restart(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", "first", "second")
    damage_body(broker, b"second")
    ask(broker, "read_range", destination="q", first=1, last=2, skip_damaged=True)
    found = statistics_from(ask(broker, "statistics"))
    assert (found.quarantined, found.in_quarantine) == (1, 2), "a message; its body and its entry"
    broker.close()
    broker = Broker(EngineSettings(), str(tmp_path))
    found = statistics_from(ask(broker, "statistics"))
    assert (found.quarantined, found.in_quarantine) == (0, 2)
    drop_quarantined(broker.store, quarantined(broker.store))
    assert statistics_from(ask(broker, "statistics")).in_quarantine == 0
    broker.close()


def test_statistics_of_a_newer_and_of_an_older_broker_are_read() -> None:
    broker = Broker(EngineSettings())
    send(broker, connect(broker), "q", "first")
    fields: dict[str, Any] = ask(broker, "statistics")
    (queue,) = [each for each in fields["queues"] if each["name"] == "q"]
    newer = {**fields, "more": 1, "queues": [{**queue, "more": 1}]}
    older = {name: value for name, value in newer.items() if name != "in_quarantine"}
    older["queues"] = [{name: value for name, value in queue.items() if name != "client_id"}]
    of_now: BrokerStatistics = broker.call(c.Statistics(), WAIT)
    for each in (newer, older):
        assert statistics_from(each).queues == tuple(queue for queue in of_now.queues if queue.name == "q")
    broker.close()


@pytest.mark.parametrize("wrong", [{}, {"queues": 7}, {"queues": [7]}, {"queues": [{}]}, {"queues": []}, 7, None])
def test_an_answer_that_is_no_statistics_is_a_clear_error(wrong: Any) -> None:
    """A byte of it was changed on its way, say."""
    with pytest.raises(MessageFormatException, match="not what they should be"):
        statistics_from(wrong)
