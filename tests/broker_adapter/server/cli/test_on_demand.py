"""A command loads what it needs when it runs."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from broker_adapter.server.cli.on_demand import command

#: Runs a command, and prints which of these modules it has loaded.
LOADING = """
import sys
from broker_adapter.server.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
watched = ("asyncio", "broker_adapter.engine.broker", "broker_adapter.server.listener", "cproton", "ssl")
print("loaded", *[name for name in watched if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("arguments", "loaded"),
    [
        ("--help", []),
        ("send --help", []),
        ("send", []),  # wrong usage
        ("check /nowhere", ["broker_adapter.engine.broker"]),
        ("stat --url embedded:", ["broker_adapter.engine.broker"]),
        ("stat --url amqp://127.0.0.1:1", ["asyncio", "cproton", "ssl"]),
    ],
)
def test_a_command_loads_what_it_needs(arguments: str, loaded: list[str]) -> None:
    program = [sys.executable, "-c", LOADING, *arguments.split()]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines()[-1].split() == ["loaded", *loaded], done.stderr


def test_the_function_of_a_command_is_found_when_it_runs() -> None:
    run = command("user_commands", "user")
    with pytest.raises(ValueError, match="add needs a NAME"):
        run(argparse.Namespace(action="add", name=None, file="unused", iterations=None, json=False))
