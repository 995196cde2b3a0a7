"""The command ``holdfast`` in a process of its own, and what it is told and asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.server_process import ServerProcess

NASTY = "\x1b[2J\x1b]0;title\x07\r\x9b31m\x7f\u202eright\u2066\u2028\u200f"


def holdfast(*arguments: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broker_adapter.server.cli", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        start_new_session=True,  # without a terminal
        env={**os.environ, **environment},
    )


def done(*arguments: str, **options: Any) -> str:
    finished = holdfast(*arguments, **options)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def shell(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the shell, in which ``"$@"`` is the command with these arguments."""
    return subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-m", "broker_adapter.server.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, **environment},
    )


def deliveries(server: ServerProcess, name: str) -> dict[str, int]:
    """The deliveries that the messages of a queue have had, and the one to come."""
    lines = holdfast("browse", name, "--url", server.url, "--json").stdout.splitlines()
    return {each["body"]: each["delivery_count"] for each in map(json.loads, lines)}
