"""What several of these tests begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("cli") / "data", "--site", "1") as server:
        yield server
