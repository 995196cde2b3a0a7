"""A command in a forked process does what it does in a new one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests import forked_command
from tests.server_process import ServerProcess

NOBODY = ("stat", "--url", "amqp://127.0.0.1:1")


def run(
    *arguments: str, text: str | None = None, timeout: float = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    return forked_command.run(arguments, text, {**os.environ, **environment}, timeout)


def test_a_command_has_the_directory_and_the_environment_of_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("user", "add", "users", "alice", HOLDFAST_PASSWORD="secret").stdout == "added alice in users\n"
    assert (tmp_path / "users").exists()
    assert run("user", "add", "users", "bob", text="secret\n").stdout == "added bob in users\n"


@pytest.mark.parametrize("arguments", [("--version",), ("nonsense",), (), NOBODY, ("purge", "q", "--url", "http://x")])
def test_a_command_ends_as_in_a_new_process(arguments: tuple[str, ...]) -> None:
    new = subprocess.run([*forked_command.NEW, *arguments], capture_output=True, text=True, check=False)
    forked = run(*arguments)
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)


def test_a_signal_is_the_status_of_what_it_ends(tmp_path: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGABRT):
        with ServerProcess(tmp_path / "data") as server:
            server.signal(number)
            assert server._process is not None
            assert server._process.wait(120) == -number
            assert not server.is_running


def test_many_commands_at_once_have_their_own_streams() -> None:
    def users(number: int) -> str:
        return run("user", "list", f"no file {number}").stderr

    with ThreadPoolExecutor(8) as pool:
        for number, told in enumerate(pool.map(users, range(24))):
            assert f"'no file {number}'" in told


def test_a_command_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run("serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", timeout=0.2)


def test_a_forked_server_has_no_descriptors_but_its_own(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "1"),  # whose pipes another one could have
        ServerProcess(tmp_path / "2") as forked,
        ServerProcess(tmp_path / "3", new=True) as new,
    ):
        assert psutil.Process(forked.pid).num_fds() == psutil.Process(new.pid).num_fds()
        assert psutil.Process(forked.pid).num_threads() == psutil.Process(new.pid).num_threads()


def test_the_fork_server_ends_with_the_process_that_has_started_it(tmp_path: Path) -> None:
    program = """
import os, psutil, signal, sys
from tests.server_process import ServerProcess
with ServerProcess(sys.argv[1]) as server:
    print(psutil.Process(server.pid).ppid(), flush=True)
    server.kill()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, check=False)
    assert killed.returncode == -signal.SIGKILL
    psutil.wait_procs(
        [psutil.Process(number) for number in map(int, killed.stdout.split()) if psutil.pid_exists(number)]
    )
