"""The command ``holdfast config``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.broker_adapter.server.cli.running import done, holdfast

TEXT = """
[[policy]]
match = "orders.>"
max_deliveries = 3
dead_letter_queue = "orders.dead"

[[policy]]
match = "orders.eu"
max_deliveries = "none"
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "holdfast.toml"
    path.write_text(TEXT)
    return str(path)


def test_a_file_is_checked(file: str, tmp_path: Path) -> None:
    assert done("config", "check", file) == f"{file}: nothing is wrong (2 [[policy]])\n"
    assert json.loads(done("config", "check", "--json", HOLDFAST_CONFIG=file)) == {"file": file, "policies": 2}
    broken = tmp_path / "broken.toml"
    broken.write_text(f'{TEXT}\n[[policy]]\nmatch = "orders.eu"\nmax_deliveries = 4\n')
    finished = holdfast("config", "check", str(broken))
    assert (finished.returncode, finished.stdout) == (1, "")
    assert f"{broken}:13: max_deliveries of policy 'orders.eu' contradicts that of 'orders.eu'" in finished.stderr


def test_a_file_that_is_not_named_is_asked_for() -> None:
    finished = holdfast("config", "show", HOLDFAST_CONFIG="")
    assert (finished.returncode, "needs a FILE, or $HOLDFAST_CONFIG" in finished.stderr) == (1, True)


def test_what_holds_for_a_queue_is_shown_with_where_it_is_from(file: str) -> None:
    lines = [line.split(maxsplit=2) for line in done("config", "show", file, "--queue", "orders.eu").splitlines()]
    assert lines[:4] == [
        ["setting", "value", "from"],
        ["max_deliveries", "none", "policy 'orders.eu'"],
        ["redelivery_delay_seconds", "0.25", "default"],
        ["keep_order", "false", "default"],
    ]
    shown = json.loads(done("config", "show", file, "--queue", "orders.dead", "--json"))
    assert shown["max_deliveries"] == [None, "dead-letter queue"]


def test_the_policies_are_shown(file: str) -> None:
    assert [line.split() for line in done("config", "show", file).splitlines()][1:] == [
        ["orders.>", "max_deliveries", "3"],
        ["orders.>", "dead_letter_queue", "orders.dead"],
        ["orders.eu", "max_deliveries", "none"],
    ]
    assert [json.loads(line) for line in done("config", "show", file, "--json").splitlines()] == [
        {"match": "orders.>", "max_deliveries": 3, "dead_letter_queue": "orders.dead"},
        {"match": "orders.eu", "max_deliveries": None},
    ]


def test_the_example_is_a_file_that_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(done("config", "example"))
    assert "#[[policy]]" in path.read_text()
    assert "(0 [[policy]])" in done("config", "check", str(path))
    assert json.loads(done("config", "example", "--json"))["example"] == path.read_text()
