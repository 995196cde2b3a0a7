"""What browsers get, how much at a time, and that they take nothing."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.cycle.browsing import Browsing
from tests.broker_adapter.engine.driving import (
    SELECTED,
    WAIT,
    Engines,
    attach,
    connect,
    depth,
    lettered,
    payloads,
    send,
)


def test_a_browser_gets_a_slice_of_bytes_at_a_time(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    send(broker, client, "q", *[b"x" * 40] * 5, persistent=False)
    send(broker, client, "q", *[b"x" * 40] * 5)
    browser, inbox = attach(broker, client, "q", credit=1000, browse=True, slice_bytes=100)
    for count in (3, 6, 9):
        assert len(inbox.handouts) == count
        assert broker.call(c.Credit(browser, 0), WAIT) is None
    assert len(inbox.handouts) == 10
    assert broker.call(c.Drain(browser), WAIT) == 990


@pytest.mark.parametrize("browsers", [1, 3])
def test_a_browser_whose_selector_takes_long_is_served_a_little_in_each_cycle(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, browsers: int
) -> None:
    monkeypatch.setattr("broker_adapter.engine.cycle.browsing.BROWSE_SECONDS", -1.0)
    steps: list[int] = []
    browse = Browsing._browse

    def counted(self: Browsing, browser: Any, *arguments: Any) -> None:
        steps.append(id(browser))
        browse(self, browser, *arguments)

    monkeypatch.setattr(Browsing, "_browse", counted)
    broker = engines.start()
    client = connect(broker)
    bodies = lettered(30)
    send(broker, client, "q", *bodies)
    inboxes = []
    for _ in range(browsers):
        browser, inbox = attach(broker, client, "q", credit=1000, browse=True, selector=SELECTED)
        inboxes.append(inbox)
        assert depth(broker, "q") == 30  # others are served meanwhile
    for inbox in inboxes:
        inbox.wait_for(10)
        assert payloads(inbox.handouts) == bodies[::3]
    assert len(steps) > 20 * browsers
    assert broker.call(c.Drain(browser), WAIT) == 990


def test_a_browser_sees_what_waits_in_order_and_takes_nothing(engines: Engines) -> None:
    broker = engines.start(window_messages=10)
    client = connect(broker)
    send(broker, client, "q", *range(50), persistent=False)
    send(broker, client, "q", *range(50, 100))
    send(broker, client, "q", "first", priority=9)
    _, held = attach(broker, client, "q", credit=1)
    held.wait_for(1)
    browser, inbox = attach(broker, client, "q", credit=30, browse=True)
    send(broker, client, "q", "after the snapshot")
    broker.call(c.Drain(browser), WAIT)
    assert payloads(inbox.handouts) == [str(number).encode() for number in range(30)]
    broker.call(c.Credit(browser, 1000), WAIT)
    broker.call(c.Drain(browser), WAIT)
    assert payloads(inbox.handouts) == [str(number).encode() for number in range(100)]
    assert depth(broker, "q") == 102
    broker.call(c.Detach(browser), WAIT)
