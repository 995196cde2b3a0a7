"""A server that is killed or stopped while each mode is at work: the contract holds, and nothing confirmed is lost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdk import AcknowledgeMode, ConnectionFactory
from tests.faults.scenarios import check, play, wait_for
from tests.server_process import ServerProcess

pytestmark = pytest.mark.crash

MODES = [mode for mode in AcknowledgeMode if mode is not AcknowledgeMode.NO_ACK]
COUNT = 1500
KILLS = 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    # Each kill counts as a failed delivery of all that was prefetched, and the pause after the second is not wanted.
    options = ("--option", "max_deliveries=none", "--option", "redelivery_delay_seconds=0")
    with ServerProcess(tmp_path / "data", *options) as running:
        yield running


def check_record(server: ServerProcess, mode: AcknowledgeMode, seed: int) -> None:
    with ConnectionFactory(server.url).create_connection() as connection:

        def queue() -> object:
            return next(each for each in connection.statistics().queues if each.name == "q")

        assert queue().next_position == COUNT + 1, f"seed {seed}"  # type: ignore[attr-defined]
        if mode is not AcknowledgeMode.DUPS_OK:
            assert wait_for(lambda: queue().messages == 0), f"seed {seed}: {queue()}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_contract_holds_over_kills(mode: AcknowledgeMode, server: ServerProcess) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    done = threading.Event()
    kills = 0

    def kill() -> None:
        nonlocal kills
        while kills < KILLS and not done.wait(0.05 + chance.random() * 0.25):
            server.kill()
            kills += 1
            server.start()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        seen = play(mode, f"{server.url}?max_reconnect_delay_seconds=0.1", "q", COUNT)
    finally:
        done.set()
        killer.join(120)
    assert kills >= 2
    check(mode, seen, COUNT, kills)
    check_record(server, mode, seed)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_contract_holds_over_a_server_that_stands_still(mode: AcknowledgeMode, server: ServerProcess) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    stops = 0
    done = threading.Event()

    def stop() -> None:
        nonlocal stops
        while stops < 2 and not done.wait(0.05 + chance.random() * 0.2):
            os.kill(server.pid, signal.SIGSTOP)
            stops += 1
            time.sleep(1.5)  # longer than the client waits for a word
            os.kill(server.pid, signal.SIGCONT)

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        seen = play(mode, f"{server.url}?idle_timeout_seconds=1&connect_timeout_seconds=1", "q", COUNT)
    finally:
        done.set()
        stopper.join(120)
    assert stops
    # One that is made while the server stands still may be lost again; and a busy machine stands still by itself.
    check(mode, seen, COUNT, cuts=4 * max(stops, len(seen.told)))
    check_record(server, mode, seed)
