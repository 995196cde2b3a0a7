"""Apache Qpid JMS against our server: what a JMS programmer does, in Java (``tests/interop/java``)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdk import (
    BytesMessage,
    ConnectionFactory,
    DeliveryMode,
    MapMessage,
    Message,
    ObjectMessage,
    Session,
    StreamMessage,
    TextMessage,
)
from tests.interop.install import HERE
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SCENARIOS = [
    scenario
    for file in sorted((HERE / "java").glob("*.java"))
    for scenario in re.findall(r"static void test(\w+)\(", file.read_text())
]
WAIT = 10.0


def java(path: str, program: str, *arguments: str) -> str:
    """The output of a Java program."""
    done = subprocess.run(
        ["java", "-Xmx512m", "-cp", path, program, *arguments], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def results(java_path: str, server: ServerProcess) -> dict[str, str]:
    """What became of each scenario: all of them run in one virtual machine."""
    lines = java(java_path, "Scenarios", server.url).splitlines()
    return {line.split()[1].rstrip(":"): line for line in lines if line.startswith(("PASS", "FAIL"))}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_java_programmer_finds_what_jms_promises(results: dict[str, str], scenario: str) -> None:
    assert results.get(scenario) == f"PASS {scenario}"


@pytest.fixture
def session(server: ServerProcess) -> Iterator[Session]:
    with ConnectionFactory(server.url).create_connection() as connection:
        connection.start()
        with connection.create_session() as session:
            yield session


def test_messages_of_java_arrive_in_python_as_they_were(
    java_path: str, server: ServerProcess, session: Session
) -> None:
    java(java_path, "Exchange", "send", server.url, "from-java")
    consumer = session.create_consumer(session.create_queue("from-java"))
    messages: list[Message] = []
    for _ in range(7):
        message = consumer.receive(timeout=WAIT)
        assert message is not None
        messages.append(message)
    text, bytes_id, plain, data, mapped, stream, typed = messages
    assert isinstance(text, TextMessage)
    assert text.text == "grüße 😀"
    assert dict(text.properties) == {
        "boolean": True,
        "byte": -7,
        "short": 30000,
        "int": -70000,
        "long": -(2**63),
        "float": 1.5,
        "double": 3.141592653589793,
        "string": "x",
        "nothing": None,
    }
    assert (text.correlation_id, text.type, text.group_id, text.group_sequence) == ("c-1", "greeting", "g", 3)
    assert text.reply_to == session.create_topic("answers")
    assert (text.priority, text.delivery_mode, text.delivery_count) == (7, DeliveryMode.PERSISTENT, 1)
    assert text.message_id is not None
    assert text.message_id.startswith("ID:")
    assert text.sent_at_ms is not None
    assert text.expires_at_ms == text.sent_at_ms + 60_000
    assert isinstance(bytes_id, TextMessage)
    assert (bytes_id.text, bytes_id.correlation_id) == (None, b"\x01\x02")
    assert type(plain) is Message
    assert isinstance(data, BytesMessage)
    assert data.body == b"\x00\x01\xff"
    assert isinstance(mapped, MapMessage)
    assert mapped.body == {
        "boolean": True,
        "byte": -7,
        "char": "ü",
        "double": 0.25,
        "long": 2**63 - 1,
        "string": "x",
        "bytes": b"\x09",
        "nothing": None,
    }
    assert isinstance(stream, StreamMessage)
    assert stream.body == [1, "two", 3.5, b"\x04", None]
    assert isinstance(typed, ObjectMessage)
    assert typed.body == ["o", 1]


def test_messages_of_python_arrive_in_java_as_they_were(
    java_path: str, server: ServerProcess, session: Session
) -> None:
    queue = session.create_queue("from-python")
    producer = session.create_producer(queue)
    text = session.create_text_message("grüße 😀")
    text.correlation_id = "c-1"
    text.reply_to = session.create_topic("answers")
    text.type = "greeting"
    text.group_id = "g"
    text.properties.update({"flag": True, "number": -(2**40), "ratio": 0.25, "string": "x", "nothing": None})
    producer.send(text, priority=7, time_to_live=60, delivery_mode=DeliveryMode.NON_PERSISTENT)
    for body in (
        session.create_message(),
        b"\x00\x01\xff",
        {"i": 5, "s": "x", "b": b"\x09", "n": None},
        [1, "two", 3.5],
    ):
        producer.send(body)
    producer.send(session.create_object_message(["o", 1]))
    lines = java(java_path, "Exchange", "receive", server.url, queue.name, "6").splitlines()
    kinds = [line.partition(" | ")[0] for line in lines]
    assert kinds == [
        "text grüße 😀",
        "message",
        "bytes 0001ff",
        "map {b=byte[]:09, i=Long:5, n=null, s=String:x}",
        "stream [Long:1, String:two, Double:3.5]",
        "object ArrayList:[o, 1]",
    ]
    assert (
        f"id={text.message_id} correlation=c-1 replyTo=answers type=greeting mode=1 priority=7 expires=true" in lines[0]
    )
    assert "count=1 properties={JMSXDeliveryCount=Integer:1, JMSXGroupID=String:g, " in lines[0]
    assert (
        "flag=Boolean:true, nothing=null, number=Long:-1099511627776, ratio=Double:0.25, string=String:x}" in lines[0]
    )
    assert "correlation=null replyTo=null type=null mode=2 priority=4 expires=false" in lines[1]


def test_java_logs_in_with_a_password(java_path: str, tmp_path: Path) -> None:
    users = tmp_path / "users"
    command = [sys.executable, "-m", "broker_adapter.server.cli", "user", "add", str(users), "ada"]
    subprocess.run(command, input="secret\n", text=True, check=True, capture_output=True)
    with ServerProcess(tmp_path / "data", "--users", str(users)) as server:
        for mechanism in ("SCRAM-SHA-256", "PLAIN"):
            url = f"{server.url}?amqp.saslMechanisms={mechanism}"
            assert java(java_path, "Exchange", "login", url, "ada", "secret").strip() == "welcome"
            refused = java(java_path, "Exchange", "login", url, "ada", "wrong").strip()
            assert refused in ("JMSSecuritySaslException", "JmsConnectionFailedException", "JMSSecurityException")


def test_java_goes_on_with_the_second_server_when_the_first_is_killed(java_path: str, tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "a") as first,
        ServerProcess(tmp_path / "b") as second,
        subprocess.Popen(
            ["java", "-cp", java_path, "Exchange", "listen", f"failover:({first.url},{second.url})", "q"],
            stdout=subprocess.PIPE,
            text=True,
        ) as program,
    ):
        assert program.stdout is not None
        lines = map(str.strip, program.stdout)
        assert next(lines) == "ready"
        send(first, "one")
        assert next(lines) == "one"
        first.kill()
        assert [next(lines), next(lines)] == ["interrupted", "restored"]
        send(second, "two", "end")
        assert [next(lines), next(lines)] == ["two", "end"]
        assert program.wait(WAIT) == 0


def send(server: ServerProcess, *bodies: str) -> None:
    """Send to the queue q of a server."""
    with ConnectionFactory(server.url).create_connection() as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_queue("q"))
        for body in bodies:
            producer.send(body)
