"""The command ``holdfast``, as people type it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server_process import ServerProcess


def holdfast(*arguments: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broker_adapter.server.cli", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def done(*arguments: str, **options: Any) -> str:
    finished = holdfast(*arguments, **options)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("cli") / "data") as server:
        yield server


def test_messages_are_sent_browsed_counted_received_and_purged(server: ServerProcess) -> None:
    url = ("--url", server.url)
    assert done("send", "orders", "a", "b", *url, "--count", "2", "--property", "k=v") == "sent 4 to orders\n"
    assert done("browse", "orders", *url) == "a\na\nb\nb\n"
    browsed = [json.loads(line) for line in done("browse", "orders", *url, "--json", "--count", "2").splitlines()]
    assert [(each["body"], each["properties"], each["delivery_count"]) for each in browsed] == [
        ("a", {"k": "v"}, 1),
        ("a", {"k": "v"}, 1),
    ]
    statistics = json.loads(done("stat", *url, "--json"))
    (orders,) = [each for each in statistics["queues"] if each["name"] == "orders"]
    assert orders["messages"] == 4
    assert "orders" in done("stat", *url)
    assert done("receive", "orders", *url, "--count", "1") == "a\n"
    assert json.loads(done("receive", "orders", *url, "--count", "1", "--json"))["body"] == "a"
    assert done("purge", "orders", *url, "--yes") == "dropped 2 from orders\n"
    assert done("receive", "orders", *url, "--timeout", "0.2") == ""


def test_lines_of_the_standard_input_are_sent(server: ServerProcess) -> None:
    url = ("--url", server.url)
    assert json.loads(done("send", "lines", *url, "--json", text="one\ntwo\n")) == {"sent": 2}
    assert done("receive", "lines", *url, "--timeout", "0.3") == "one\ntwo\n"


def test_a_topic_is_received_through_a_subscription(server: ServerProcess) -> None:
    arguments = ("news", "--topic", "--url", server.url)
    assert done("receive", *arguments, "--subscription", "reader", "--timeout", "0.1") == ""
    done("send", *arguments, "hello")
    assert done("receive", *arguments, "--subscription", "reader", "--timeout", "0.3") == "hello\n"


def test_what_did_not_come_is_exit_status_1(server: ServerProcess) -> None:
    finished = holdfast("receive", "empty", "--url", server.url, "--count", "1", "--timeout", "0.1")
    assert finished.returncode == 1


def test_a_server_stops_cleanly_and_keeps_what_it_has(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        done("send", "q", "kept", "--url", server.url)
        assert server.stop() == 0
        server.start()
        done("send", "q", "kept too", "--url", server.url)
        server.kill()
        server.start()
        assert done("browse", "q", "--url", server.url) == "kept\nkept too\n"


def test_users_are_asked_for_their_password(tmp_path: Path) -> None:
    users = str(tmp_path / "users")
    assert done("user", "add", users, "alice", text="secret\n") == f"added alice in {users}\n"
    assert done("user", "add", users, "bob", text="other\n") == f"added bob in {users}\n"
    assert done("user", "remove", users, "bob") == f"removed bob from {users}\n"
    assert done("user", "list", users) == "alice\n"
    with ServerProcess(tmp_path / "data", "--users", users) as server:
        arguments = ("stat", "--url", server.url)
        done(*arguments, "--username", "alice", HOLDFAST_PASSWORD="secret")
        wrong = holdfast(*arguments, "--username", "alice", HOLDFAST_PASSWORD="guess")
        assert (wrong.returncode, "refused the login" in wrong.stderr) == (1, True)
        nobody = holdfast(*arguments)
        assert (nobody.returncode, "user name and a password" in nobody.stderr) == (1, True)


def test_it_serves_over_tls_with_users(tmp_path: Path) -> None:
    certificate = tmp_path / "server"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{certificate}.key", "-out", f"{certificate}.crt"]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    users = str(tmp_path / "users")
    done("user", "add", users, "alice", text="secret\n")
    arguments = ("--tls-certificate", f"{certificate}.crt", "--tls-key", f"{certificate}.key", "--users", users)
    with ServerProcess(tmp_path / "data", *arguments) as server:
        url = f"amqps://127.0.0.1:{server.port}"
        tools = ("--username", "alice", "--url", f"{url}?tls_ca_file={certificate}.crt")
        assert done("send", "q", "safe", *tools, HOLDFAST_PASSWORD="secret") == "sent 1 to q\n"
        assert done("receive", "q", "--timeout", "0.3", *tools, HOLDFAST_PASSWORD="secret") == "safe\n"
        stranger = holdfast("stat", "--url", url)
        assert (stranger.returncode, "TLS" in stranger.stderr) == (1, True)
        plain = holdfast("stat", "--url", f"amqp://127.0.0.1:{server.port}?connect_timeout_seconds=2")
        assert (plain.returncode, "Traceback" in plain.stderr) == (1, False)


def test_it_refuses_to_listen_where_others_reach_it_without_users_and_tls(tmp_path: Path) -> None:
    finished = holdfast("serve", "--data", str(tmp_path / "data"), "--listen", "0.0.0.0:0")
    assert finished.returncode == 1
    assert "without users (--users) and TLS (--tls-certificate); give them, or say --insecure" in finished.stderr
    assert not (tmp_path / "data").exists()


def test_a_store_in_use_and_a_port_in_use_are_named(server: ServerProcess, tmp_path: Path) -> None:
    finished = holdfast("serve", "--data", str(server.data), "--listen", "127.0.0.1:0")
    assert (finished.returncode, f"in use by process {server.pid}" in finished.stderr) == (1, True)
    finished = holdfast("serve", "--data", str(tmp_path / "data"), "--listen", f"127.0.0.1:{server.port}")
    assert (finished.returncode, "choose another" in finished.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("serve", "--data", "x", "--option", "nonsense=1"), 1, "with one of the names max_message_bytes"),
        (("serve", "--data", "x", "--option", "max_message_bytes=many"), 1, "not a number"),
        (("serve", "--data", "x", "--listen", "nowhere"), 1, "HOST:PORT"),
        (("stat", "--url", "amqp://127.0.0.1:1"), 1, "no connection to 127.0.0.1:1"),
        (("stat", "--url", "http://x"), 1, "has none of the forms"),
        (("send",), 2, "QUEUE"),
        (("send", "q", "--count", "0"), 2, "invalid"),
        (("user", "add", "file"), 1, "needs a NAME"),
        ((), 2, "COMMAND"),
    ],
)
def test_wrong_usage_says_what_is_right(arguments: tuple[str, ...], status: int, reason: str) -> None:
    finished = holdfast(*arguments)
    assert finished.returncode == status
    assert reason in finished.stderr
    assert "Traceback" not in finished.stderr
