"""Selectors: what applying one costs, and a search through a backlog."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import Figure
from broker_adapter import Destination, Envelope, parse_selector
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, pack, unpack
from broker_adapter.settings import EngineSettings

_WAIT = 600.0
_ROUNDS = 200_000


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


#: Selectors, and the same written by hand in Python, with the checks that the specification asks for.
_CASES: dict[str, Callable[[Callable[[str], Any]], bool]] = {
    "JMSPriority > 5 AND colour = 'red'": lambda values: (
        _number(values("JMSPriority")) and values("JMSPriority") > 5 and values("colour") == "red"
    ),
    "weight BETWEEN 10 AND 20 OR country IN ('FR', 'PE')": lambda values: (
        (_number(values("weight")) and 10 <= values("weight") <= 20) or values("country") in ("FR", "PE")
    ),
    "name LIKE '%an%e' AND note IS NULL": lambda values: (
        isinstance(values("name"), str)
        and values("name").endswith("e")
        and "an" in values("name")[:-1]
        and values("note") is None
    ),
}
_MESSAGE = {"JMSPriority": 7, "colour": "red", "weight": 80, "country": "FR", "name": "a long name"}


def applied() -> Iterator[Figure]:
    """Applying a selector to a message whose values are at hand."""
    for text, by_hand in _CASES.items():
        selector = parse_selector(text)
        assert selector.matches(_MESSAGE.get) == by_hand(_MESSAGE.get), text
        ours, yardstick = _seconds(selector.matches), _seconds(by_hand)
        yield Figure(
            name=f"selector: {text}",
            value=ours * 1e9,
            unit="ns",
            yardstick=f"by hand in Python {yardstick * 1e9:,.0f} ns",
            ratio=ours / yardstick,
            sync=False,
        )


def _seconds(condition: Callable[[Callable[[str], Any]], bool]) -> float:
    """Of one application to the message."""
    return min(timeit.repeat(lambda: condition(_MESSAGE.get), number=_ROUNDS, repeat=5)) / _ROUNDS


def searched(directory: Path, messages: int) -> Figure:
    """A consumer whose selector fits only the last message of a backlog on disk."""
    broker = Broker(EngineSettings(), str(directory / "engine"))
    client = broker.call(c.Connect(None), _WAIT)
    destination = Destination("q")
    payload = pack(Envelope(destination, BodyKind.TEXT, "x" * 300, {"colour": "blue", "number": 1}))
    wanted = pack(Envelope(destination, BodyKind.TEXT, "x" * 300, {"colour": "red", "number": 1}))
    for first in range(0, messages, 5000):
        batch = [c.NewMessage(ENVELOPE_FORMAT, payload)] * min(5000, messages - first)
        broker.call(c.Enqueue(client, destination, batch), _WAIT)
    broker.call(c.Enqueue(client, destination, [c.NewMessage(ENVELOPE_FORMAT, wanted)]), _WAIT)
    by_hand = _by_hand(payload, messages)
    got: list[c.Handout] = []
    consumer = broker.call(c.Attach(client, destination, got.extend, selector="colour = 'red'"), _WAIT)
    started = time.perf_counter()
    broker.call(c.Credit(consumer, 1), _WAIT)
    broker.call(c.Drain(consumer), _WAIT)
    rate = messages / (time.perf_counter() - started)
    broker.close()
    assert [handout.payload for handout in got] == [wanted], "the search found something else"
    return Figure(
        name=f"selector: search through {messages:,} messages on disk for the last",
        value=rate,
        unit="messages/s",
        yardstick=f"decode and compare, in memory {by_hand:,.0f}/s",
        ratio=rate / by_hand,
        body_bytes=300,
        consumers=1,
    )


def _by_hand(payload: bytes, messages: int) -> float:
    """Messages/s of decoding and comparing alone."""
    rounds = min(messages, 100_000)
    started = time.perf_counter()
    for _ in range(rounds):
        properties = unpack(payload).properties
        assert properties is not None
        if properties.get("colour") == "red":
            raise AssertionError
    return rounds / (time.perf_counter() - started)
