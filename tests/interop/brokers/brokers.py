"""The brokers that the scenarios run on: how each is started, and what it cannot do.

``CANNOT`` is the one place that says what a broker cannot do: the tests expect exactly that exception of our SDK, and
the table in ``docs/brokers.md`` is made from it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from sdk import InvalidSelectorException, JMSException, TransactionRolledBackException, UnsupportedOperationException
from tests.interop import install

_START_SECONDS = 120

#: Runs a broker, and kills it with all that it started when the pipe to the test's process breaks, however that ended.
_GUARD = '"$@" </dev/null & exec >/dev/null 2>&1; cat; kill -9 0'


@attrs.frozen
class Limit:
    """What becomes of a scenario that a broker cannot do."""

    exception: type[BaseException]
    match: str | None  #: a part of its message
    why: str  #: for the table in the documentation


@attrs.frozen
class Broker:
    """A broker that runs."""

    name: str
    url: str
    username: str | None
    password: str | None
    cannot: Mapping[str, Limit]
    process: Process


class Process:
    """A broker's process, with all that it starts, and what it says; it does not outlive the process of the tests."""

    def __init__(self, command: list[str], environment: dict[str, str], ready: str) -> None:
        """Start, and wait until a line of the output matches ``ready``.

        Args:
            command: program and arguments.
            environment: what is added to our own environment.
            ready: a regular expression.

        Raises:
            RuntimeError: it ended, or said nothing of the kind within 120 seconds; with what it said.
        """
        self.output: list[str] = []
        self._arguments = (command, environment, ready)
        self._is_ready = False
        self._ready_or_over = threading.Event()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", *command],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(re.compile(ready),), daemon=True)
        self._reader.start()
        self._ready_or_over.wait(_START_SECONDS)
        if not self._is_ready:
            self.stop()
            raise RuntimeError("the broker does not start:\n" + "".join(self.output[-40:]))

    def _read(self, ready: re.Pattern[str]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output.append(line)
            if ready.search(line):
                self._is_ready = True
                self._ready_or_over.set()
        self._ready_or_over.set()

    @property
    def pid(self) -> int:
        """Of the process that has started the broker."""
        return self._process.pid

    def started_again(self) -> Process:
        """The same, started again after ``stop``."""
        return Process(*self._arguments)

    def stop(self) -> None:
        """Kill it and what it started; blocks until they have ended, 10 seconds at most for what they said last."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._reader.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def free_port() -> int:
    """A port that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


# Ours.


def start_holdfast(place: Path) -> Broker:
    """Our own server: everything that the scenarios ask for."""
    port = free_port()
    command = [sys.executable, "-m", "broker_adapter.server.cli", "serve"]
    arguments = ["--data", str(place / "data"), "--listen", f"127.0.0.1:{port}"]
    process = Process([*command, *arguments], {"PYTHONUNBUFFERED": "1"}, "ready on")
    return Broker("Holdfast", f"amqp://127.0.0.1:{port}", None, None, {}, process)


# Apache ActiveMQ Artemis.

#: These brokers offer no SCRAM-SHA-256 as they are installed, and have no certificate here.
_PLAIN = "allow_plain_without_tls=true"


def start_artemis(place: Path) -> Broker:
    """One node with queues and topics that are made when they are used."""
    port = free_port()
    process = _artemis(place / "artemis", port, "AMQ221007")
    url = f"amqp://127.0.0.1:{port}?{_PLAIN}"
    return Broker("ActiveMQ Artemis", url, "ada", "secret", CANNOT["ActiveMQ Artemis"], process)


def start_artemis_pair(place: Path) -> tuple[Broker, Broker]:
    """A primary, and a backup that replicates it and takes its place when it dies."""
    ports = free_port(), free_port()
    nodes = ",".join(f"tcp://127.0.0.1:{port}" for port in ports)
    cluster = [
        "--clustered",
        "--replicated",
        "--cluster-user",
        "c",
        "--cluster-password",
        "c",
        "--staticCluster",
        nodes,
    ]
    # "is now active", and "is synchronized with primary server".
    kinds = (("primary", [], "AMQ221007"), ("backup", ["--backup"], "AMQ221024"))
    found = []
    for (name, backup, ready), port in zip(kinds, ports, strict=True):
        process = _artemis(place / name, port, ready, *cluster, *backup, "--name", name)
        found.append(Broker(name, f"amqp://127.0.0.1:{port}?{_PLAIN}", "ada", "secret", {}, process))
    return found[0], found[1]


def _artemis(instance: Path, port: int, ready: str, *more: str) -> Process:
    """A node of Artemis, created and started."""
    small = ("--no-autotune", "--nio", "--java-options", "-Xmx512m")
    return Process(create_artemis(instance, port, *small, *more), {}, ready)


def create_artemis(instance: Path, port: int, *more: str) -> list[str]:
    """A node of Artemis, created; returns what starts it.

    Args:
        instance: a folder that does not exist.
        port: where it listens.
        more: further options of ``artemis create``.
    """
    home = install.artemis()
    create = [
        *(str(home / "bin" / "artemis"), "create", str(instance), "--silent", "--user", "ada", "--password", "secret"),
        *("--require-login", "--no-web", "--host", "127.0.0.1", "--default-port", str(port)),
        *("--no-amqp-acceptor", "--no-hornetq-acceptor", "--no-mqtt-acceptor", "--no-stomp-acceptor"),
        *more,
    ]
    subprocess.run(create, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    settings = instance / "etc" / "broker.xml"
    text = settings.read_text()
    # Delivery counts and the order of redelivery as JMS has them; a message larger than the default is no exception.
    text = text.replace("<max-disk-usage>90<", "<max-disk-usage>-1<")
    settings.write_text(text)
    return [str(instance / "bin" / "artemis"), "run"]


# Apache ActiveMQ Classic.


def start_activemq(place: Path) -> Broker:
    """A broker in memory, to which anybody may log in."""
    port = free_port()
    command = ["java", "-Xmx256m", "-cp", install.activemq(), "Broker", str(port), str(place)]
    process = Process(command, {}, "ready")
    url = f"amqp://127.0.0.1:{port}?queue_prefix=queue://&topic_prefix=topic://"
    return Broker("ActiveMQ Classic", url, None, None, CANNOT["ActiveMQ Classic"], process)


# Apache Qpid Broker-J.


_BROKER_J_HOST = {
    "type": "BDB",
    "nodeAutoCreationPolicies": [
        {
            "pattern": pattern,
            "createdOnPublish": "true",
            "createdOnConsume": "true",
            "nodeType": node,
            "attributes": attributes,
        }
        for pattern, node, attributes in (("queue-.*", "Queue", {"type": "priority", "priorities": "10"}),)
    ],
}


def _broker_j_config(port: int) -> dict[str, Any]:
    aliases = ("default", "defaultAlias"), ("hostname", "hostnameAlias"), ("name", "nameAlias")
    return {
        "name": "interop",
        "modelVersion": "9.0",
        "brokerloggers": [
            {
                "name": "console",
                "type": "Console",
                "brokerloginclusionrules": [
                    {"name": "all", "type": "NameAndLevel", "level": "WARN", "loggerName": "ROOT"}
                ],
            }
        ],
        "authenticationproviders": [
            {"name": "plain", "type": "Plain", "users": [{"name": "ada", "type": "managed", "password": "secret"}]}
        ],
        "ports": [
            {
                "name": "AMQP",
                "type": "AMQP",
                "port": str(port),
                "bindingAddress": "127.0.0.1",
                "authenticationProvider": "plain",
                "virtualhostaliases": [{"name": name, "type": kind} for name, kind in aliases],
            }
        ],
        "virtualhostnodes": [
            {
                "name": "default",
                "type": "JSON",
                "defaultVirtualHostNode": "true",
                "virtualHostInitialConfiguration": json.dumps(_BROKER_J_HOST),
            }
        ],
    }


def start_broker_j(place: Path) -> Broker:
    """One node, with queues that are made when they are used; topics are routing keys of its topic exchange."""
    home, port = install.broker_j(), free_port()
    config = place / "initial.json"
    config.write_text(json.dumps(_broker_j_config(port)))
    (place / "work").mkdir()
    command = [str(home / "bin" / "qpid-server"), "-icp", str(config)]
    environment = {"QPID_WORK": str(place / "work"), "QPID_JAVA_MEM": "-Xmx512m -XX:MaxDirectMemorySize=512m"}
    process = Process(command, environment, "BRK-1004")
    url = f"amqp://127.0.0.1:{port}?{_PLAIN}&topic_prefix=amq.topic/"
    return Broker("Qpid Broker-J", url, "ada", "secret", CANNOT["Qpid Broker-J"], process)


# RabbitMQ 3 and 4.

#: Erlang's port mapper is started first: a node that finds none starts one that leaves the process group and stays.
_WITH_PORT_MAPPER = 'epmd >/dev/null 2>&1 & until epmd -names >/dev/null 2>&1; do sleep 0.1; done; exec "$0"'


#: Runs a program in a folder that has the packages it needs, with this machine's files for it and the data.
_IN_FOLDER = """set -eu
for each in dev proc sys; do mount --rbind /$each $0/$each; done
mkdir -p $0$1; mount --bind $1 $0$1; cp /etc/hosts /etc/passwd $0/etc/
root=$0; shift; exec chroot $root "$@"
"""


def start_rabbitmq(place: Path) -> Broker:
    """RabbitMQ 3."""
    programs, port = install.rabbitmq(), free_port()
    environment = _rabbitmq(place, port, "rabbitmq_amqp1_0")
    server = shutil.which("rabbitmq-server", path="/usr/lib/rabbitmq/bin") or str(programs / "rabbitmq-server")
    process = Process(["/bin/sh", "-c", _WITH_PORT_MAPPER, server], environment, "Server startup complete")
    url = f"amqp://127.0.0.1:{port}?{_PLAIN}&queue_prefix=/queue/&topic_prefix=/topic/"
    return Broker("RabbitMQ 3", url, "ada", "secret", CANNOT["RabbitMQ 3"], process)


def start_rabbitmq_4(place: Path) -> Broker:
    """RabbitMQ 4, with addresses of version 1, at which queues are made when they are used."""
    folder, port = install.rabbitmq_4(), free_port()
    command = ["unshare", "--mount", "/bin/sh", "-c", _IN_FOLDER, str(folder), str(place)]
    program = ["/bin/sh", "-c", _WITH_PORT_MAPPER, "/usr/lib/rabbitmq/bin/rabbitmq-server"]
    process = Process([*command, *program], _rabbitmq(place, port), "Server startup complete")
    url = f"amqp://127.0.0.1:{port}?{_PLAIN}&queue_prefix=/queue/&topic_prefix=/topic/"
    return Broker("RabbitMQ 4", url, "ada", "secret", CANNOT["RabbitMQ 4"], process)


def _rabbitmq(place: Path, port: int, *enabled: str) -> dict[str, str]:
    """The environment of a node with data, ports and plug-ins of its own, apart from any that the system runs."""
    plugins = place / "plugins"
    plugins.write_text(f"[{', '.join(enabled)}].\n")
    config = place / "rabbitmq.conf"
    config.write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users = none\ndisk_free_limit.absolute = 1MB\n"
        "default_user = ada\ndefault_pass = secret\n"
    )
    return {
        "HOME": str(place),
        "RABBITMQ_NODENAME": f"interop{port}@localhost",
        "RABBITMQ_MNESIA_BASE": str(place / "mnesia"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "ERL_EPMD_PORT": str(free_port()),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }


_NO_DELAY = Limit(
    JMSException, "does not offer delivery delay", "does not offer `DELAYED_DELIVERY` when the connection is opened"
)
_NO_SELECTORS = Limit(
    InvalidSelectorException,
    "was not seen to apply selectors",
    "confirms a selector and then sends everything, so our SDK does not ask",
)
_NO_TRANSACTIONS = Limit(
    TransactionRolledBackException, "Transactions not supported", "has no transactions in AMQP 1.0"
)
_NO_DYNAMIC_NODES = Limit(JMSException, "Dynamic targets not supported", "makes no nodes for clients")
_NO_DURABLE = Limit(
    UnsupportedOperationException,
    "was not seen to keep subscriptions",
    "has no durable subscriptions in AMQP 1.0: consume from a queue that is bound to the exchange",
)
_NO_SHARED = Limit(
    UnsupportedOperationException,
    "does not offer shared subscriptions",
    "does not offer `SHARED-SUBS` when the connection is opened",
)
_NO_PRIORITIES = Limit(
    AssertionError, None, "nothing is raised: only queues that were declared with priorities have them"
)
_NO_FLAG = Limit(
    AssertionError,
    None,
    "nothing is raised: its classic queues tell neither a delivery count nor whether a message is redelivered",
)
#: What RabbitMQ 3 and 4 cannot do.
_RABBITMQ = {
    "browsers": Limit(
        UnsupportedOperationException,
        "was not seen to let queues be browsed",
        "would deliver the messages, and not only show them, so our SDK does not ask",
    ),
    "client_acknowledge_and_recover": _NO_FLAG,
    "client_id_is_for_one_connection": Limit(
        pytest.fail.Exception, "DID NOT RAISE", "nothing is raised: it takes the same client id twice"
    ),
    "delivery_delay": _NO_DELAY,
    "durable_subscriptions": _NO_DURABLE,
    "no_local": Limit(
        UnsupportedOperationException,
        "was not seen to apply no_local",
        "confirms the filter and does not apply it, so our SDK does not ask",
    ),
    "priorities": _NO_PRIORITIES,
    "request_and_reply": _NO_DYNAMIC_NODES,
    "rollback": _NO_TRANSACTIONS,
    "selectors": _NO_SELECTORS,
    "selectors_of_headers": _NO_SELECTORS,
    "selectors_of_topics": _NO_SELECTORS,
    "shared_durable_subscriptions": _NO_DURABLE,
    "shared_subscriptions": _NO_SHARED,
    "temporary_queue_is_deleted": _NO_DYNAMIC_NODES,
    "temporary_topic": _NO_DYNAMIC_NODES,
    "transactions": _NO_TRANSACTIONS,
    "what_is_not_acknowledged_is_redelivered": _NO_FLAG,
}

CANNOT: dict[str, dict[str, Limit]] = {
    "ActiveMQ Artemis": {},
    "ActiveMQ Classic": {
        "priorities": _NO_PRIORITIES,
        "shared_durable_subscriptions": _NO_SHARED,
        "shared_subscriptions": _NO_SHARED,
        "what_is_not_acknowledged_is_redelivered": Limit(
            AssertionError, None, "nothing is raised: it tells another consumer nothing of a redelivery"
        ),
    },
    "Qpid Broker-J": {
        "delivery_delay": _NO_DELAY,
        "no_local": Limit(
            UnsupportedOperationException,
            "was not seen to apply no_local",
            "does not confirm the filter, so our SDK does not ask",
        ),
    },
    "RabbitMQ 3": {
        **_RABBITMQ,
        "receive_nowait_finds_what_waits": Limit(
            AssertionError,
            None,
            "returns None: a drain ends the session there, so only what was prefetched is seen",
        ),
    },
    "RabbitMQ 4": {
        **_RABBITMQ,
        "non_persistent_messages": Limit(
            AssertionError, None, "nothing is raised: a message without a header, which is not durable, becomes durable"
        ),
    },
}
STARTS: dict[str, Callable[[Path], Broker]] = {
    "Holdfast": start_holdfast,
    "ActiveMQ Artemis": start_artemis,
    "ActiveMQ Classic": start_activemq,
    "Qpid Broker-J": start_broker_j,
    "RabbitMQ 3": start_rabbitmq,
    "RabbitMQ 4": start_rabbitmq_4,
}


def table() -> str:
    """What the brokers cannot do, as a table for the documentation."""
    brokers: dict[tuple[str, Limit], list[str]] = {}
    for broker, limits in CANNOT.items():
        for scenario, limit in sorted(limits.items()):
            brokers.setdefault((scenario, limit), []).append(broker)
    scenarios: dict[tuple[Limit, str], list[str]] = {}
    for (scenario, limit), names in brokers.items():
        scenarios.setdefault((limit, ", ".join(names)), []).append(f"`{scenario}`")
    lines = ["| scenario | broker | our SDK raises | because the broker |", "|---|---|---|---|"]
    for (limit, products), same in scenarios.items():
        raises = f"`{limit.exception.__name__}`" if issubclass(limit.exception, JMSException) else "-"
        lines.append(f"| {', '.join(same)} | {products} | {raises} | {limit.why} |")
    return "\n".join(lines)
