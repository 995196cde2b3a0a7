"""The command ``holdfast``, as people type it: its streams, its errors and its status."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_adapter.server.cli.parser import parse
from broker_adapter.server.cli.program import in_options
from tests.broker_adapter.server.cli.running import deliveries, done, holdfast, shell
from tests.server_process import ServerProcess


def test_an_error_is_a_line_and_a_status_of_the_process() -> None:
    finished = holdfast("stat", "--url", "amqp://127.0.0.1:1", "--username", "alice", text="")
    assert finished.returncode == 1
    assert finished.stderr == (
        "holdfast: the password of 'alice' cannot be asked for without a terminal; give it in $HOLDFAST_PASSWORD\n"
    )
    finished = holdfast("nonsense")
    assert (finished.returncode, "invalid choice: 'nonsense'" in finished.stderr) == (2, True)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("the argument 'batch_bytes' of operation 'x' is not 1", "--batch-bytes is not 1"),
        ("the argument 'batch_ms' is 9", "--batch-seconds (in milliseconds) is 9"),
        (
            "the argument 'queue' of operation 'x' is, as queue 'queue', too long",
            "--queue is, as queue 'queue', too long",
        ),
        ("take batch_conflation away, or my_batch_bytes", "take --conflate away, or my_batch_bytes"),
        (
            "there is no queue 'batch_bytes', and gateway's batch_bytes",
            "there is no queue 'batch_bytes', and gateway's --batch-bytes",
        ),
        ("the selector \"batch_ms = 'a'\" is wrong", "the selector \"batch_ms = 'a'\" is wrong"),
        ("the argument 'name' is wrong", "NAME is wrong"),
        ("the argument 'destinations' is wrong", "the argument 'destinations' is wrong"),
    ],
)
def test_an_error_of_a_server_names_the_options_of_the_command(said: str, shown: str) -> None:
    parser = parse(["gateway", "create", "g", "--to", "amqp://far", "--queue", "q"]).parser
    assert in_options(said, parser) == shown


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-", "2>/dev/null", "2>&1 >/dev/null | :"])
def test_the_status_says_whether_the_work_was_done_though_the_notes_are_not_read(
    server: ServerProcess, stream: str, tmp_path: Path
) -> None:
    url = ("--url", server.url)
    status = f'{{ "$@"; echo $? >{tmp_path}/status; }} {stream}'
    for number, unbuffered in enumerate(("", "1")):
        letters, made = f"letters {number} {stream}", f"made {number} {stream}"
        done("send", letters, "a", *url)
        for arguments, expected in (
            (("browse", letters), 0),
            (("redrive", letters, "--to", made), 0),
            (("receive", made, "--timeout", "60", "--count", "1"), 0),
            (("receive", made, "--timeout", "0.1"), 0),
            (("receive", made, "--timeout", "0.1", "--count", "1"), 1),
            (("purge", "no such queue", "--yes"), 1),
            (("receive", made, "--count", "0"), 2),
        ):
            shell(status, *arguments, *url, PYTHONUNBUFFERED=unbuffered)
            assert int((tmp_path / "status").read_text()) == expected, arguments


def test_nothing_is_acknowledged_where_the_standard_output_is_closed(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "closed", "a", "b", *url)
    for arguments in (("receive", "closed"), ("browse", "closed"), ("stat",), ("purge", "closed", "--yes")):
        finished = shell('"$@" >&-', *arguments, *url, new=True)
        assert finished.returncode == 1, arguments
        assert finished.stderr == (
            "holdfast: the standard output is closed, so nothing was done; open it (>/dev/null discards the output)\n"
        )
    assert deliveries(server, "closed") == {"a": 1, "b": 1}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_every_command_tells_an_output_that_fails(server: ServerProcess, tmp_path: Path) -> None:
    url = ("--url", server.url)
    done("send", "full", "a", *url)
    users = str(tmp_path / "users")
    done("user", "add", users, "alice", text="secret\n")
    for arguments in (
        ("browse", "full", *url),
        ("stat", *url),
        ("stat", "--json", *url),
        ("check", *url),
        ("send", "full", "b", *url),
        ("user", "list", users),
        ("--version",),
        ("send", "--help"),
    ):
        finished = shell('"$@" >/dev/full', *arguments, PYTHONUNBUFFERED="")  # argparse tells no error of a write
        assert finished.returncode == 1, arguments
        assert finished.stderr == "holdfast: [Errno 28] the output cannot be written: No space left on device\n"


def test_notes_do_not_go_to_the_output_where_the_standard_error_is_closed(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "noted", "a", *url)
    finished = shell('"$@" 2>&-', "browse", "noted", *url, new=True)
    assert (finished.returncode, finished.stdout) == (0, "a\n")


def test_a_standard_input_that_is_closed_is_told_in_words(server: ServerProcess, tmp_path: Path) -> None:
    url = ("--url", server.url)
    for arguments, status, reason in (
        (("send", "q", *url), 1, "the standard input cannot be read: Bad file descriptor; give the texts as arguments"),
        (("purge", "q", *url), 2, "cannot ask without a terminal: drop all messages of 'q'? give --yes"),
        (("user", "add", str(tmp_path / "users"), "alice"), 1, "the password of 'alice' is missing; give it in"),
    ):
        finished = shell('"$@" <&-', *arguments, new=True)
        assert (finished.returncode, "Traceback" in finished.stderr) == (status, False), arguments
        assert reason in finished.stderr


def test_what_the_encoding_of_the_output_has_not_is_escaped(server: ServerProcess) -> None:
    url, name = ("--url", server.url), "straße"
    done("send", name, "grün", "日本", *url)
    done("send", "ascii", "grün", "日本", *url)
    assert "stra\\xdfe" in done("stat", *url, PYTHONIOENCODING="ascii")
    assert "\\u65e5\\u672c\n" in shell('"$@" | tail -n 1', "browse", "ascii", *url, PYTHONIOENCODING="latin-1").stdout
    assert done("receive", "ascii", *url, "--timeout", "0.3", PYTHONIOENCODING="ascii") == "gr\\xfcn\n\\u65e5\\u672c\n"
    assert "stra\\xdfe" in holdfast("purge", f"no {name}", "--yes", *url, PYTHONIOENCODING="ascii").stderr
