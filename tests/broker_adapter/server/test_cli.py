"""The command ``holdfast``, as people type it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine import commands as c
from broker_adapter.engine.broker import Broker
from broker_adapter.envelope import AMQP_FORMAT
from broker_adapter.server.cli import main
from broker_adapter.settings import EngineSettings
from sdk import ConnectionFactory, JMSException
from tests.broker_adapter.engine.driving import WAIT, connect
from tests.server_process import ServerProcess


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


def test_a_topic_and_a_subscription_are_what_they_are(server: ServerProcess) -> None:
    for arguments, reason in (
        (("receive", "q", "--subscription", "s"), "cannot subscribe to the queue 'q'"),
        (("purge", "news", "--topic", "--yes"), "a topic keeps no messages of its own"),
        (("purge", "no-such-queue", "--yes"), "there is no queue 'no-such-queue'"),
    ):
        finished = holdfast(*arguments, "--url", server.url)
        assert (finished.returncode, reason in finished.stderr) == (1, True), finished.stderr


def test_a_purge_asks_first(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "asked", "x", *url)
    refused = holdfast("purge", "asked", *url, text="n\n")
    assert (refused.returncode, "nothing dropped" in refused.stdout) == (1, True)
    assert "dropped 1 from asked" in done("purge", "asked", *url, text="y\n")


NASTY = "\x1b[2J\x1b]0;title\x07\r\x9b31m\x7f\u202eright\u2066\u2028\u200f"


def is_harmless(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


def test_what_others_have_sent_does_nothing_to_the_terminal(server: ServerProcess) -> None:
    url, name = ("--url", server.url), f"nasty{NASTY}"
    with ConnectionFactory(server.url).create_connection() as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        for body in (f"text{NASTY}\tline 1\nline 2", f"bytes{NASTY}".encode(), {"map": NASTY}, [NASTY]):
            producer.send(body)
    for printed in (done("browse", name, *url), done("receive", name, *url, "--timeout", "0.3")):
        assert is_harmless(printed.replace("\t", ""))
        assert "text\\x1b[2J" in printed
        assert "\\u202eright\\u2066\\u2028" in printed
        assert "\tline 1\nline 2\n" in printed, "ends of lines and tabs are a text's own"
    assert "nasty\\x1b[2J" in done("stat", *url)
    assert is_harmless(done("stat", *url))
    refused = holdfast("purge", f"no such{name}", "--yes", *url)
    assert refused.returncode == 1
    assert is_harmless(refused.stderr)
    assert is_harmless(done("purge", name, "--yes", *url))


def test_json_has_everything_in_ascii(server: ServerProcess) -> None:
    url, name = ("--url", server.url), f"json{NASTY}"
    done("send", name, f"body{NASTY}é", *url, "--property", f"key={NASTY}")
    for printed in (
        done("browse", name, *url, "--json"),
        done("receive", name, *url, "--json", "--count", "1"),
        done("stat", *url, "--json"),
    ):
        assert printed.isascii()
        assert is_harmless(printed)
        assert "\\u001b[2J" in printed


def test_a_table_stays_in_line_whatever_the_names_are(server: ServerProcess) -> None:
    for name in ("table", f"table{NASTY}"):
        done("send", name, "x", "--url", server.url)
    lines = [line for line in done("stat", "--url", server.url).splitlines() if line.startswith("table")]
    assert len({line.index(" queue ") for line in lines}) == 1
    assert len({len(line) for line in lines}) == 1


def test_messages_are_selected(server: ServerProcess) -> None:
    url = ("--url", server.url)
    for colour in ("red", "blue"):
        done("send", "selected", f"a {colour} one", *url, "--property", f"colour={colour}")
    assert done("browse", "selected", *url, "--selector", "colour = 'blue'") == "a blue one\n"
    assert done("receive", "selected", *url, "--selector", "colour <> 'blue'", "--timeout", "0.3") == "a red one\n"
    wrong = holdfast("receive", "selected", *url, "--selector", "colour =")
    assert (wrong.returncode, "column 9" in wrong.stderr) == (1, True)


def test_dead_letters_are_put_back(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "DLQ", "x", "y", *url)
    lost = holdfast("redrive", *url)
    assert (lost.returncode, lost.stdout, "2 stay" in lost.stderr) == (1, "put back 0\n", True)
    assert json.loads(done("redrive", "DLQ", *url, "--to", "again", "--count", "1", "--json")) == {
        "moved": 1,
        "left": 0,
        "made": True,
    }
    again = holdfast("redrive", *url, "--to", "again")
    assert (again.returncode, again.stdout, again.stderr) == (0, "put back 1\n", ""), "it was made before"
    assert done("browse", "again", *url) == "x\ny\n"


def test_a_queue_that_a_redrive_makes_is_told(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "dead", "x", *url)
    moved = holdfast("redrive", "dead", *url, "--to", "misspelt")
    assert (moved.returncode, moved.stdout) == (0, "put back 1\n")
    assert moved.stderr == "the queue 'misspelt' did not exist, and was made\n"
    assert "it is made, and that is told" in " ".join(done("redrive", "--help").split())


def test_what_a_redrive_leaves_is_told_by_where_it_was_to_go(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "leftover", "x", "y", *url)
    for to in ("temporary-queue/x", "leftover"):
        left = holdfast("redrive", "leftover", *url, "--to", to)
        assert (left.returncode, left.stdout) == (1, "put back 0\n")
        assert left.stderr.startswith(f"2 stay: the queue {to!r} is full, or cannot have them"), left.stderr
        assert "unknown" not in left.stderr


def test_subscriptions_of_one_name_are_told_apart_by_their_client_ids(server: ServerProcess) -> None:
    for client_id in ("ann", "bob"):
        factory = ConnectionFactory(server.url)
        with factory.create_connection(client_id=client_id) as connection, connection.create_session() as session:
            session.create_durable_consumer(session.create_topic("shares"), "reader")
    url = ("--url", server.url)
    done("send", "shares", "--topic", "x", "y", *url)
    listed = done("stat", *url).splitlines()
    assert any(line.endswith("client id") for line in listed)
    assert sorted(line.split()[-1] for line in listed if line.startswith("shares:reader")) == ["ann", "bob"]

    purge = ("purge", "shares", *url, "--yes")
    assert "name a subscription" in holdfast(*purge, "--topic").stderr
    assert "needs --topic" in holdfast(*purge, "--subscription", "reader").stderr
    assert "needs --subscription" in holdfast(*purge, "--topic", "--client-id", "ann").stderr
    assert "no subscription 'reader'" in holdfast(*purge, "--topic", "--subscription", "reader").stderr
    named = ("--topic", "--subscription", "reader", "--client-id", "ann")
    assert done(*purge, *named) == "dropped 2 from shares:reader\n"
    left = {
        each["client_id"]: each["messages"]
        for each in json.loads(done("stat", *url, "--json"))["queues"]
        if each["name"] == "shares:reader"
    }
    assert left == {"ann": 0, "bob": 2}


def test_only_queues_are_browsed(server: ServerProcess) -> None:
    refused = holdfast("browse", "news", "--topic", "--url", server.url)
    assert (refused.returncode, "unrecognized arguments: --topic" in refused.stderr) == (2, True)


def test_a_queue_and_a_subscription_are_deleted(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "doomed", "x", "y", *url)
    refused = holdfast("delete", "doomed", *url, text="n\n")
    assert (refused.returncode, "nothing deleted" in refused.stdout) == (1, True)
    assert done("delete", "doomed", *url, "--yes") == "deleted doomed, which had 2 messages\n"
    assert "there is no queue 'doomed'" in holdfast("delete", "doomed", *url, "--yes").stderr
    assert done("browse", "doomed", *url) == ""
    names = {each["name"] for each in json.loads(done("stat", *url, "--json"))["queues"]}
    assert "doomed" not in names, "browsing makes no queue"
    arguments = ("papers", "--topic", *url)
    done("receive", *arguments, "--subscription", "reader", "--timeout", "0.1")
    done("send", *arguments, "hello")
    assert json.loads(done("delete", *arguments, "--subscription", "reader", "--json")) == {"messages": 1}
    assert holdfast("delete", "q", *url, "--subscription", "s", "--yes").returncode == 1
    assert "can be purged" in holdfast("delete", "DLQ", *url, "--yes").stderr


def test_options_of_a_message_are_kept(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "options", "short", *url, "--ttl", "0.001")
    done("send", "options", "late", *url, "--delay", "1000")
    done("send", "options", "x", *url, "--priority", "9", "--ttl", "1000", "--non-persistent", "--property", "a=b=c")
    (line,) = done("browse", "options", *url, "--json").splitlines()
    found = json.loads(line)
    assert (found["body"], found["priority"], found["properties"]) == ("x", 9, {"a": "b=c"})
    assert found["expires_at_ms"] == found["sent_at_ms"] + 1_000_000
    assert found.get("persistent") is False


def test_a_message_above_the_limit_is_refused_and_the_server_goes_on(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--option", "max_message_bytes=1000") as server:
        finished = holdfast("send", "q", "--url", server.url, text="small\n" + "x" * 2000 + "\n")
        assert (finished.returncode, "limit of 1000 bytes" in finished.stderr) == (1, True)
        done("send", "q", "next", "--url", server.url)
        assert done("browse", "q", "--url", server.url).splitlines()[-1] == "next"


def test_a_reader_that_goes_away_loses_nothing(server: ServerProcess) -> None:
    texts = [str(number) for number in range(2000)]
    done("send", "piped", "--url", server.url, text="\n".join(texts) + "\n")
    command = [sys.executable, "-m", "broker_adapter.server.cli", "receive", "piped", "--url", server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(120) == 1
    left = done("browse", "piped", "--url", server.url).splitlines()
    assert left == texts[-len(left) :]
    assert len(left) > 0


def test_a_tool_that_waits_is_told_when_the_server_dies(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        command = [sys.executable, "-m", "broker_adapter.server.cli", "receive", "q", "--timeout", "600"]
        with subprocess.Popen(
            [*command, "--url", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            done("send", "q", "x", "--url", server.url)
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "x\n"  # it waits for the next one
            server.kill()
            assert process.wait(120) == 1
            assert process.stderr.read().startswith("holdfast: ")


def test_a_server_stops_at_an_interrupt_too_and_tells_its_clients(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "broker_adapter.server.cli", "serve", "--data", str(tmp_path / "data")]
    with subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[3]
        told: list[JMSException] = []
        arrived = threading.Event()

        def listener(error: JMSException) -> None:
            told.append(error)
            arrived.set()

        with ConnectionFactory(url).create_connection() as connection:
            connection.exception_listener = listener
            process.send_signal(signal.SIGINT)
            assert arrived.wait(120)
            assert "the server is stopping" in str(told[0])
        assert process.stdout.readline() == "holdfast stopping\n"
        assert process.wait(120) == 0


def test_signals_that_interrupt_each_other_stop_a_server_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "broker_adapter.server.cli", "serve", "--data", str(tmp_path / "data")]
    with subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("holdfast ready")
        for _ in range(100):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "holdfast stopping\n"
        assert process.wait(120) == 0


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
    assert not (tmp_path / "data").exists(), "no store is made where it cannot be served"


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
        (("stat", "--url", "amqp://127.0.0.1:1"), 1, "no connection to 127.0.0.1:1"),
        (("stat", "--url", "amqp://127.0.0.1:1"), 1, "refused, so nothing listens there; start a server"),
        (("stat", "--url", "http://x"), 1, "has none of the forms"),
        (("send",), 2, "required: QUEUE\n"),
        (("quarantine", "list"), 2, "required: DIR\n"),
        (("quarantine",), 2, "required: list|show|put-back|drop, DIR\n"),
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
        (("stat", "extra"), 2, "usage: holdfast stat"),
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
        (("serve", "--data", "x", "--option", "max_resting_messages=1"), 1, "is called 'max_delayed_redeliveries' now"),
        (("stat", "--url", "amqp://127.0.0.1:1?nonsense=1"), 1, "unknown option 'nonsense'; the options here are"),
        (("purge", "q"), 1, "nobody answers the question; give --yes\n"),
        (("delete", "q"), 1, "nobody answers the question; give --yes\n"),
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
        (("stat", "--uri", "amqp://alice:secret@host"), "unrecognized arguments: --uri (is it --url?) amqp://***@host"),
        (("stat", "--uri=amqp://alice:secret@host"), "unrecognized arguments: --uri=amqp://***@host (is it --url?)"),
        (("stat", "--uri", "amqp://alice:se cret@host"), "amqp://***@host"),
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


def test_an_error_is_a_line_and_a_status_of_the_process() -> None:
    finished = holdfast("stat", "--url", "amqp://127.0.0.1:1", "--username", "alice", text="")
    assert finished.returncode == 1
    assert finished.stderr == (
        "holdfast: the password of 'alice' cannot be asked for without a terminal; give it in $HOLDFAST_PASSWORD\n"
    )
    finished = holdfast("nonsense")
    assert (finished.returncode, "invalid choice: 'nonsense'" in finished.stderr) == (2, True)


#: A message of another client that nobody can read: its body is cut short.
UNREADABLE = b"\x00\x53\x77\xa1\x05he"


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose queue has a message between two others that nobody can read."""
    broker = Broker(EngineSettings(), str(tmp_path / "data"))
    client = connect(broker)
    messages = [c.NewMessage(AMQP_FORMAT, body) for body in (b"\x00\x53\x77\xa1\x01a", UNREADABLE)]
    broker.call(c.Enqueue(client, queue("q"), messages), WAIT)
    broker.close()
    with ServerProcess(tmp_path / "data") as server:
        done("send", "q", *map(str, range(300)), "--url", server.url)
        yield server


