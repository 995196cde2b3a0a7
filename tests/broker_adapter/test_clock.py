"""The time of the day as messages carry it."""

from __future__ import annotations

import time

import pytest

from broker_adapter.clock import epoch_ms


def test_the_time_is_in_milliseconds_since_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_123_456_789)
    assert epoch_ms() == 1_700_000_000_123


def test_there_is_no_time_before_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: -60 * 365 * 86_400 * 1_000_000_000)
    assert epoch_ms() == 0
