"""The commands of ``holdfast`` for regions, durable clients and their queries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.server.cli import client_commands, main
from sdk import Connection, ConnectionFactory
from tests.broker_adapter.server.cli.running import NASTY, answered, done, holdfast
from tests.server_process import ServerProcess

UNKNOWN = "there is no durable client 'nobody': it has never connected here, or has closed; those that there are: "


@pytest.fixture
def url(server: ServerProcess) -> Iterator[tuple[str, str]]:
    """Of a server that has no durable clients; as arguments."""
    yield ("--url", server.url)
    for each in rows("clients", "--url", server.url):
        done("close-client", "--yes", "--url", server.url, "--", each["client_id"])


def rows(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done(*arguments, "--json").splitlines()]


def connected(url: tuple[str, str], client_id: str, timeout: float | None = 300.0) -> Connection:
    """A durable client that wants all keys of region quotes, and has queries."""
    connection = ConnectionFactory(url[1]).create_connection(client_id=client_id, durable_timeout=timeout)
    connection.start()
    quotes = connection.create_session().create_region("quotes")
    quotes.register_interest(["IBM"], durable=True)
    quotes.create_query("cheap", "price < 10", durable=True).execute()
    return connection


def put(url: tuple[str, str], **prices: float) -> None:
    with ConnectionFactory(url[1]).create_connection() as connection:
        quotes = connection.create_session().create_region("quotes")
        for key, price in prices.items():
            quotes.put(key, {"price": price})


def away(url: tuple[str, str], client_id: str, timeout: float | None = 300.0) -> None:
    """The same, which is away; two events wait for it, one of them for its query only."""
    connected(url, client_id, timeout).close(keep_alive=True)
    put(url, IBM=92.5, SAP=5.0)


def test_clients_are_listed(url: tuple[str, str]) -> None:
    empty = holdfast("clients", *url)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", "0 durable clients\n")
    away(url, "desk-7")
    with connected(url, "desk-8"):
        listed = holdfast("clients", *url)
        head, first, second = (line.split() for line in listed.stdout.splitlines())
        assert listed.stderr == "2 durable clients, for which 2 events wait in all\n"
        assert " ".join(head) == "client id state away size in hand queued removed conflated dropped"
        assert (first[:2], first[-6:]) == (["desk-7", "paused"], ["2", "0", "2", "0", "0", "0"])
        assert (second[:3], second[-6:]) == (["desk-8", "connected", "no"], ["0"] * 6)
        found = rows("clients", *url)
    assert [(each["client_id"], each["size"], each["is_exact"]) for each in found] == [
        ("desk-7", 2, True),
        ("desk-8", 0, True),
    ]
    assert "durable clients      1 paused\n" in done("stat", *url)


def test_a_client_is_shown(url: tuple[str, str]) -> None:
    away(url, "desk-7")
    with connected(url, "desk-7"):
        pass  # it closes, and its queue with it
    assert "'desk-7'" in holdfast("client", "desk-7", *url).stderr
    away(url, "desk-7", None)
    shown = done("client", "desk-7", *url)
    facts, _, interests = shown.partition("\n\n")
    found = {line[:20].strip(): line[21:] for line in facts.splitlines()}
    assert found.pop("away").endswith(" s")
    assert found == {
        "client id": "desk-7",
        "state": "paused",
        "durable timeout": "for ever",
        "conflation": "server",
        "interests": "2",
        "size": "2",
        "in hand": "0",
        "queued": "2",
        "dispatched": "0",
        "removed": "0",
        "again": "0",
        "reconnections": "0",
        "conflated": "0",
        "drained": "0",
        "dropped": "0",
        "while away": "2",
    }
    assert [" ".join(line.split()) for line in interests.splitlines()] == [
        "region interest durable",
        "quotes key: IBM yes",
        "quotes query cheap: price < 10 yes",
    ]
    (plain,) = rows("client", "desk-7", *url)
    assert (plain["size"], plain["timeout_ms"], len(plain["interests"])) == (2, None, 2)


def test_of_many_interests_the_first_thousand_are_shown(url: tuple[str, str]) -> None:
    with connected(url, "desk-7") as connection:
        region = connection.create_session().create_region("quotes")
        region.register_interest([f"key {number}" for number in range(1200)])
        shown = holdfast("client", "desk-7", *url)
        assert shown.stderr == "and 202 more\n"
        assert len(shown.stdout.partition("\n\n")[2].splitlines()) == 1001
        assert "interests            1202\n" in shown.stdout


def test_regions_and_queries_are_listed(url: tuple[str, str]) -> None:
    for name in ("desk-7", "desk-8"):
        away(url, name)
    listed = holdfast("regions", *url)
    assert listed.stderr == "1 region\n"
    head, _ = listed.stdout.splitlines()
    assert " ".join(head.split()) == "region conflates keys clients events"
    (region,) = rows("regions", *url)
    assert (region["name"], region["conflates"], region["keys"], region["clients"]) == ("quotes", False, 2, 2)
    asked = holdfast("queries", *url)
    assert asked.stderr == "2 queries\n"
    assert " ".join(asked.stdout.splitlines()[1].split()) == "desk-7 paused cheap quotes yes price < 10"
    assert [each["client_id"] for each in rows("queries", *url)] == ["desk-7", "desk-8"]
    assert holdfast("queries", *url, "desk-8").stderr == "1 query\n"


def test_the_size_of_a_queue_is_shown(url: tuple[str, str]) -> None:
    away(url, "desk-7")
    assert done("queue-size", "desk-7", *url) == "2\n"
    assert rows("queue-size", "desk-7", *url) == [{"state": "paused", "size": 2, "in_hand": 0, "is_exact": True}]


def test_a_size_that_is_not_exact_is_shown_as_a_bound(url: tuple[str, str]) -> None:
    named = (url[0], f"{url[1]}?event_conflation=true")
    connected(named, "slow").close(keep_alive=True)
    put(url, IBM=92.5)
    put(url, IBM=93.5)
    assert done("queue-size", "slow", *url) == "<=2\n"
    listed = holdfast("clients", *url)
    assert [line.split()[-4] for line in listed.stdout.splitlines()] == ["queued", "<=2"]
    assert listed.stderr == "1 durable client, for which at most 2 events wait in all\n"
    assert "size                 <=2\n" in done("client", "slow", *url)
    assert done("close-client", "slow", *url, "--yes") == "closed slow, for which at most 2 events waited\n"


def test_a_client_is_closed_when_the_user_says_so(url: tuple[str, str]) -> None:
    away(url, "desk-7")
    refused = answered("n", "close-client", "desk-7", *url)
    assert (refused.returncode, "nothing closed" in refused.stderr) == (1, True)
    assert "closed desk-7, for which 2 events waited" in answered("y", "close-client", "desk-7", *url).stdout
    again = holdfast("close-client", "desk-7", *url, "--yes")
    assert (again.returncode, "there is no durable client 'desk-7'" in again.stderr) == (1, True)
    away(url, "desk-7")
    assert rows("close-client", "desk-7", *url, "--yes") == [{"dropped": 2, "is_exact": True}]


def test_a_query_is_closed_when_the_user_says_so(url: tuple[str, str]) -> None:
    away(url, "desk-7")
    refused = answered("n", "close-query", "desk-7", "cheap", *url)
    assert (refused.returncode, "nothing closed" in refused.stderr) == (1, True)
    assert done("close-query", "desk-7", "cheap", *url, "--yes") == "closed query cheap of desk-7; dropped 1 event\n"
    again = holdfast("close-query", "desk-7", "cheap", *url, "--yes")
    assert (again.returncode, "has no query 'cheap'" in again.stderr) == (1, True)
    assert done("queue-size", "desk-7", *url) == "1\n"


def test_a_client_that_is_connected_is_not_closed(url: tuple[str, str]) -> None:
    with connected(url, "desk-7"):
        for arguments in (("close-client", "desk-7"), ("close-query", "desk-7", "cheap")):
            finished = holdfast(*arguments, *url, "--yes")
            assert (finished.returncode, finished.stdout) == (1, "")
            assert "durable client 'desk-7' is connected: this is only done to the queue of a client" in finished.stderr


@pytest.mark.parametrize("command", ["client", "queries", "queue-size", "close-client", "close-query"])
def test_an_unknown_client_is_an_error_that_says_what_to_do(url: tuple[str, str], command: str) -> None:
    arguments = {"close-client": ("nobody", "--yes"), "close-query": ("nobody", "q", "--yes")}
    finished = holdfast(command, *arguments.get(command, ("nobody",)), *url)
    assert (finished.returncode, finished.stdout) == (1, "")
    assert finished.stderr == f"holdfast: {UNKNOWN}request 'clients', or 'holdfast clients'\n"


def test_strange_names_are_escaped_and_tables_stay_in_line(url: tuple[str, str]) -> None:
    strange = f"desk{NASTY}"
    away(url, strange)
    away(url, "-desk")
    listed = done("clients", *url)
    assert len({line.index(" paused ") for line in listed.splitlines()[1:]}) == 1
    shown = [listed, done("client", strange, *url), done("queries", *url), done("queue-size", *url, "--", "-desk")]
    shown.append(holdfast("close-query", strange, NASTY, *url, "--yes").stderr)
    shown.append(done("close-client", strange, *url, "--yes"))
    for text in shown:
        assert not set(text) & (set(NASTY) - set("title right[2Jm031;]")), text


def test_what_has_more_rows_than_a_page_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client_commands, "_PAGE", 2)
    url = ("--url", f"embedded:{tmp_path}")
    names = [f"desk-{number}" for number in range(5)]
    for name in names:
        away(url, name)
    many = "5 durable clients, for which 30 events wait in all"
    for command, counted in (("clients", many), ("queries", "5 queries")):
        assert main([command, *url]) == 0
        output = capsys.readouterr()
        assert [line.split()[0] for line in output.out.splitlines()[1:]] == names
        assert output.err == f"{counted}\n"


def test_a_region_is_made_unless_there_is_one(url: tuple[str, str]) -> None:
    for _ in range(2):
        assert done("create-region", "quotes", *url) == "region quotes is there\n"
    assert json.loads(done("create-region", "quotes", *url, "--json")) == {"region": "quotes"}
    assert "quotes" in [each["name"] for each in rows("regions", *url)]
