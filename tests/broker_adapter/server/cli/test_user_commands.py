"""The command ``holdfast user``."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from broker_adapter.amqp.sasl import PLAIN, SCRAM_SHA_256
from broker_adapter.mechanisms import ITERATIONS
from broker_adapter.server.access.users import UsersFile
from broker_adapter.server.cli import main
from tests.broker_adapter.server.access.test_users import logs_in
from tests.broker_adapter.server.cli.running import done, holdfast
from tests.server_process import ServerProcess


def test_users_are_asked_for_their_password(tmp_path: Path) -> None:
    users = str(tmp_path / "users")
    assert done("user", "add", users, "alice", text="secret\n") == f"added alice in {users}\n"
    assert done("user", "add", users, "bob", text="other\n") == f"added bob in {users}\n"
    assert done("user", "remove", users, "bob") == f"removed bob from {users}\n"
    assert done("user", "list", users) == "alice  100000 iterations\n"
    assert json.loads(done("user", "list", users, "--json")) == {"user": "alice", "iterations": 100000}
    carol = done("user", "add", users, "carol", "--json", text="not this\n", HOLDFAST_PASSWORD="carols")
    assert json.loads(carol) == {"user": "carol", "is_new": True}
    assert json.loads(done("user", "remove", users, "carol", "--json")) == {"user": "carol", "removed": True}
    done("user", "add", users, "carol", text="not this\n", HOLDFAST_PASSWORD="carols")
    with ServerProcess(tmp_path / "data", "--users", users) as server:
        arguments = ("stat", "--url", server.url)
        done(*arguments, "--username", "alice", HOLDFAST_PASSWORD="secret")
        done(*arguments, "--username", "carol", HOLDFAST_PASSWORD="carols")
        wrong = holdfast(*arguments, "--username", "alice", HOLDFAST_PASSWORD="guess")
        assert (wrong.returncode, "refused the login" in wrong.stderr) == (1, True)
        nobody = holdfast(*arguments)
        advice = "give --username NAME, and its password in $HOLDFAST_PASSWORD"
        assert (nobody.returncode, advice in nobody.stderr) == (1, True)


# The command.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users"


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str, said: str = "") -> str:
    """Run ``holdfast user ...``; returns what it prints, errors behind their status."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    status = main(["user", *arguments])
    out, err = capsys.readouterr()
    return out if status == 0 else f"{status}: {err}"


def test_users_are_added_listed_and_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def holdfast(*arguments: str, said: str = "") -> str:
        return run(monkeypatch, capsys, *arguments, said=said)

    assert holdfast("add", str(path), "bob", said="one\n") == f"added bob in {path}\n"
    assert holdfast("add", str(path), "alice", said="two\n") == f"added alice in {path}\n"
    assert holdfast("add", str(path), "bob", said="three") == f"changed the password of bob in {path}\n"
    assert holdfast("list", str(path)) == f"alice  {ITERATIONS} iterations\nbob  {ITERATIONS} iterations\n"
    assert logs_in(UsersFile(path), "bob", "three") == {SCRAM_SHA_256, PLAIN}
    assert holdfast("remove", str(path), "bob") == f"removed bob from {path}\n"
    assert holdfast("list", str(path)) == f"alice  {ITERATIONS} iterations\n"


def test_a_user_is_added_with_a_number_of_iterations(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def holdfast(*arguments: str, said: str = "") -> str:
        return run(monkeypatch, capsys, *arguments, said=said)

    added = holdfast("add", str(path), "alice", "--iterations", "5000", said="one\n")
    assert added == f"added alice in {path}\n"
    assert holdfast("list", str(path)) == "alice  5000 iterations\n"
    assert holdfast("list", str(path), "--json") == '{"user": "alice", "iterations": 5000}\n'
    assert logs_in(UsersFile(path), "alice", "one") == {SCRAM_SHA_256, PLAIN}


@pytest.mark.parametrize("iterations", ["4095", "1000001", "0", "-1", "x", "1e5", ""])
def test_iterations_beyond_the_bounds_are_wrong_usage(
    path: Path, capsys: pytest.CaptureFixture[str], iterations: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["user", "add", str(path), "alice", f"--iterations={iterations}"])

    assert ended.value.code == 2
    assert f"{iterations!r} is invalid: a whole number from 4096 to 1000000" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "said", "reason"),
    [
        (("add", "FILE", "a b"), "x\n", "cannot be used: 1 to 255"),
        (("add", "FILE", "alice"), "", "the password of 'alice' is missing; give it in $HOLDFAST_PASSWORD"),
        (("add", "FILE"), "x\n", "holdfast user add needs a NAME"),
        (("add", "/no/directory/x", "alice"), "x\n", "there is no directory '/no/directory'; make it first"),
        (("remove", "FILE", "alice"), "", "cannot be read"),
        (("list", "FILE"), "", "cannot be read"),
        (("list", "FILE", "--iterations", "5000"), "", "--iterations is for add"),
        (("remove", "FILE", "alice", "--iterations", "5000"), "", "--iterations is for add"),
    ],
)
def test_a_command_that_cannot_be_done_says_why(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
    reason: str,
) -> None:
    given = [str(path) if each == "FILE" else each for each in arguments]
    answer = run(monkeypatch, capsys, *given, said=said)

    assert answer.startswith("1: holdfast: ")
    assert reason in answer
