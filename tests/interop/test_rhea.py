"""rhea, the AMQP library for JavaScript, against our server (``tests/interop/node``)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.interop.install import HERE
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PROGRAM = HERE / "node" / "scenarios.js"
SCENARIOS = re.findall(r"^    async (\w+)\(", PROGRAM.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def results(node_place: Path, server: ServerProcess) -> dict[str, str]:
    """What became of each scenario."""
    command = ["node", str(PROGRAM), str(node_place), str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {line.split()[1].rstrip(":"): line for line in done.stdout.splitlines()}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_javascript_programmer_finds_what_amqp_promises(results: dict[str, str], scenario: str) -> None:
    assert results.get(scenario) == f"PASS {scenario}"
