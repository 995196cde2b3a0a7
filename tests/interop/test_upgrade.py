"""A group is upgraded node by node, and the upgrade taken back; or all at once to another version of stores."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from broker_adapter.errors import StoreVersionException
from sdk import ConnectionFactory
from tests import fork_server
from tests.faults.group_servers import NAMES, GroupServers
from tests.faults.group_soak import OPTIONS, Load
from tests.faults.scenarios import WAIT, wait_for
from tests.faults.sites import Site
from tests.interop import install
from tests.interop.conftest import installed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
OLDER, NEWER = "tests.interop.older", "tests.interop.newer"


def restart(group: GroupServers, name: str, module: str) -> None:
    """Stop a node, and start it with other software."""
    assert group.stop(name) == 0
    group.start(name, module=module)
    group.wait_for_sync()


def upgrade(group: GroupServers, load: Load, module: str) -> None:
    """As docs/redundancy.md has it."""
    last, others = group.primary, group.others
    for name in others:
        restart(group, name, module)
        assert load.goes_on()
    before = group.record
    with ConnectionFactory(group.url + OPTIONS).create_connection() as connection:
        connection.request("hand_over", {"node": others[0]})
    group.wait_for_takeover(before)
    assert load.goes_on()
    group.wait_for_sync()
    restart(group, last, module)
    assert load.goes_on()


def test_a_group_goes_on_while_its_nodes_get_other_software_one_by_one_and_back(tmp_path: Path) -> None:
    installed(install.older)
    with GroupServers(tmp_path, min_in_sync=2, module=OLDER) as group:
        with contextlib.closing(Site(2, group.path / "site")) as site:
            load = Load(group, site)
            for module in (fork_server.COMMAND, OLDER):
                upgrade(group, load, module)
            assert load.finish() == []
        assert group.differences() == []


def test_a_group_gets_another_version_of_stores_while_it_is_stopped_and_older_software_does_not_join(
    tmp_path: Path,
) -> None:
    with GroupServers(tmp_path) as group:
        with (
            ConnectionFactory(group.url + OPTIONS).create_connection() as connection,
            connection.create_session() as one,
        ):
            one.create_producer(one.create_queue("q")).send("message")
        last, others = group.primary, group.others
        for name in (*others, last):
            assert group.stop(name) == 0
        for name in (last, *others):
            group.start(name, module=NEWER)
        with (
            ConnectionFactory(group.url + OPTIONS).create_connection() as connection,
            connection.create_session() as one,
        ):
            connection.start()
            assert wait_for(lambda: connection.request("copies", {})["group"]["in_sync"] == [*NAMES])
            message = one.create_consumer(one.create_queue("q")).receive(WAIT)
            assert message is not None
            assert message.body == "message"
        with pytest.raises(StoreVersionException):
            _ = group.record
        assert group.stop(others[0]) == 0
        shutil.rmtree(group.path / others[0])
        with pytest.raises(AssertionError):
            group.start(others[0])
        assert "upgrade this node" in group.log(others[0])
