"""The arguments of ``holdfast``: wrong usage, help, what cannot be decoded."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.server.cli import main
from broker_adapter.server.cli.parser import parse
from tests.broker_adapter.server.cli.running import done, holdfast, shell
from tests.server_process import ServerProcess


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("serve", "--data", "x", "--option", "nonsense=1"), 1, "with one of the names max_message_bytes"),
        (
            ("serve", "--data", "x", "--option", "max_destination=10"),
            1,
            "one of the names max_destinations (the most similar), max_me",
        ),
        (("serve", "--data", "x", "--option", "max_message_bytes=many"), 1, "'many' is not a number: a whole one\n"),
        (("serve", "--data", "x", "--option", "max_queue_messages=x"), 1, "'x' is not a number: a whole one, or none"),
        (("serve", "--data", __file__, "--listen", "127.0.0.1:0"), 1, f"{__file__!r} is a file; give a directory"),
        (("serve", "--data", "x", "--listen", "nowhere"), 1, "HOST:PORT"),
        (
            ("stat", "--url", "amqp://127.0.0.1:1"),
            1,
            "no connection to 127.0.0.1:1: nothing listens there; correct host",
        ),
        (("stat", "--url", "amqp://127.0.0.1:1"), 1, "DIR --listen 127.0.0.1:1 (--url or $HOLDFAST_URL names another"),
        (("stat", "--url", "http://x"), 1, "has none of the forms"),
        (("send",), 2, "required: QUEUE\n"),
        (("quarantine", "list"), 2, "required: DIR\n"),
        (("quarantine",), 2, "required: list|show|put-back|drop, DIR\n"),
        (
            ("check", "--url", "amqp://x", "--option", "max_store_bytes=1"),
            1,
            "--option is for the directory of a store",
        ),
        (("compact", "x", "--option", "max_stor_bytes=1"), 1, "names max_store_bytes (the most similar), "),
        (("quarantine", "list", "x", "foo"), 1, "list takes no RECORD and no --all"),
        (("quarantine", "list", "x", "--all"), 1, "list takes no RECORD and no --all"),
        (("quarantine", "drop", "x", "--all", "--queue", "q"), 1, "--queue is for put-back"),
        (("receive", "t", "--topic", "--subscription", ""), 1, "subscription name '' is not a string of at least one"),
        (("purge", "t", "--topic", "--subscription", "", "--yes"), 1, "subscription name '' is not a string"),
        (("delete", "t", "--topic", "--subscription", "", "--yes"), 1, "subscription name '' is not a string"),
        (("receive", "q", "--subscripton", "s"), 2, "usage: holdfast receive"),
        (
            ("receive", "q", "--subscripton", "s"),
            2,
            "unrecognized arguments: --subscripton (is it --subscription?) s\n",
        ),
        (("stat", "q", "extra"), 2, "usage: holdfast stat"),
        (("send", "q", "--count", "0"), 2, "invalid"),
        (("send", "q", "x", "--count", "many"), 2, "'many' is invalid: a whole number from 1 on"),
        (("send", "q", "x", "--ttl", "-1"), 2, "'-1' is invalid: seconds from 0"),
        (("send", "q", "x", "--ttl", "0"), 2, "at least 0.001 seconds; without --ttl a message never expires"),
        (("send", "q", "x", "--ttl", "0.0001"), 2, "'0.0001' is invalid: at least 0.001 seconds"),
        (("send", "q", "x", "--delay", "inf"), 2, "seconds from 0"),
        (("receive", "q", "--timeout", "nan"), 2, "seconds from 0"),
        (("receive", "q", "--timeout", "soon"), 2, "seconds from 0"),
        (("send", "q", "x", "--property", "k"), 2, "'k' is not of the form NAME=VALUE"),
        (("send", "q", "x", "--property", "=v"), 2, "NAME=VALUE"),
        (("send", "q", "x", "--property", "a b=1"), 2, "property name 'a b' is not an identifier"),
        (("send", "q", "x", "--property", "a-b=1"), 2, "property name 'a-b' is not an identifier"),
        (("send", "q", "x", "--property", "NULL=1"), 2, "property name 'NULL' is not an identifier"),
        (("send", "q", "x", "--property", "JMSXGroupID=1"), 2, "property name 'JMSXGroupID' is reserved"),
        (("send", "q", "x", "--property", "JMSPriority=1"), 2, "'JMSPriority' is a header, not a property; use --pri"),
        (("send", "q", "x", "--property", "JMSExpiration=1"), 2, "is a header, not a property; use --ttl"),
        (("send", "q", "x", "--property", "JMSDeliveryTime=1"), 2, "is a header, not a property; use --delay"),
        (("send", "q", "x", "--property", "JMSDeliveryMode=1"), 2, "not a property; use --non-persistent"),
        (("send", "q", "x", "--priority", "12"), 2, "priority"),
        (("send", "q", "x", "--nonsense"), 2, "--nonsense"),
        (("serve", "--data", "x", "--option", "max_nonsense=1"), 1, "is not NAME=VALUE with one of the names"),
        (("stat", "--url", "amqp://127.0.0.1:1?nonsense=1"), 1, "unknown option 'nonsense'; the options here are"),
        (
            ("purge", "q"),
            2,
            "holdfast purge: error: cannot ask without a terminal: drop all messages of 'q'? give --yes\n",
        ),
        (
            ("delete", "q"),
            2,
            "holdfast delete: error: cannot ask without a terminal: delete 'q' with all its messages? give --yes\n",
        ),
        (("serve", "--data", "x", "--listen", "127.0.0.1:99999"), 1, "HOST:PORT"),
        (("serve", "--data", "x", "--listen", "127.0.0.1:0", "--users", "/no/file"), 1, "holdfast user add"),
        (("serve", "--data", "x", "--tls-certificate", "/no/file"), 1, "--tls-certificate '/no/file' cannot be read"),
        (
            ("serve", "--data", "x", "--tls-certificate", __file__, "--tls-key", "/no/key"),
            *(1, "--tls-key '/no/key' cannot be read: No such file"),
        ),
        (
            ("serve", "--data", "x", "--tls-certificate", __file__),
            1,
            f"the certificate in {__file__!r}, with its key in",
        ),
        (("serve", "--data", "x", "--tls-key", "key.pem"), 1, "--tls-key needs --tls-certificate: without a"),
        (("serve", "--data", "x", "--listen", "192.0.2.1:0", "--insecure"), 1, "address of this machine"),
        (("stat", "--url", "embedded:/no/store"), 1, "there is no store in '/no/store'"),
        (("browse", "q", "--url", "embedded:/no/store"), 1, "there is no store in '/no/store'"),
        (("purge", "q", "--yes", "--url", "embedded:/no/store"), 1, "there is no store in '/no/store'"),
        (("serve", "--data", "/dev/null/x", "--listen", "127.0.0.1:0"), 1, "'/dev/null' is a file; give a directory"),
        (("user", "add", "file"), 1, "needs a NAME"),
        ((), 2, "COMMAND"),
    ],
)
def test_wrong_usage_says_what_is_right(
    arguments: tuple[str, ...],
    status: int,
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)  # some of them make a store before they fail
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    try:
        found: Any = main(arguments)
    except SystemExit as error:
        found = error.code
    assert found == status
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ("regions", "--uri", "amqp://alice:secret@host"),
            "unrecognized arguments: --uri (is it --url?) amqp://***@host",
        ),
        (("regions", "--uri=amqp://alice:secret@host"), "unrecognized arguments: --uri=amqp://***@host (is it --url?)"),
        (("regions", "--uri", "amqp://alice:se cret@host"), "amqp://***@host"),
        (("amqp://alice:secret@host",), "invalid choice: 'amqp://***@host'"),
        (("receive", "q", "--count", "amqp:alice:secret@host"), "'amqp:***@host' is invalid"),
        (
            ("stat", "--url", "failover:(tcp://alice:secret,secret@host)"),
            "'failover:(tcp://***@host)' is not understood",
        ),
        (("serve", "--data", "x", "--listen", "amqp://alice:secret@127.0.0.1:0"), "'amqp://***@127.0.0.1:0' is not of"),
        (("announce", "amqp://alice:secret@h:1"), "'amqp://***@h:1' has a user; write HOST:PORT,HOST:PORT"),
        (("announce", "a:1,amqp://alice:secret,secret@h:1"), "has a user; write HOST:PORT,HOST:PORT"),
        (("serve", "--data", "x", "--failover-servers", "alice:secret,secret@h:1"), "has a user; write HOST:PORT,HOST"),
    ],
)
def test_no_error_has_a_password_of_a_url(
    arguments: tuple[str, ...],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):
        assert main(arguments) == 1
    told = capsys.readouterr().err
    assert "cret" not in told
    assert reason in told
    assert not list(tmp_path.iterdir()), "nothing was done"


def test_arguments_that_cannot_be_decoded_are_named(server: ServerProcess) -> None:
    url = ("--url", server.url)
    text = '"$@" "$(printf \'gr\\374n\')"'
    for arguments, name in (
        (("send", "q"), "TEXT"),
        (("send", "q", "x", "--json"), "TEXT"),
        (("send",), "QUEUE"),
        (("receive",), "QUEUE"),
        (("delete", "--yes"), "QUEUE"),
        (("redrive",), "QUEUE"),
        (("redrive", "--to"), "--to"),
        (("receive", "q", "--selector"), "--selector"),
        (("receive", "t", "--topic", "--subscription"), "--subscription"),
        (("purge", "t", "--topic", "--subscription", "s", "--client-id"), "--client-id"),
        (("stat", "--username"), "--username"),
        (("announce",), "LIST"),
    ):
        finished = shell(text, *arguments[:1], *url, *arguments[1:])
        assert finished.returncode == 2, arguments
        assert f"error: argument {name}: 'gr\\xfcn' is not UTF-8, the encoding of the locale; " in finished.stderr
    for value, shown in (("a=\\374", "a=\\xfc"), ("\\374=a", "\\xfc=a")):
        finished = shell(f'"$@" "$(printf \'{value}\')"', "send", "q", "x", *url, "--property")
        assert finished.returncode == 2
        assert f"argument --property: '{shown}' is not UTF-8" in finished.stderr


def test_an_argument_that_cannot_be_decoded_is_told_without_its_password() -> None:
    script = '"$@" "$(printf \'amqp://alice:secr\\374t@host\')"'
    finished = shell(script, "stat", "--url")
    assert finished.returncode == 2
    assert "argument --url: 'amqp://***@host' is not UTF-8, the encoding of the locale; " in finished.stderr
    script = 'HOLDFAST_PASSWORD="$(printf \'secr\\374t\')" "$@"'
    for arguments in (("stat", "--url", "embedded:", "--username", "alice"), ("user", "add", "users", "alice")):
        finished = shell(script, *arguments)
        assert finished.returncode == 1
        assert finished.stderr.startswith("holdfast: $HOLDFAST_PASSWORD is not UTF-8, the encoding of the locale; ")
        assert "secr" not in finished.stderr
    for encoding in ("utf-8", "utf-8:surrogateescape"):
        script = "printf 'secr\\374t\\n' | \"$@\""
        finished = shell(script, "user", "add", "users", "alice", HOLDFAST_PASSWORD="", PYTHONIOENCODING=encoding)
        assert finished.returncode == 1
        assert finished.stderr.startswith(
            "holdfast: the password of 'alice' is not UTF-8, the encoding of the locale; "
        )


def test_a_file_may_have_a_name_that_cannot_be_decoded(tmp_path: Path) -> None:
    users = f'cd {tmp_path} && "$@" "$(printf \'gr\\374n\')"'
    finished = shell(f"{users} alice", "user", "add", HOLDFAST_PASSWORD="secret")
    assert finished.returncode == 0, finished.stderr
    assert [os.fsencode(each.name) for each in tmp_path.iterdir()] == [b"gr\xfcn"]
    assert shell(users, "user", "list").stdout.startswith("alice  ")


def test_arguments_may_stand_behind_options(server: ServerProcess, tmp_path: Path) -> None:
    url = ("--url", server.url)
    done("send", "behind", "a", *url, "b", "--json", "-5", "-", "--priority", "7", "--", "-c", "--json")
    assert done("browse", "behind", *url).splitlines() == ["a", "b", "-5", "-", "-c", "--json"]
    users = str(tmp_path / "users")
    assert json.loads(done("user", "add", users, "--json", "alice", HOLDFAST_PASSWORD="secret"))["user"] == "alice"
    assert json.loads(done("user", "--json", "remove", users, "alice"))["user"] == "alice"
    done("redrive", *url, "--to", "behind")
    assert "there is no queue 'nowhere'" in holdfast("redrive", "--to", "behind", "nowhere", *url).stderr
    for arguments, reason in (
        (("user", "add", users, "--json", "alice", "bob"), "unrecognized arguments: alice bob\n"),
        (("user", "add", users, "alice", "--json", "bob"), "unrecognized arguments: bob\n"),
        (("send", "q", *url, "--jsn", "--", "x"), "unrecognized arguments: --jsn (is it --json?)"),
    ):
        finished = holdfast(*arguments)
        assert (finished.returncode, reason in finished.stderr) == (2, True), finished.stderr
    assert not done("user", "list", users)


def test_the_help_says_where_the_password_comes_from_and_what_the_arguments_are() -> None:
    help_of_user = " ".join(done("user", "--help").split())
    for text in ("$HOLDFAST_PASSWORD", "users file, made where there is none", "name of the user", "--json"):
        assert text in help_of_user
    for command in ("send", "receive", "purge", "delete"):
        assert "the name is that of a topic" in " ".join(done(command, "--help").split())
    for command in ("send", "receive", "stat"):
        assert "a connection that is lost is not restored" in " ".join(done(command, "--help").split())


def test_every_tool_takes_json_as_the_readme_says() -> None:
    commands = re.search(r"\{?COMMAND\n(.*)", done("--help"), re.DOTALL)
    assert commands is not None
    names = re.findall(r"^    ([\w-]+)", commands[1], re.MULTILINE)
    assert {"serve", "send", "check", "close-client", "quarantine", "user"} <= set(names)
    assert [name for name in names if "--json" not in done(name, "--help")] == ["serve"]


def test_a_url_of_the_environment_that_is_empty_is_as_if_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    default = parse(["stat"]).url
    monkeypatch.setenv("HOLDFAST_URL", "")
    assert parse(["stat"]).url == default == "amqp://127.0.0.1:5672"
    monkeypatch.setenv("HOLDFAST_URL", "amqp://elsewhere")
    assert parse(["stat"]).url == "amqp://elsewhere"
