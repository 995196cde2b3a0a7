"""``holdfast serve --group``: which stores and groups a node takes, and how it ends."""

from __future__ import annotations

import shutil
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.queues.policies import Policies
from broker_adapter.engine.records.layout import STORE_VERSION
from broker_adapter.errors import ConnectionLostException, IllegalStateException, JMSException, StoreException
from broker_adapter.group import member
from broker_adapter.group.copy_files import CopyFiles
from broker_adapter.server.cli import group_node
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, connect, drained, eventually, payloads, send
from tests.broker_adapter.group.nodes import Nodes, nodes


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setattr(member, "_END_SECONDS", 1.0)
    with nodes(tmp_path) as made:
        yield made


def make_store(path: Path, *bodies: object) -> None:
    """The store of a server that is of no group, with messages in ``q``."""
    broker = Broker(EngineSettings(), str(path))
    if bodies:
        send(broker, connect(broker), "q", *bodies)
    broker.close()


def look(path: Path) -> list[bytes]:
    """What ``q`` has, at a server that is of no group."""
    broker = Broker(EngineSettings(), str(path))
    try:
        return payloads(drained(broker, connect(broker), "q"))
    finally:
        broker.close()


def test_a_group_begins_with_the_store_that_a_server_had(group: Nodes) -> None:
    make_store(group.path / "n1", "one")
    first = group.start("n1", new=True)
    eventually(lambda: first.leads)
    assert first.look() == [b"one"]


def test_the_store_of_a_node_is_refused_without_its_group(group: Nodes) -> None:
    first = group.start("n1", new=True)
    eventually(lambda: first.leads)
    group.stop("n1")
    with pytest.raises(StoreException, match="the primary of the group g"):
        Broker(EngineSettings(), str(group.path / "n1"))


def test_a_group_is_begun_once_and_the_store_that_was_to_begin_it_again_stays_as_it_was(group: Nodes) -> None:
    group.start("n1", new=True)
    make_store(group.path / "other", "one")
    with pytest.raises(StoreException, match="there is a group 'g' already"):
        group.start("other", new=True)
    assert look(group.path / "other") == [b"one"]


def test_a_store_is_not_made_that_of_a_node_while_the_coordinator_is_away(group: Nodes) -> None:
    make_store(group.path / "n1", "one")
    group.coordinator.is_away = True
    with pytest.raises(ConnectionLostException, match="the coordinator is away"):
        group.start("n1", new=True)
    group.coordinator.is_away = False
    assert look(group.path / "n1") == [b"one"]


def test_a_node_waits_for_the_group_that_another_one_begins(group: Nodes) -> None:
    starting = threading.Thread(target=group.start, args=("n2",))
    starting.start()
    group.start("n1", new=True)
    starting.join(WAIT)
    assert not starting.is_alive()
    group.wait_for_sync("n1", "n2")


def test_a_node_with_the_store_of_another_group_or_of_none_is_refused(group: Nodes) -> None:
    group.start("n1", new=True)
    make_store(group.path / "n2", "one")
    with pytest.raises(StoreException, match=r"the store in .*n2' is of another group, or of none"):
        group.start("n2")
    assert look(group.path / "n2") == [b"one"]


def test_a_copy_of_a_server_begins_no_group_before_it_is_promoted(group: Nodes) -> None:
    first = group.start("n1", new=True)
    eventually(lambda: first.leads)
    group.stop("n1")
    files = CopyFiles(group.path / "n1", EngineSettings(), "amqp://orders")
    files.follows("another name", STORE_VERSION, is_known=True)
    files.close()
    group.coordinator.swap(group.coordinator.read().token, b"")
    with pytest.raises(StoreException, match=r"is a copy of amqp://orders: .* holdfast promote"):
        group.start("n1", new=True)


def test_a_node_that_is_forced_becomes_primary_without_being_in_sync(group: Nodes) -> None:
    first = group.start("n1", new=True)
    eventually(lambda: first.leads)
    first.send("one")
    group.start("n2")
    group.wait_for_sync("n1", "n2")
    group.stop("n2")
    group.wait_for_sync("n1")
    first.send("lost")
    group.stop("n1")
    second = group.start("n2", force=True)
    eventually(lambda: second.leads)
    assert second.look() == [b"one"]
    first = group.start("n1")
    group.wait_for_sync("n1", "n2")
    second.engine.broker.request("hand_over", {"node": "n1"}, WAIT)
    eventually(lambda: first.leads)
    assert first.look() == [b"one"]


def test_a_node_that_has_nothing_and_is_forced_fails_and_says_so(group: Nodes) -> None:
    first = group.start("n1", new=True)
    eventually(lambda: first.leads)
    group.stop("n1")
    second = group.start("n2", force=True)
    assert second.told.get(timeout=WAIT) is None
    with pytest.raises(IllegalStateException, match="n2 has nothing"):
        raise second.failed or AssertionError


def test_a_primary_that_has_lost_its_store_says_what_it_waits_for(
    group: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    first = group.start("n1", new=True)
    eventually(lambda: first.leads)
    group.stop("n1")
    shutil.rmtree(group.path / "n1")
    group.start("n1")
    assert "for one that is started with --force" in caplog.text


@pytest.mark.parametrize("address", ["host", "host:0", "host:65536", "a,b:1", "::1:5672"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    options = Namespace(node="n1", coordinator="etcd://127.0.0.1:1", group="g", data=str(tmp_path), advertise=address)
    settings = EngineSettings()
    with pytest.raises(ValueError, match=r"--advertise .* is not HOST:PORT"):
        group_node.node(options, settings, Policies(settings, ()), SimpleQueue())


def test_a_node_whose_engine_fails_says_why(group: Nodes) -> None:
    first = group.start("n1", new=True)
    eventually(lambda: first.leads)
    broker = first.engine.broker
    assert broker is not None
    broker.failed = JMSException("the disk")
    assert first.failed is broker.failed


def test_a_process_that_starts_anew_begins_no_group_and_forces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["/usr/bin/python3", "-X", "dev", "holdfast", "serve", "--new-group", "--force", "--node", "n1"]
    monkeypatch.setattr(group_node.sys, "orig_argv", arguments)
    assert group_node._arguments() == ["-X", "dev", "holdfast", "serve", "--node", "n1"]


def test_a_node_that_starts_while_the_coordinator_is_away_waits_for_it(
    group: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = group.start("n1", new=True)
    eventually(lambda: first.leads)
    waits: list[float] = []

    def come_back(seconds: float) -> None:
        waits.append(seconds)
        group.coordinator.is_away = len(waits) < 3

    monkeypatch.setattr(group_node, "_wait", come_back)
    group.coordinator.is_away = True
    group.start("n2")
    assert len(waits) == 3
    group.wait_for_sync("n1", "n2")
