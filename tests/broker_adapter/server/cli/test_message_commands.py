"""The commands ``holdfast send``, ``receive`` and ``browse``."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import AMQP_FORMAT
from broker_adapter.settings import EngineSettings
from sdk import ConnectionFactory
from tests.broker_adapter.engine.driving import WAIT, connect
from tests.broker_adapter.server.cli.running import NASTY, deliveries, done, holdfast, shell
from tests.server_process import ServerProcess


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
    assert done("receive", *arguments, "--subscription", "reader", "--create", "--timeout", "0.1") == ""
    done("send", *arguments, "hello")
    assert done("receive", *arguments, "--subscription", "reader", "--timeout", "0.3") == "hello\n"


def test_what_did_not_come_is_exit_status_1(server: ServerProcess) -> None:
    arguments = ("receive", "empty", "--create", "--url", server.url, "--count", "1", "--timeout", "0.1")
    assert holdfast(*arguments).returncode == 1


@pytest.mark.parametrize("command", ["receive", "browse"])
def test_a_misspelt_queue_is_told_and_not_made(server: ServerProcess, command: str) -> None:
    url = ("--url", server.url)
    for more in ((), ("--json",)):
        finished = holdfast(command, "typo", *url, *more)
        assert (finished.returncode, finished.stdout) == (1, "")
        assert "there is no queue 'typo'" in finished.stderr
    names = [each["name"] for each in json.loads(done("stat", *url, "--json"))["queues"]]
    assert "typo" not in names


def test_a_misspelt_subscription_is_told_and_not_made(server: ServerProcess) -> None:
    """It would keep all messages of its topic from then on."""
    finished = holdfast("receive", "news", "--topic", "--subscription", "typo", "--url", server.url)
    assert (finished.returncode, finished.stdout) == (1, "")
    assert "there is no subscription 'typo'" in finished.stderr
    assert "on 'news'" in finished.stderr
    names = [each["name"] for each in json.loads(done("stat", "--url", server.url, "--json"))["queues"]]
    assert "news:typo" not in names


def test_a_plain_topic_is_not_created(server: ServerProcess) -> None:
    finished = holdfast("receive", "news", "--topic", "--create", "--url", server.url)
    assert finished.returncode == 1
    assert "--create makes a queue, or with --subscription a subscription; a topic needs none" in finished.stderr


def test_a_browser_shows_why_a_message_is_a_dead_letter(server: ServerProcess) -> None:
    def fail(message: object) -> None:
        raise ValueError(f"no such article{NASTY}")

    done("send", "failing", "the body", "--url", server.url)
    with ConnectionFactory(f"{server.url}?max_redeliveries=0").create_connection() as connection:
        session = connection.create_session()
        session.create_consumer(session.create_queue("failing")).listener = fail
        connection.start()
        deadline = time.monotonic() + WAIT
        while "the body" not in (shown := done("browse", "DLQ", "--url", server.url)):
            assert time.monotonic() < deadline
    body, why = shown.splitlines()
    assert body == "the body"
    assert why.startswith("    from 'failing': rejected by a consumer; ValueError: no such article")
    assert is_harmless(shown)
    assert done("receive", "DLQ", "--url", server.url) == "the body\n", "what is piped on is the body"


def test_what_another_site_has_refused_is_shown_with_the_reason_alone(server: ServerProcess) -> None:
    url = ("--url", server.url)
    refused = {"type": "TEXT", "body": "x", "properties": {"JMS_HOLDFAST_DEAD_LETTER_REASON": "region:r: too large"}}
    done("send", "refused", "--json-line", json.dumps(refused), *url)
    assert done("browse", "refused", *url) == "x\n    region:r: too large\n"


def test_receive_makes_a_queue_when_asked_to(server: ServerProcess) -> None:
    url = ("--url", server.url)
    assert "; --create makes it" in holdfast("receive", "made", *url).stderr
    assert done("receive", "made", *url, "--create", "--timeout", "0") == ""
    assert done("receive", "made", *url, "--timeout", "0") == "", "it is there now"


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


def test_messages_are_selected(server: ServerProcess) -> None:
    url = ("--url", server.url)
    for colour in ("red", "blue"):
        done("send", "selected", f"a {colour} one", *url, "--property", f"colour={colour}")
    assert done("browse", "selected", *url, "--selector", "colour = 'blue'") == "a blue one\n"
    assert done("receive", "selected", *url, "--selector", "colour <> 'blue'", "--timeout", "0.3") == "a red one\n"
    wrong = holdfast("receive", "selected", *url, "--selector", "colour =")
    assert (wrong.returncode, "column 9" in wrong.stderr) == (1, True)


def test_only_queues_are_browsed(server: ServerProcess) -> None:
    refused = holdfast("browse", "news", "--topic", "--url", server.url)
    assert (refused.returncode, "unrecognized arguments: --topic" in refused.stderr) == (2, True)


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
        command = [sys.executable, "-m", "broker_adapter.server.cli", "receive", "q", "--create", "--timeout", "600"]
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


#: An unreadable message of another client: its body is cut short.
UNREADABLE = b"\x00\x53\x77\xa1\x05he"


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose queue has an unreadable message between two others."""
    broker = Broker(EngineSettings(), str(tmp_path / "data"))
    client = connect(broker)
    messages = [c.NewMessage(AMQP_FORMAT, body) for body in (b"\x00\x53\x77\xa1\x01a", UNREADABLE)]
    broker.call(c.Enqueue(client, queue("q"), messages), WAIT)
    broker.close()
    with ServerProcess(tmp_path / "data") as server:
        done("send", "q", *map(str, range(300)), "--url", server.url)
        yield server


def test_an_unreadable_message_is_reported_and_the_others_are_received(damaged: ServerProcess) -> None:
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


def test_a_browser_skips_unreadable_messages_and_says_so(damaged: ServerProcess) -> None:
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
        # Python does not notice a signal that comes just before it waits for the pipe: a user presses the keys again.
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


def test_a_failed_send_reports_what_was_confirmed_before(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--option", "max_message_bytes=2000") as server:
        url = ("--url", server.url)
        finished = holdfast("send", "q", *url, text="".join(f"{number}\n" for number in range(50)) + "x" * 3000 + "\n")
        assert (finished.returncode, finished.stdout) == (1, "")
        assert "50 of 51 messages were confirmed: the first 50;" in finished.stderr
        assert "larger than the broker's limit" in finished.stderr
        assert len(done("browse", "q", *url).splitlines()) == 50


def test_a_send_to_a_server_that_is_killed_reports_what_was_confirmed(tmp_path: Path) -> None:
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
