"""A group of servers, in processes of their own, for the benchmarks."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from sdk import ConnectionFactory
from tests.interop import install
from tests.interop.brokers.brokers import free_port

_WAIT: Final = 60.0


class Group:
    """Nodes, in processes of their own, and an etcd.

    Args:
        directory: for the stores; that of the first node, ``n1``, may have one.
        nodes: how many.
        lease: seconds.
    """

    def __init__(self, directory: Path, nodes: int, lease: float = 2.0) -> None:
        self._directory = directory
        self._lease = lease
        directory.mkdir(exist_ok=True)
        client, peer = free_port(), free_port()
        self._coordinator = f"etcd://127.0.0.1:{client}"
        etcd = [str(install.etcd()), "--data-dir", str(directory / "etcd")]
        etcd += ["--listen-client-urls", f"http://127.0.0.1:{client}"]
        etcd += ["--advertise-client-urls", f"http://127.0.0.1:{client}"]
        etcd += ["--listen-peer-urls", f"http://127.0.0.1:{peer}"]
        self._etcd = subprocess.Popen(etcd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(2)
        self.ports = {f"n{number}": free_port() for number in range(1, nodes + 1)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start("n1", "--new-group")
        self.wait_for(1)
        for name in list(self.ports)[1:]:
            self.start(name)
        self.wait_for(nodes)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self.processes.values(), self._etcd):
            each.kill()
            each.wait()

    @property
    def url(self) -> str:
        """For clients."""
        return f"failover:({','.join(f'amqp://127.0.0.1:{port}' for port in self.ports.values())})"

    def start(self, name: str, *more: str) -> None:
        """Start a node."""
        address = f"127.0.0.1:{self.ports[name]}"
        command = [sys.executable, "-m", "broker_adapter.server.cli", "serve", "--data", str(self._directory / name)]
        command += ["--group", "bench", "--node", name, "--coordinator", self._coordinator, "--advertise", address]
        command += ["--listen", address, "--lease-seconds", str(self._lease), *more]
        self.processes[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def restart(self, name: str) -> None:
        """Stop a node in good order, start it, and wait until all are in sync."""
        self.processes[name].terminate()
        self.processes[name].wait(_WAIT)
        while name in self.wait_for(1)["in_sync"]:
            time.sleep(0.05)
        self.start(name)
        self.wait_for(len(self.ports))

    def hand_over(self, name: str) -> None:
        """Make another node primary, and wait until it is."""
        with ConnectionFactory(self.url).create_connection() as connection:
            connection.request("hand_over", {"node": name})
        while self.wait_for(1)["primary"] != name:
            time.sleep(0.05)

    def status(self) -> dict[str, Any]:
        """What the primary says of the group."""
        with ConnectionFactory(self.url).create_connection() as connection:
            found: dict[str, Any] = connection.request("copies", {})["group"]
        return found

    def wait_for(self, nodes: int, seconds: float = _WAIT) -> dict[str, Any]:
        """Wait until so many nodes are in sync."""
        deadline = time.monotonic() + seconds
        while True:
            found: dict[str, Any] = {"in_sync": []}
            with contextlib.suppress(Exception):
                found = self.status()
            if len(found["in_sync"]) >= nodes:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"{nodes} nodes do not get in sync: {found}")
            time.sleep(0.05)
