"""Engines for tests: on disk, and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_adapter.engine.driving import Engines


@pytest.fixture(params=["disk", "memory"])
def engines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engines]:
    engines = Engines(tmp_path / "data" if request.param == "disk" else None)
    yield engines
    if engines.broker is not None:
        engines.broker.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Engines]:
    engines = Engines(tmp_path / "data")
    yield engines
    if engines.broker is not None:
        engines.broker.close()
