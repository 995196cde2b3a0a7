"""The command ``holdfast`` in a process of its own, and what it is told and asked."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from typing import Any

from tests import forked_command
from tests.server_process import ServerProcess

NASTY = "\x1b[2J\x1b]0;title\x07\r\x9b31m\x7f\u202eright\u2066\u2028\u200f"


def holdfast(*arguments: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command, without a terminal.

    Args:
        arguments: of the command.
        text: its standard input.
        environment: variables in addition to those of this process.
    """
    return forked_command.run(arguments, text, {**os.environ, **environment}, timeout=300)


def answered(answer: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with a terminal as its standard input, at which a line is typed."""
    own, theirs = pty.openpty()
    try:
        os.write(own, f"{answer}\n".encode())
        return forked_command.run(arguments, None, dict(os.environ), timeout=300, stdin=theirs)
    finally:
        os.close(own)
        os.close(theirs)


def done(*arguments: str, **options: Any) -> str:
    finished = holdfast(*arguments, **options)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def shell(script: str, *arguments: str, new: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the shell, in which ``"$@"`` is the command with these arguments.

    Args:
        script: what the shell runs.
        arguments: of the command.
        new: whether the command runs in a process that is not forked by :mod:`tests.fork_server`.
        environment: variables in addition to those of this process.
    """
    complete = {**os.environ, **environment}
    command, inherited = [*forked_command.NEW], []
    if not new and forked_command.is_possible(complete):
        server = forked_command.server_for(complete)
        command, inherited = forked_command.stand_in(server), [server.fileno()]
    return subprocess.run(
        ["sh", "-c", script, "sh", *command, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=complete,
        pass_fds=inherited,
    )


def deliveries(server: ServerProcess, name: str) -> dict[str, int]:
    """The deliveries that the messages of a queue have had, and the one to come."""
    lines = holdfast("browse", name, "--url", server.url, "--json").stdout.splitlines()
    return {each["body"]: each["delivery_count"] for each in map(json.loads, lines)}
