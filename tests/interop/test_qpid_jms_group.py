"""Apache Qpid JMS as the client of a group: nothing is lost over a kill of the primary, and over a hand-over."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.faults.group_servers import NAMES, GroupServers

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

COUNT = 1000
#: It asks each address once a second at the most, and tries for ever.
OPTIONS = "failover.maxReconnectAttempts=-1&failover.reconnectDelay=20&failover.maxReconnectDelay=500"


def test_nothing_that_qpid_jms_sends_is_lost_over_a_kill_and_a_hand_over(java_path: str, tmp_path: Path) -> None:
    with GroupServers(tmp_path) as group:
        nodes = ",".join(f"amqp://127.0.0.1:{group.proxies[name].port}" for name in NAMES)
        command = ["java", "-Xmx512m", "-cp", java_path, "Takeover", f"failover:({nodes})?{OPTIONS}", "q", str(COUNT)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            said = ""
            for line in program.stdout:
                said = line
                if line == "SENT 300\n":
                    group.start(group.kill_primary())
                    group.wait_for_sync()
                elif line == "SENT 700\n":
                    group.hand_over()
        assert said.startswith(f"RECEIVED {COUNT} AGAIN "), said
