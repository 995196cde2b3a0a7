"""Peers that would have proton free its memory twice, from both ends, in a process that checks its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.broker_adapter.amqp.hostile import AT_THE_CLIENT, AT_THE_SERVER


def tried(rounds: int) -> dict[str, Any]:
    """What became of all hostile peers, each tried so often; fails where the process did not live to tell."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.broker_adapter.amqp.hostile", "--rounds", str(rounds)],
        # Memory that is freed is overwritten, so that a second use of it shows; and the heap is checked.
        env={**os.environ, "MALLOC_PERTURB_": "165", "MALLOC_CHECK_": "3", "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"exit status {ended.returncode}:\n{ended.stderr[-5000:]}"
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def check(found: dict[str, Any], rounds: int) -> None:
    for side, table in (("server", AT_THE_SERVER), ("client", AT_THE_CLIENT)):
        assert found[side] == {name: [expected] for name, (_, expected) in table.items()}
    assert found["served"] == -(-rounds // 20)
    assert found["refused"] == rounds


@pytest.mark.slow
def test_sixty_hostile_peers_of_each_kind_end_their_connections_and_nothing_else() -> None:
    check(tried(60), 60)
