"""The commands of ``holdfast`` for a running server."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sdk import ConnectionFactory
from tests.broker_adapter.engine.driving import WAIT
from tests.broker_adapter.server.cli.running import NASTY, answered, done, holdfast
from tests.server_process import ServerProcess


def test_a_topic_and_a_subscription_are_what_they_are(server: ServerProcess) -> None:
    for arguments, reason in (
        (("receive", "q", "--subscription", "s"), "--subscription is of a topic: give --topic as well"),
        (("purge", "news", "--topic", "--yes"), "a topic keeps no messages of its own"),
        (("purge", "no-such-queue", "--yes"), "there is no queue 'no-such-queue'"),
    ):
        finished = holdfast(*arguments, "--url", server.url)
        assert (finished.returncode, reason in finished.stderr) == (1, True), finished.stderr


def test_a_purge_asks_first(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "asked", "x", *url)
    assert answered("n", "purge", "asked", *url).returncode == 1
    dropped = answered("y", "purge", "asked", *url)
    assert (dropped.returncode, dropped.stdout) == (0, "dropped 1 from asked\n")


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        (("purge", "kept"), "drop all messages of 'kept'?"),
        (("delete", "kept", "--json"), "delete 'kept' with all its messages?"),
        (("close-client", "desk"), "close durable client 'desk', and drop all events that wait for it?"),
        (
            ("close-query", "desk", "q", "--json"),
            "close query 'q' of 'desk', and drop the events that wait for it only?",
        ),
    ],
)
def test_what_drops_messages_needs_a_terminal_or_yes(
    server: ServerProcess, arguments: tuple[str, ...], question: str
) -> None:
    finished = holdfast(*arguments, "--url", server.url, text="y\n")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert f"cannot ask without a terminal: {question} give --yes\n" in finished.stderr


def test_a_queue_and_a_topic_are_shown_with_their_settings_and_where_these_are_from(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('[[policy]]\nmatch = "shop.>"\nmax_messages = 7\nwhen_full = "refuse"\n')
    given = ("--config", str(file), "--option", "max_deliveries=4")
    with ServerProcess(tmp_path / "data", *given) as server:
        url = ("--url", server.url)
        done("send", "shop.orders", "x", *url)
        with ConnectionFactory(server.url).create_connection(client_id="me") as connection:
            session = connection.create_session()
            session.create_durable_consumer(session.create_topic("shop.news"), "reader")
        shown = [line.split(maxsplit=2) for line in done("stat", "shop.orders", *url).splitlines()]
        begin = shown.index(["setting", "value", "from"])
        assert shown[begin + 1 : begin + 3] == [
            ["max_deliveries", "4", "option max_deliveries"],
            ["redelivery_delay_seconds", "0.25", "default"],
        ]
        assert ["max_messages", "7", "policy 'shop.>'"] in shown
        of_topic = json.loads(done("stat", "shop.news", *url, "--json"))["settings"]
        assert (of_topic["max_messages"], of_topic["when_full"]) == ([7, "policy 'shop.>'"], ["block", "default"])
        assert "from" not in done("stat", "shop.news:reader", *url), "its topic has them"


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_at_a_terminal_the_question_is_no_part_of_the_output(server: ServerProcess, more: tuple[str, ...]) -> None:
    refused = answered("n", "purge", "kept", "--url", server.url, *more)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "drop all messages of 'kept'? [y/N] nothing dropped\n"


def test_the_end_of_the_input_at_a_terminal_is_a_no(server: ServerProcess) -> None:
    refused = answered("\x04", "purge", "kept", "--url", server.url)
    assert (refused.returncode, "nothing dropped" in refused.stderr) == (1, True)


def test_a_table_stays_in_line_whatever_the_names_are(server: ServerProcess) -> None:
    for name in ("table", f"table{NASTY}"):
        done("send", name, "x", "--url", server.url)
    lines = [line for line in done("stat", "--url", server.url).splitlines() if line.startswith("table")]
    assert len({line.index(" queue ") for line in lines}) == 1
    assert len({len(line) for line in lines}) == 1


def test_one_queue_is_shown_alone(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "shown", "abc", *url)
    done("send", "shown too", "x", *url)
    above, _, settings = done("stat", "shown", *url).partition("\n\n")
    assert settings.startswith("setting")
    shown = dict(line.split("  ", 1) for line in above.splitlines())
    figures = {name: value.strip() for name, value in shown.items()}
    assert [figures[name] for name in ("name", "kind", "messages", "consumers", "dropped")] == [
        *("shown", "queue", "1", "0", "0"),
    ]
    assert re.fullmatch(r"[0-9.]+ s", figures["oldest"])
    (line,) = done("stat", "shown", *url, "--json").splitlines()
    found = json.loads(line)
    assert (found["name"], found["messages"]) == ("shown", 1)
    assert 0 <= found["oldest_age_ms"] < 1000 * WAIT


def test_a_queue_that_does_not_exist_is_not_shown(server: ServerProcess) -> None:
    for more in ((), ("--json",)):
        finished = holdfast("stat", "typo", "--url", server.url, *more)
        assert (finished.returncode, finished.stdout) == (1, "")
        assert finished.stderr == (
            "holdfast: there is no queue, topic or subscription 'typo'; a subscription is TOPIC:NAME\n"
        )


def test_a_subscription_is_shown_by_its_topic_and_name(server: ServerProcess) -> None:
    factory = ConnectionFactory(server.url)
    for client_id in ("ann", "bob"):
        with factory.create_connection(client_id=client_id) as connection, connection.create_session() as session:
            session.create_durable_consumer(session.create_topic("prices"), "reader")
    shown = done("stat", "prices:reader", "--url", server.url)
    assert [line.split()[-1] for line in shown.splitlines() if line.startswith("client id")] == ["ann", "bob"]


def test_the_table_of_queues_has_the_age_of_the_oldest_message(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "aged", "x", *url)
    lines = done("stat", *url).splitlines()
    (heading,) = [line for line in lines if line.startswith("name  ")]
    (row,) = [line for line in lines if line.startswith("aged ")]
    assert "oldest" in heading
    assert re.search(r" [0-9.]+ s\b", row)


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


def test_a_queue_and_a_subscription_are_deleted(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "doomed", "x", "y", *url)
    refused = answered("n", "delete", "doomed", *url)
    assert (refused.returncode, "nothing deleted" in refused.stderr) == (1, True)
    assert done("delete", "doomed", *url, "--yes") == "deleted doomed, which had 2 messages\n"
    assert "there is no queue 'doomed'" in holdfast("delete", "doomed", *url, "--yes").stderr
    assert "there is no queue 'doomed'" in holdfast("browse", "doomed", *url).stderr
    names = {each["name"] for each in json.loads(done("stat", *url, "--json"))["queues"]}
    assert "doomed" not in names, "browsing makes no queue"
    arguments = ("papers", "--topic", *url)
    done("receive", *arguments, "--subscription", "reader", "--create", "--timeout", "0.1")
    done("send", *arguments, "hello")
    assert json.loads(done("delete", *arguments, "--subscription", "reader", "--yes", "--json")) == {"messages": 1}
    assert holdfast("delete", "q", *url, "--subscription", "s", "--yes").returncode == 1
    assert "can be purged" in holdfast("delete", "DLQ", *url, "--yes").stderr


def test_a_command_for_queues_says_where_the_name_is_that_of_a_region(server: ServerProcess) -> None:
    url = ("--url", server.url)
    with ConnectionFactory(server.url).create_connection() as connection:
        connection.create_session().create_region("rates")
    for command in (("delete", "--yes"), ("purge", "--yes"), ("browse",), ("receive",)):
        finished = holdfast(command[0], "rates", *command[1:], *url)
        assert "there is no queue 'rates': it is a region" in finished.stderr
        assert (finished.returncode, finished.stdout) == (1, "")


def test_one_is_singular(server: ServerProcess) -> None:
    url = ("--url", server.url)
    done("send", "single", "x", *url)
    assert holdfast("browse", "single", *url).stderr == "1 message\n"
    assert done("delete", "single", *url, "--yes") == "deleted single, which had 1 message\n"
    assert done("announce", "h:5672", *url) == "announced: 1 server\n"
    assert done("announce", "", *url) == "announced: 0 servers\n"


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
