"""The users file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from broker_adapter.amqp.sasl import PLAIN, SCRAM_SHA_256, ClientLogin, ServerLogin
from broker_adapter.errors import JMSSecurityException
from broker_adapter.mechanisms import ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS
from broker_adapter.server.access import users
from broker_adapter.server.access.users import MAX_NAME_LENGTH, MAX_PASSWORD_LENGTH, UsersFile

GOOD = (
    "alice SCRAM-SHA-256$4096:MDEyMzQ1Njc4OTAxMjM0NQ==$vm+s1q2V5pmcSU8VhFtEX5EVRuJ2SUZpRpqkgI9yPZE=:"
    "3aE93sPcgP1vG9gTeS9GvX3cE4oNqXBMmHyvJWXjNE0="
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users"


def logs_in(file: UsersFile, username: str, password: str) -> set[str]:
    """The mechanisms by which this login succeeds."""
    done = set()
    for mechanism in (SCRAM_SHA_256, PLAIN):
        here, there = ClientLogin((mechanism,), username, password), ServerLogin(file, plain=True)
        for _ in range(4):
            there.receive(here.pending_output())
            here.receive(there.pending_output())
        assert here.done is there.done
        if here.done:
            done.add(mechanism)
    return done


# Who may log in.


def test_a_user_logs_in_by_every_mechanism_and_an_unknown_one_does_not(path: Path) -> None:
    file = UsersFile.open_or_make(path)
    assert file.add("alice", "secret") is True

    for each in (file, UsersFile(path)):
        assert logs_in(each, "alice", "secret") == {SCRAM_SHA_256, PLAIN}
        assert logs_in(each, "alice", "Secret") == set()
        assert logs_in(each, "bob", "secret") == set()
        assert each.names == ["alice"]


@pytest.mark.parametrize("password", ["\x07", "\u0221", "\ud800", "", "x" * 100_000])
def test_a_password_that_no_user_can_have_is_a_wrong_one(path: Path, password: str) -> None:
    file = UsersFile.open_or_make(path)
    file.add("alice", "secret")

    assert file.check("alice", password) is False
    assert file.check("nobody", password) is False


def test_the_password_is_not_in_the_file_and_only_its_owner_may_read_it(path: Path) -> None:
    UsersFile.open_or_make(path).add("alice", "secret")

    assert b"secret" not in path.read_bytes()
    assert path.read_text().startswith(f"alice SCRAM-SHA-256${ITERATIONS}:")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("iterations", [MIN_ITERATIONS, MIN_ITERATIONS + 1, MAX_ITERATIONS])
def test_a_user_has_as_many_iterations_as_the_administrator_says(path: Path, iterations: int) -> None:
    file = UsersFile.open_or_make(path)
    file.add("alice", "secret", iterations)
    file.add("bob", "secret")

    for each in (file, UsersFile(path)):
        assert each.iterations == {"alice": iterations, "bob": ITERATIONS}
        assert each.verifier("alice")[3] == iterations
        assert logs_in(each, "alice", "secret") == {SCRAM_SHA_256, PLAIN}


@pytest.mark.parametrize("iterations", [-1, 0, MIN_ITERATIONS - 1, MAX_ITERATIONS + 1])
def test_iterations_that_a_client_does_not_do_are_refused(path: Path, iterations: int) -> None:
    file = UsersFile.open_or_make(path)
    with pytest.raises(JMSSecurityException, match="iterations are from 4096 to 1000000"):
        file.add("alice", "secret", iterations)

    assert file.names == []


def test_a_new_password_has_the_default_iterations_where_nothing_else_is_said(path: Path) -> None:
    file = UsersFile.open_or_make(path)
    file.add("alice", "old", MIN_ITERATIONS)
    file.add("alice", "new")

    assert file.iterations == {"alice": ITERATIONS}


def test_the_same_password_is_stored_differently_each_time(path: Path) -> None:
    file = UsersFile.open_or_make(path)
    file.add("alice", "secret")
    file.add("bob", "secret")
    alice, bob = (line.split(" ")[1] for line in path.read_text().splitlines())

    assert alice != bob


def test_a_password_is_changed_and_a_user_removed(path: Path) -> None:
    file = UsersFile.open_or_make(path)
    file.add("alice", "old")
    file.add("bob", "x")
    assert file.add("alice", "new") is False
    assert (logs_in(file, "alice", "old"), bool(logs_in(file, "alice", "new"))) == (set(), True)

    file.remove("alice")
    assert logs_in(file, "alice", "new") == set()
    assert UsersFile(path).names == ["bob"]
    with pytest.raises(JMSSecurityException, match="there is no user 'alice' in"):
        file.remove("alice")


def test_a_name_has_one_form_whoever_types_it(path: Path) -> None:
    file = UsersFile.open_or_make(path)
    composed, decomposed = "J\u00fcrgen", "Ju\u0308rgen"
    file.add(decomposed, "secret")

    assert file.names == [composed]
    assert logs_in(file, decomposed, "secret") == logs_in(file, composed, "secret") == {SCRAM_SHA_256, PLAIN}
    assert file.add(composed, "other") is False
    file.remove(decomposed)
    assert UsersFile(path).names == []


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a\tb", "a\nb", "#a", "a\0", "a\x7f", "\ud800", "x" * (MAX_NAME_LENGTH + 1), "a\u2028b"]
)
def test_a_name_that_would_break_the_file_is_refused(path: Path, name: str) -> None:
    file = UsersFile.open_or_make(path)
    with pytest.raises(JMSSecurityException, match="cannot be used: 1 to 255 printable characters"):
        file.add(name, "secret")

    assert path.read_bytes() == b""
    assert logs_in(file, name or "x", "secret") == set()


@pytest.mark.parametrize("name", ["a=b", "a,b", "a:b", "a$b", "a@b.c", "x" * MAX_NAME_LENGTH, "\u540d"])
def test_a_name_may_have_any_other_character(path: Path, name: str) -> None:
    UsersFile.open_or_make(path).add(name, "secret")

    assert logs_in(UsersFile(path), name, "secret") == {SCRAM_SHA_256, PLAIN}


def test_a_password_has_a_length(path: Path) -> None:
    file = UsersFile.open_or_make(path)
    file.add("alice", "x" * MAX_PASSWORD_LENGTH)
    assert logs_in(file, "alice", "x" * MAX_PASSWORD_LENGTH) == {SCRAM_SHA_256, PLAIN}
    for password in ("", "x" * (MAX_PASSWORD_LENGTH + 1)):
        with pytest.raises(JMSSecurityException, match="a password has 1 to 1024 characters"):
            file.add("alice", password)
    for password in ("a\0b", "\ud800", "\x07"):
        with pytest.raises(JMSSecurityException, match="the password cannot be used"):
            file.add("alice", password)


def test_an_unknown_user_has_a_verifier_like_the_others_and_stays_the_same(path: Path) -> None:
    path.write_text(GOOD + "\n")
    first, second = UsersFile(path), UsersFile(path)
    salt, stored, key, iterations = first.verifier("nobody")

    assert (len(salt), len(stored), len(key), iterations) == (16, 32, 32, 4096)
    assert first.verifier("nobody") == second.verifier("nobody")
    assert first.verifier("nobody") != first.verifier("somebody")
    assert first.verifier("alice")[0] == b"0123456789012345"


# The file.


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("alice", "not of the form"),
        ("alice secret", "not of the form"),
        (GOOD.replace("SHA-256", "SHA-512"), "not of the form"),
        (GOOD.replace("4096", "4095"), "iterations are from 4096 to 1000000"),
        (GOOD.replace("4096", "1000001"), "iterations are from 4096 to 1000000"),
        (GOOD.replace("4096", "123456789"), "not of the form"),
        (GOOD.replace("MDEyMzQ1Njc4OTAxMjM0NQ==", "MDEyMzQ="), "a salt has 12 to 32 bytes"),
        (GOOD.replace("vm+s", "vm+"), "padding|multiple of 4|a key 32"),
        (GOOD.replace("vm+s", "vm!s"), "base64|a key 32"),
        (GOOD.replace("alice", "ali\u0301ce"), "is no user name; add the user again"),
        (GOOD + " trailing", "not of the form"),
        (GOOD.replace("\n", "") + "\n" + GOOD, "names 'alice' again"),
    ],
)
def test_a_wrong_line_is_named(path: Path, line: str, reason: str) -> None:
    path.write_text(f"# a comment\n\n  \n{line}\n", encoding="utf-8")
    with pytest.raises(JMSSecurityException, match=rf"^line [45] of users file '{path}' .*({reason})"):
        UsersFile(path)


def test_comments_and_empty_lines_are_passed_over(path: Path) -> None:
    path.write_text(f"# users that may log in\n\n{GOOD}\r\n   \n")

    assert UsersFile(path).names == ["alice"]


def test_a_file_that_is_not_there_or_not_text_is_told(path: Path, tmp_path: Path) -> None:
    with pytest.raises(JMSSecurityException, match=r"cannot be read: .*make one with: holdfast user add"):
        UsersFile(path)
    with pytest.raises(JMSSecurityException, match="cannot be read"):
        UsersFile(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(JMSSecurityException, match="cannot be read"):
        UsersFile(path)


def test_a_file_is_read_up_to_its_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "MAX_FILE_BYTES", len(GOOD) + 1)
    path.write_text(GOOD + "\n")
    assert UsersFile(path).names == ["alice"]
    path.write_text(GOOD + "\n\n")
    with pytest.raises(JMSSecurityException, match=f"larger than the limit of {len(GOOD) + 1} bytes"):
        UsersFile(path)
    monkeypatch.setattr(users, "MAX_FILE_BYTES", 1000)
    with pytest.raises(JMSSecurityException, match="larger than the limit"):
        UsersFile("/dev/zero")  # a size that is not known beforehand


def test_a_change_that_cannot_be_written_changes_nothing(path: Path, tmp_path: Path) -> None:
    file = UsersFile.open_or_make(path)
    file.add("alice", "secret")
    before = path.read_bytes()
    path.unlink()
    path.mkdir()  # so that nothing can take its place
    (path / "x").touch()
    with pytest.raises(OSError):
        file.add("bob", "secret")

    assert file.names == ["alice"]
    assert sorted(os.listdir(tmp_path)) == ["users"]
    assert before


def test_a_link_is_followed_and_stays(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    UsersFile.open_or_make(real)
    path.symlink_to(real)
    UsersFile(path).add("alice", "secret")

    assert path.is_symlink()
    assert UsersFile(real).names == ["alice"]


# A server that runs.


def test_a_change_of_the_file_holds_from_the_next_login_on(path: Path) -> None:
    UsersFile.open_or_make(path).add("alice", "secret")
    serving = UsersFile(path)
    assert logs_in(serving, "bob", "secret") == set()

    UsersFile(path).add("bob", "secret")
    UsersFile(path).remove("alice")
    assert logs_in(serving, "bob", "secret") == {SCRAM_SHA_256, PLAIN}
    assert logs_in(serving, "alice", "secret") == set()


def test_a_file_that_became_wrong_or_went_away_changes_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    UsersFile.open_or_make(path).add("alice", "secret")
    serving = UsersFile(path)
    for breaks in (lambda: path.write_text("nonsense\n"), path.unlink):
        breaks()
        assert logs_in(serving, "alice", "secret") == {SCRAM_SHA_256, PLAIN}
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "the users stay as they were: line 1 of users file" in caplog.text

    UsersFile.open_or_make(path).add("alice", "new")
    assert logs_in(serving, "alice", "new") == {SCRAM_SHA_256, PLAIN}


def test_names_and_passwords_beyond_the_longest_are_nobodys(tmp_path: Path) -> None:
    users = UsersFile.open_or_make(tmp_path / "users")
    users.add("alice", "x" * MAX_PASSWORD_LENGTH)
    assert users.check("alice", "x" * MAX_PASSWORD_LENGTH)
    assert not users.check("alice", "x" * (MAX_PASSWORD_LENGTH + 1))
    assert not users.check("a" * (MAX_NAME_LENGTH + 1), "x")
    assert not users.has("a" * (MAX_NAME_LENGTH + 1))