def deliveries(server: ServerProcess, name: str) -> dict[str, int]:
    """The deliveries that the messages of a queue have had, and the one to come."""
    lines = holdfast("browse", name, "--url", server.url, "--json").stdout.splitlines()
    return {each["body"]: each["delivery_count"] for each in map(json.loads, lines)}


def test_a_message_that_nobody_can_read_is_told_and_the_others_are_received(damaged: ServerProcess) -> None:
    url = ("--url", damaged.url)
    finished = holdfast("receive", "q", *url, "--count", "2")
    assert (finished.returncode, finished.stdout) == (1, "a\n0\n")
    assert "cannot be read" in finished.stderr
    assert "it was rejected" in finished.stderr
    assert "received 2 messages, and 1 that cannot be read" in finished.stderr
    assert deliveries(damaged, "q") == {str(number): 1 for number in range(1, 300)}, "what was prefetched is as it was"
    statistics = json.loads(done("stat", *url, "--json"))
    assert [each["messages"] for each in statistics["queues"] if each["name"] == "DLQ"] == [1]
    assert done("receive", "q", *url, "--timeout", "0.5").splitlines() == [str(number) for number in range(1, 300)]


def test_a_browser_skips_what_nobody_can_read_and_says_so(damaged: ServerProcess) -> None:
    finished = holdfast("browse", "q", "--url", damaged.url, "--count", "2")
    assert (finished.returncode, finished.stdout) == (1, "a\n0\n")
    assert "cannot be read" in finished.stderr
    assert "2 messages, and 1 that cannot be read" in finished.stderr
    assert len(holdfast("browse", "q", "--url", damaged.url).stdout.splitlines()) == 301


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_an_output_that_fails_costs_one_delivery_of_one_message(server: ServerProcess) -> None:
    done("send", "unprinted", *map(str, range(300)), "--url", server.url)
    command = [sys.executable, "-m", "broker_adapter.server.cli", "receive", "unprinted", "--url", server.url]
    for _ in range(2):
        with open("/dev/full", "w") as full:
            finished = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
        assert finished.returncode == 1
        assert finished.stderr.splitlines() == [
            "holdfast: [Errno 28] the output cannot be written: No space left on device"
        ]
    assert deliveries(server, "unprinted") == {"0": 3, **{str(number): 1 for number in range(1, 300)}}


