"""A hundred of the histories that ``make torture`` runs ten thousand of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker_adapter.engine.administered import History


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_a_history_in_memory_goes_as_the_model_says(first: int) -> None:
    for seed in range(first, first + 15):
        History(seed, None).run()


@pytest.mark.parametrize("first", range(1_000_000, 1_000_040, 10))
def test_a_history_on_disk_goes_as_the_model_says_over_restarts(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        History(seed, tmp_path / str(seed)).run()
