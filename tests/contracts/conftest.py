"""Each test of the contract, with each transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contracts.transports import KINDS, Client, Engine

MakeEngine = Callable[..., Engine]


@pytest.fixture(params=KINDS)
def make_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeEngine]:
    """Makes an engine with these options."""
    made: list[Engine] = []

    def make(options: str = "", client_options: str = "") -> Engine:
        made.append(Engine(request.param, tmp_path / "data", options, client_options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    """An engine with its default options."""
    return make_engine()


@pytest.fixture
def client(engine: Engine) -> Client:
    """A connection to it."""
    return engine.open()