def test_an_interrupt_costs_no_delivery_of_what_was_not_printed(server: ServerProcess) -> None:
    bodies = [f"{number:03}" + "x" * 20_000 for number in range(50)]  # more than a pipe takes
    done("send", "waiting", "--url", server.url, text="\n".join(bodies) + "\n")
    # What is started in the background of a shell ignores interrupts, and so do its children.
    run = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from broker_adapter.server.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", run, "receive", "waiting", "--url", server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(3) == "000"
        # Python does not hear of a signal that comes just before it waits for the pipe: a user presses the keys again.
        for _ in range(12):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
                break
        assert process.wait(10) == 130
    counts = list(deliveries(server, "waiting").values())
    assert len(counts) > 40
    assert counts[1:] == [1] * (len(counts) - 1), "but for the one in hand"


def test_a_reader_that_goes_away_costs_one_delivery_of_one_message(server: ServerProcess) -> None:
    done("send", "left", *map(str, range(300)), "--url", server.url)
    command = [sys.executable, "-m", "broker_adapter.server.cli", "receive", "left", "--url", server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(120) == 1
    assert sorted(deliveries(server, "left").values()) == [*[1] * 299, 2]


def test_who_sends_is_told_what_was_confirmed_before_it_failed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--option", "max_message_bytes=2000") as server:
        url = ("--url", server.url)
        finished = holdfast("send", "q", *url, text="".join(f"{number}\n" for number in range(50)) + "x" * 3000 + "\n")
        assert (finished.returncode, finished.stdout) == (1, "")
        assert "50 of 51 messages were confirmed: the first 50;" in finished.stderr
        assert "larger than the broker's limit" in finished.stderr
        assert len(done("browse", "q", *url).splitlines()) == 50


def test_who_sends_to_a_server_that_dies_is_told_what_was_confirmed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        command = [sys.executable, "-m", "broker_adapter.server.cli", "send", "q", "--url", server.url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
            process.stdin.write("a\nb\n")
            process.stdin.flush()
            while len(holdfast("browse", "q", "--url", server.url).stdout.splitlines()) < 2:
                pass
            server.kill()
            process.stdin.write("c\n")
            _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "2 of" in errors
        assert "were confirmed: the first 2; one that was not may have arrived" in errors


def test_confirmations_are_told_by_how_many_there_were(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--option", "max_message_bytes=2000") as server:
        large = "x" * 3000
        for text, told in (
            (large, "none of 1 message was confirmed; one that was not"),
            (f"a\n{large}\n", "1 of 2 messages was confirmed: the first; one that was not"),
            (f"a\nb\n{large}\n", "2 of 3 messages were confirmed: the first 2; one that was not"),
        ):
            finished = holdfast("send", "q", "--url", server.url, text=text)
            assert (finished.returncode, told in finished.stderr) == (1, True), finished.stderr


def test_a_line_that_cannot_be_decoded_is_told_with_its_number(server: ServerProcess) -> None:
    url = ("--url", server.url)
    for encoding in ("utf-8", "utf-8:surrogateescape"):
        finished = shell("printf 'ok\\ngr\\374n\\n' | \"$@\"", "send", "undecoded", *url, PYTHONIOENCODING=encoding)
        assert finished.returncode == 1
        assert "line 2 of the standard input is not UTF-8, the encoding of the locale" in finished.stderr
    finished = shell("printf 'gr\\374n\\n' | \"$@\"", "send", "undecoded", *url, PYTHONIOENCODING="latin-1")
    assert finished.returncode == 0, finished.stderr
    assert done("browse", "undecoded", *url) == "ok\nok\ngrün\n"


def test_nothing_is_told_of_messages_where_none_was_sent(server: ServerProcess) -> None:
    url = ("--url", server.url)
    for script, reason in (
        ("printf 'gr\\374n\\n' | \"$@\"", "line 1 of the standard input is not UTF-8"),
        ('"$@" <&-', "the standard input cannot be read"),
    ):
        finished = shell(script, "send", "unsent", *url)
        assert finished.returncode == 1
        assert finished.stderr.startswith(f"holdfast: {reason}")
        assert finished.stderr.count("\n") == 1, finished.stderr


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-", "2>/dev/null", "2>&1 >/dev/null | :"])
def test_the_status_says_whether_the_work_was_done_though_nobody_reads_the_notes(
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
            (("receive", made, "--timeout", "0.1"), 0),
            (("receive", made, "--timeout", "0.1", "--count", "1"), 1),
            (("purge", "no such queue", "--yes"), 1),
            (("receive", made, "--count", "0"), 2),
        ):
            shell(status, *arguments, *url, PYTHONUNBUFFERED=unbuffered)
            assert int((tmp_path / "status").read_text()) == expected, arguments


def test_one_is_singular(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "single", "x", *url)
    assert holdfast("browse", "single", *url).stderr == "1 message\n"
    assert done("delete", "single", *url, "--yes") == "deleted single, which had 1 message\n"
    assert done("announce", "h:5672", *url) == "announced: 1 server\n"
    assert done("announce", "", *url) == "announced: 0 servers\n"


def test_the_help_says_where_the_password_comes_from_and_what_the_arguments_are() -> None:
    help_of_user = " ".join(done("user", "--help").split())
    for text in ("$HOLDFAST_PASSWORD", "users file, made where there is none", "name of the user", "--json"):
        assert text in help_of_user
    for command in ("send", "receive", "purge", "delete"):
        assert "the name is that of a topic" in " ".join(done(command, "--help").split())
    for command in ("send", "receive", "stat"):
        assert "a connection that is lost is not restored" in " ".join(done(command, "--help").split())


def test_a_topic_without_its_client_id_says_which_one_is_meant(server: ServerProcess) -> None:
    with (
        ConnectionFactory(server.url).create_connection(client_id="me") as connection,
        connection.create_session() as session,
    ):
        session.create_durable_consumer(session.create_topic("tt"), "dur")
    for command in ("purge", "delete"):
        finished = holdfast(command, "tt", "--topic", "--subscription", "dur", "--yes", "--url", server.url)
        assert finished.returncode == 1
        assert "there is one of client id 'me' (--client-id)" in finished.stderr


def test_what_is_deleted_because_nobody_uses_it_is_logged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = ("--option", "delete_idle_subscriptions_seconds=1", "--option", "delete_idle_queues_seconds=1")
    with ServerProcess(tmp_path / "data", *options, log=log) as server:
        with ConnectionFactory(server.url).create_connection() as connection, connection.create_session() as session:
            news = session.create_topic("news")
            with (
                session.create_shared_durable_consumer(news, "reader"),
                session.create_consumer(session.create_queue("empty")),
            ):
                session.create_producer(news).send(session.create_text_message("a"))
        while log.read_text().count("deleted") < 2:
            time.sleep(0.01)
    assert "subscription 'reader' on 'news' was deleted, with 1 message: nobody has used it for" in log.read_text()
    assert "queue 'empty' was deleted, with 0 messages: nobody has used it for" in log.read_text()


def test_every_tool_takes_json_as_the_readme_says() -> None:
    commands = re.search(r"\{?COMMAND\n(.*)", done("--help"), re.DOTALL)
    assert commands is not None
    names = re.findall(r"^    (\w+)\b", commands[1], re.MULTILINE)
    assert {"serve", "send", "check", "quarantine", "user"} <= set(names)
    assert [name for name in names if "--json" not in done(name, "--help")] == ["serve"]


@pytest.mark.parametrize("streams", ["stdout", "stdout and stderr"])
def test_a_server_whose_output_nobody_reads_stops_cleanly(tmp_path: Path, streams: str) -> None:
    command = [sys.executable, "-m", "broker_adapter.server.cli", "serve", "--data", str(tmp_path / "data")]
    errors = subprocess.PIPE if streams != "stdout" else None
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=errors, text=True
    ) as server:
        assert server.stdout is not None
        assert "holdfast ready" in server.stdout.readline()
        server.stdout.close()
        if server.stderr is not None:
            server.stderr.close()
        server.terminate()
        assert server.wait(WAIT) == 0


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


def test_nothing_is_acknowledged_where_the_standard_output_is_closed(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "closed", "a", "b", *url)
    for arguments in (("receive", "closed"), ("browse", "closed"), ("stat",), ("purge", "closed", "--yes")):
        finished = shell('"$@" >&-', *arguments, *url)
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


def test_a_server_needs_no_standard_streams(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "broker_adapter.server.cli", "serve", "--data", str(tmp_path / "data")]
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    with subprocess.Popen(
        ["sh", "-c", f'exec "$@" --listen 127.0.0.1:{port} 2>{log} <&- >&-', "sh", *command]
    ) as process:
        while holdfast("send", "q", "x", "--url", f"amqp://127.0.0.1:{port}").returncode:
            assert process.poll() is None, log.read_text()
        process.terminate()
        assert process.wait(120) == 0
    assert "Traceback" not in log.read_text()


def test_notes_do_not_go_to_the_output_where_the_standard_error_is_closed(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "noted", "a", *url)
    finished = shell('"$@" 2>&-', "browse", "noted", *url)
    assert (finished.returncode, finished.stdout) == (0, "a\n")


def test_a_standard_input_that_is_closed_is_told_in_words(server: ServerProcess, tmp_path: Path) -> None:
    url = ("--url", server.url)
    for arguments, reason in (
        (("send", "q", *url), "the standard input cannot be read: Bad file descriptor; give the texts as arguments"),
        (("purge", "q", *url), "nobody answers the question; give --yes"),
        (("user", "add", str(tmp_path / "users"), "alice"), "the password of 'alice' is missing; give it in"),
    ):
        finished = shell('"$@" <&-', *arguments)
        assert (finished.returncode, "Traceback" in finished.stderr) == (1, False), arguments
        assert reason in finished.stderr


def test_what_the_encoding_of_the_output_has_not_is_escaped(server: ServerProcess) -> None:
    url, name = ("--url", server.url), "straße"
    done("send", name, "grün", "日本", *url)
    done("send", "ascii", "grün", "日本", *url)
    assert "stra\\xdfe" in done("stat", *url, PYTHONIOENCODING="ascii")
    assert "\\u65e5\\u672c\n" in shell('"$@" | tail -n 1', "browse", "ascii", *url, PYTHONIOENCODING="latin-1").stdout
    assert done("receive", "ascii", *url, "--timeout", "0.3", PYTHONIOENCODING="ascii") == "gr\\xfcn\n\\u65e5\\u672c\n"
    assert "stra\\xdfe" in holdfast("purge", f"no {name}", "--yes", *url, PYTHONIOENCODING="ascii").stderr
