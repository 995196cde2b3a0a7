"""Messages whose bodies are damaged on disk, with each transport."""

from __future__ import annotations

import logging

import pytest

from tests.broker_adapter.engine.asking import damage_all_bodies
from tests.contracts.conftest import MakeEngine

COUNT = 30


@pytest.mark.damages
def test_damaged_bodies_are_told_in_one_line_for_all_that_are_met_together(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Each was told twice more, by its record and by that of its entry."""
    engine = make_engine()
    client = engine.open()
    client.send("q", *map(str, range(COUNT)))
    damage_all_bodies(engine.broker)
    client.send("q", "good")
    caplog.clear()
    assert [each.envelope.body for each in client.drained("q")] == ["good"]
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert [text for text in told if "cannot be trusted; in quarantine, and not delivered" not in text] == []
    assert 1 <= len(told) <= COUNT  # it depends on how many are met together
    assert client.transport.request("statistics", {}, None)["quarantined"] == COUNT
