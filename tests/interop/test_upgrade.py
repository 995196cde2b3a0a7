"""A group is upgraded node by node, and the upgrade taken back, under a load of every mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdk import ConnectionFactory
from tests import fork_server
from tests.faults.group_servers import GroupServers
from tests.faults.group_soak import OPTIONS, Load
from tests.interop import install
from tests.interop.conftest import installed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
OLDER = "tests.interop.older"


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
        load = Load(group)
        for module in (fork_server.COMMAND, OLDER):
            upgrade(group, load, module)
        assert load.finish() == []
        assert group.differences() == []
