"""What the interop tests share: things that are installed when a test needs them, and our own server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.interop import install
from tests.server_process import ServerProcess

_T = TypeVar("_T")


def installed(thing: Callable[[], _T]) -> _T:
    """What a test needs; where it cannot be had the test fails in CI, and is skipped with the reason elsewhere."""
    try:
        return thing()
    except install.CannotInstall as error:
        if os.environ.get("CI"):
            pytest.fail(f"cannot install {thing.__name__}: {error}")
        pytest.skip(f"cannot install {thing.__name__}: {error}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Our own server, in a process of its own."""
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def java_path() -> str:
    """The class path of Apache Qpid JMS and our programs."""
    return installed(install.java_client)


@pytest.fixture(scope="session")
def node_place() -> Path:
    """Where node finds rhea."""
    return installed(install.rhea)
