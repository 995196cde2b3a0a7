"""Engines for tests: on disk, and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import Engines
from tests.broker_adapter.engine.releasing import released_late
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Go through each random history of engines twice: alone, and with copies that are late and waited for."""
    if metafunc.module.__name__.endswith("_histories"):
        metafunc.parametrize("stores_of_histories_are_followed", ["alone", "copies"], indirect=True)


@pytest.fixture(autouse=True)
def stores_of_histories_are_followed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Apply what each commit of a random history changes to other stores, and compare them."""
    which = getattr(request, "param", None)
    if which is None:
        yield
        return
    with followed(), released_late() if which == "copies" else nullcontext():
        yield
