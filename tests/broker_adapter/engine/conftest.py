"""Engines for tests: on disk, and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import Engines
from tests.broker_adapter.engine.secondaries import followed


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


@pytest.fixture(params=["disk", "memory"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(EngineSettings(), str(tmp_path) if request.param == "disk" else None)
    yield broker
    broker.close()


@pytest.fixture(autouse=True)
def stores_of_histories_are_followed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Apply what each commit of a random history changes to other stores, and compare them."""
    if not request.path.stem.endswith("_histories"):
        yield
        return
    with followed():
        yield
