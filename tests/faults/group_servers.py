"""Three real servers of a group, and a network between them, their clients and their coordinator."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil

from broker_adapter.connect import transport_for
from broker_adapter.engine.records.layout import TABLES
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.errors import JMSException
from broker_adapter.group.record import GroupRecord, decoded
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Credentials
from tests import fork_server
from tests.broker_adapter.group.small_etcd import SmallEtcd
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenarios import wait_for
from tests.faults.sites import RETRY
from tests.interop.brokers.brokers import free_port
from tests.server_process import ServerProcess

#: Of a group under test: a busy machine renews the record in time, and a takeover does not take long.
LEASE = 1.0
NAMES = ("n1", "n2", "n3")
BOTH = (Direction.TO_SERVER, Direction.TO_CLIENT)
_KEY = "holdfast/groups/g"


class GroupServers:
    """A group, which is the site 1 of gateways.

    All that reaches a node goes through its proxy, which knows the other nodes from clients; and all that a node asks
    the coordinator goes through another one.

    Args:
        path: where stores and logs are.
        arguments: further ones of ``holdfast serve``.
        min_in_sync: of the group.
        lease: of the record, in seconds.
        module: what is run as ``holdfast``.
    """

    def __init__(
        self,
        path: Path,
        *arguments: str,
        min_in_sync: int = 1,
        lease: float = LEASE,
        module: str = fork_server.COMMAND,
    ) -> None:
        self.path = path
        self._arguments = (
            *arguments,
            *("--site", "1", *RETRY),
            *("--min-in-sync", str(min_in_sync), "--lease-seconds", str(lease)),
            *("--replication-timeout-seconds", str(lease)),
        )
        self._module = module
        self.etcd = SmallEtcd()
        self.proxies = {name: Proxy(free_port(), source=self._whose) for name in NAMES}
        self.ways = {name: Proxy(self.etcd.port, is_amqp=False) for name in NAMES}  #: to the coordinator
        self.servers: dict[str, ServerProcess] = {}

    def __enter__(self) -> GroupServers:
        try:
            self.start("n1", "--new-group")
            assert wait_for(lambda: self.record.primary == "n1"), "there is no primary"
            self.start("n2")
            self.start("n3")
            self.wait_for_sync()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all of it."""
        for server in self.servers.values():
            server.kill()
        for proxy in (*self.proxies.values(), *self.ways.values()):
            proxy.close()
        self.etcd.close()

    # What there is.

    @property
    def url(self) -> str:
        """For clients."""
        return f"failover:({','.join(f'amqp://127.0.0.1:{self.proxies[name].port}' for name in NAMES)})"

    @property
    def record(self) -> GroupRecord:
        """What the coordinator has."""
        data = self.etcd.value(_KEY)
        assert data is not None
        return decoded(data)

    @property
    def primary(self) -> str:
        """The node that the record names; where it names none, the first one in sync."""
        record = self.record
        return record.primary or min(record.in_sync)

    @property
    def others(self) -> list[str]:
        """The other nodes."""
        return [name for name in NAMES if name != self.primary]

    def log(self, name: str) -> str:
        """What a node has logged."""
        return (self.path / f"{name}.log").read_text()

    def wait_for_sync(self, *names: str, seconds: float = 60.0) -> None:
        """Wait until these nodes are in sync, and no others; without names: all."""
        wanted = {*(names or NAMES)}
        assert wait_for(lambda: self.record.in_sync == wanted, seconds), f"not in sync: {self.record}"

    def wait_for_takeover(self, before: GroupRecord, seconds: float = 60.0) -> None:
        """Wait until another node than in this record is primary."""
        found = wait_for(lambda: self.record.primary not in ("", before.primary), seconds)
        assert found, f"there is no other primary: {self.record}"

    def _whose(self, port: int) -> str:
        """The node that connects from a port; empty: a client."""
        for name, server in list(self.servers.items()):
            with contextlib.suppress(psutil.Error, AssertionError):
                if any(each.laddr.port == port for each in psutil.Process(server.pid).net_connections("tcp")):
                    return name
        return ""

    # What is done to it.

    def start(self, name: str, *arguments: str, module: str | None = None) -> None:
        """Start a node; ``module``: what is run, None: as for all of them."""
        server = ServerProcess(
            self.path / name,
            *("--group", "g", "--node", name, "--coordinator", f"etcd://127.0.0.1:{self.ways[name].port}"),
            *("--advertise", f"127.0.0.1:{self.proxies[name].port}", *self._arguments, *arguments),
            log=self.path / f"{name}.log",
            new=True,  # one that is deposed starts its process anew by its command line
            module=module or self._module,
        )
        server.port = self.proxies[name].target  # the same one when the process starts anew
        self.servers[name] = server
        server.start()

    def kill(self, *names: str) -> None:
        """SIGKILL."""
        for name in names:
            self.servers[name].signal(signal.SIGKILL)
        for name in names:
            self.servers[name].kill()

    def kill_primary(self) -> str:
        """SIGKILL of the primary, and wait for the next one; returns which node is to be started again."""
        before = self.record
        self.kill(before.primary)
        self.wait_for_takeover(before)
        return before.primary

    def hand_over(self) -> None:
        """Have another node be primary, and wait for that."""
        before = self.record
        transport = transport_for(self.url)[0]
        transport.open(Credentials(), lambda _event: None, None)

        def is_done() -> bool:
            with contextlib.suppress(JMSException):  # its answer is cut off, or the node is not in sync for a moment
                transport.request("hand_over", {"node": self.others[0]}, 10)
            return self.record.primary not in ("", before.primary)

        assert wait_for(is_done), f"there is no other primary: {self.record}"
        transport.close(0)

    def stop(self, name: str) -> int:
        """SIGTERM; returns the exit status."""
        return self.servers[name].stop()

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """SIGSTOP, and SIGCONT."""
        self.servers[name].signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.servers[name].signal(signal.SIGCONT)

    @contextlib.contextmanager
    def without_room(self, name: str) -> Iterator[None]:
        """The files of a node cannot grow, as on a full disk; also where its process starts anew."""
        pid, limit = self.servers[name].pid, resource.RLIMIT_FSIZE
        before = resource.prlimit(pid, limit)
        resource.prlimit(pid, limit, ((self.path / name / "data.mdb").stat().st_size, before[1]))
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, limit, before)

    @contextlib.contextmanager
    def without_coordinator(self, *names: str, directions: tuple[Direction, ...] = BOTH) -> Iterator[None]:
        """Nodes do not reach the coordinator, or its answers do not reach them."""
        for name in names:
            self.ways[name].hold(*directions)
        try:
            yield
        finally:
            for name in names:
                self.ways[name].hold()

    @contextlib.contextmanager
    def apart(self, name: str, *from_names: str, directions: tuple[Direction, ...] = BOTH) -> Iterator[None]:
        """What these nodes, or clients (the empty name), send to a node gets lost on the way, or what it answers."""
        for each in from_names:
            self.proxies[name].hold(*directions, source=each)
            if each:
                self.proxies[each].hold(*(_OTHER[direction] for direction in directions), source=name)
        try:
            yield
        finally:
            for each in from_names:
                self.proxies[name].hold(source=each)
                if each:
                    self.proxies[each].hold(source=name)

    # At the end.

    def differences(self) -> list[str]:
        """Where the stores of the nodes differ, once nothing is written any more; all are killed."""
        transport = transport_for(self.url)[0]
        transport.open(Credentials(), lambda _event: None, None)

        def all_have_all() -> bool:
            found = transport.request("copies", {}, None)["copies"]
            return sum((each["behind"], each["image"]) == (0, None) for each in found) == len(NAMES) - 1

        if not wait_for(all_have_all, 20):
            return ["a node has not caught up"]
        self.kill(*NAMES)
        transport.close(0)
        found = {}
        for name in NAMES:
            store = LmdbStore(self.path / name, EngineSettings())
            with store.snapshot() as records:
                found[name] = {table: dict(records.items(table)) for table in TABLES if table not in ("meta", "tail")}
            store.close()
        return [
            f"{table} of {name}"
            for name in NAMES[1:]
            for table in found[name]
            if found[name][table] != found[NAMES[0]][table]
        ]


_OTHER = {Direction.TO_SERVER: Direction.TO_CLIENT, Direction.TO_CLIENT: Direction.TO_SERVER}
