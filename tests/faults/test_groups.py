"""A group of three servers keeps its promises while nodes are killed, stopped, frozen and cut off from each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import group_soak
from tests.faults.group_servers import GroupServers

pytestmark = pytest.mark.crash

#: What a run of all tests does to a group; by hand: ``python -m tests.faults.group_soak``.
SOME = (
    "primary killed",
    "primary frozen",
    "primary apart from the others, and killed",
    "primary apart from others and coordinator",
    "primary stopped in good order",
)


def test_every_mode_keeps_its_promises_whatever_happens_to_the_nodes(tmp_path: Path) -> None:
    with GroupServers(tmp_path) as group:
        result = group_soak.run(group, len(SOME), seed=7, kinds=SOME)
    assert result.problems == []


def test_promises_are_broken_where_answers_do_not_wait_for_the_other_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_soak, "SETTLING", 10.0)  # it waits for what is lost
    kinds = ["primary apart from the others, and killed"]
    with GroupServers(tmp_path, module="tests.faults.unreleased") as group:
        result = group_soak.run(group, 1, seed=7, kinds=kinds)
    assert [each for each in result.problems if "stored" in each], "the other test proves nothing"
