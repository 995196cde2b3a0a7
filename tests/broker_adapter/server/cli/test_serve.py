"""The command ``holdfast serve``."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sdk import ConnectionFactory, JMSException
from tests.broker_adapter.engine.driving import WAIT
from tests.broker_adapter.server.cli.running import done, holdfast
from tests.server_process import ServerProcess


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
        while process.poll() is None:  # the last ones come as Python ends
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "holdfast stopping\n"
        assert process.returncode == 0


def test_a_server_stops_cleanly_and_keeps_what_it_has(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        done("send", "q", "kept", "--url", server.url)
        assert server.stop() == 0
        server.start()
        done("send", "q", "kept too", "--url", server.url)
        server.kill()
        server.start()
        assert done("browse", "q", "--url", server.url) == "kept\nkept too\n"


def make_certificate(path: Path) -> None:
    """Make a certificate for this address, and its key, in the files ``server.crt`` and ``server.key``."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    files = ["-keyout", str(path / "server.key"), "-out", str(path / "server.crt")]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)


def test_it_serves_over_tls_with_users(tmp_path: Path) -> None:
    certificate = tmp_path / "server"
    make_certificate(tmp_path)
    users = str(tmp_path / "users")
    done("user", "add", users, "alice", text="secret\n")
    arguments = ("--tls-certificate", f"{certificate}.crt", "--tls-key", f"{certificate}.key", "--users", users)
    with ServerProcess(tmp_path / "data", *arguments) as server:
        url = f"amqps://127.0.0.1:{server.port}"
        tools = ("--username", "alice", "--url", f"{url}?tls_ca_file={certificate}.crt")
        assert done("send", "q", "safe", *tools, HOLDFAST_PASSWORD="secret") == "sent 1 to q\n"
        assert done("receive", "q", "--timeout", "0.3", *tools, HOLDFAST_PASSWORD="secret") == "safe\n"
        untrusting = holdfast("stat", "--url", url)
        assert (untrusting.returncode, "TLS" in untrusting.stderr) == (1, True)
        plain = holdfast("stat", "--url", f"amqp://127.0.0.1:{server.port}?connect_timeout_seconds=2")
        assert (plain.returncode, "Traceback" in plain.stderr) == (1, False)


def test_a_hangup_has_it_read_its_users_and_certificates_again(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    users, log = tmp_path / "users", tmp_path / "log"
    done("user", "add", str(users), "alice", text="secret\n")
    arguments = ("--tls-certificate", str(tmp_path / "server.crt"), "--tls-key", str(tmp_path / "server.key"))

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", server.port))

    def logged(text: str, times: int) -> None:
        while log.read_text().count(text) < times:
            assert server.is_running
            time.sleep(0.01)

    with ServerProcess(tmp_path / "data", *arguments, "--users", str(users), log=log) as server:
        first = shown()
        factory = ConnectionFactory(f"amqps://127.0.0.1:{server.port}?tls_ca_file={tmp_path / 'server.crt'}")
        with factory.create_connection("alice", "secret") as connection, connection.create_session() as session:
            producer = session.create_producer(session.create_queue("q"))
            producer.send("before")
            make_certificate(tmp_path)
            done("user", "add", str(users), "bob", text="secret\n")
            server.signal(signal.SIGHUP)
            logged("certificates were read again", 1)
            logged(f"users file {users} was read again: 2 users", 1)
            while (second := shown()) == first:
                pass
            for broken in (tmp_path / "server.key", users):
                broken.write_text("garbage")
            server.signal(signal.SIGHUP)
            logged("the certificates stay as they were", 1)
            logged("the users stay as they were", 1)
            assert shown() == second
            producer.send("after")
        with factory.create_connection("bob", "secret") as connection, connection.create_session() as session:
            assert [each.body for each in session.create_browser(session.create_queue("q"))] == ["before", "after"]
        assert server.stop() == 0


def test_a_hangup_of_a_server_without_users_and_certificates_is_logged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ServerProcess(tmp_path / "data", log=log) as server:
        server.signal(signal.SIGHUP)
        while "SIGHUP" not in log.read_text():
            time.sleep(0.01)
        done("send", "q", "x", "--url", server.url)
        assert server.stop() == 0


def test_a_hangup_has_it_read_the_settings_of_queues_again_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    log, file = tmp_path / "log", tmp_path / "holdfast.toml"
    policy = '[[policy]]\nmatch = "small.*"\nwhen_full = "refuse"\nmax_messages = '
    file.write_text(f"{policy}1\n")

    def reload(text: str, said: str, times: int = 1) -> None:
        file.write_text(text)
        server.signal(signal.SIGHUP)
        while log.read_text().count(said) < times:
            assert server.is_running
            time.sleep(0.01)

    def sent(*bodies: str) -> bool:
        finished = holdfast("send", "small.q", *bodies, "--url", server.url)
        assert (finished.returncode == 0) != ("policy 'small.*'" in finished.stderr)
        return finished.returncode == 0

    with ServerProcess(tmp_path / "data", "--config", str(file), log=log) as server:
        assert [sent("1"), sent("2")] == [True, False]
        reload(f"{policy}2\n", "was read again: 1 [[policy]]")
        assert [sent("2"), sent("3")] == [True, False]
        reload(f"{policy}x\n", f"the settings of queues stay as they were: {file}:4: Invalid value")
        reload(f"{policy}0\n", f"the settings of queues stay as they were: {file}:4: max_messages=0 is below")
        assert not sent("3")
        reload("", "was read again: 0 [[policy]]")
        assert sent("3")
        assert log.read_text().count("stay as they were") == 2
        assert "Traceback" not in log.read_text()
        assert server.stop() == 0


def test_a_server_does_not_start_with_a_broken_file_that_the_environment_names(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("[[policy]]\n")
    finished = holdfast("serve", "--data", str(tmp_path / "data"), HOLDFAST_CONFIG=str(file))
    assert (finished.returncode, f"{file}:1: match=None is not a pattern" in finished.stderr) == (1, True)
    assert not (tmp_path / "data").exists()


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


def test_what_is_deleted_because_it_is_not_in_use_is_logged(tmp_path: Path) -> None:
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
    assert "subscription 'reader' on 'news' was deleted, with 1 message: it was not used for" in log.read_text()
    assert "queue 'empty' was deleted, with 0 messages: it was not used for" in log.read_text()


@pytest.mark.parametrize("streams", ["stdout", "stdout and stderr"])
def test_a_server_whose_output_is_not_read_stops_cleanly(tmp_path: Path, streams: str) -> None:
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


def test_a_server_leaves_the_state_of_its_store_out_of_garbage_collection() -> None:
    program = """
import gc
from broker_adapter.server.cli import serve
state = [[number] for number in range(10_000)]
serve._collect_rarely()
state.append([0])
print(len(gc.get_objects()) < 100, gc.get_freeze_count() > 10_000, gc.isenabled(), gc.get_threshold() > (700, 10, 10))
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["True"] * 4
