"""Random histories of workers: who gets what in which order; ``make torture`` has ten thousand of them."""

from __future__ import annotations

import pytest

from tests.broker_adapter.engine.shifts import Shift


@pytest.mark.parametrize("seed", range(20))
def test_a_shift_of_workers_goes_as_the_model_says(seed: int) -> None:
    Shift(seed).run()
