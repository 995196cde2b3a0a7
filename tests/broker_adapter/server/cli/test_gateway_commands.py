"""``holdfast gateway``: what sends to another site."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker_adapter.server.cli.running import NASTY, answered, done, holdfast
from tests.server_process import ServerProcess

FAR = "amqp://me:secret@127.0.0.1:1"


@pytest.fixture
def url(server: ServerProcess) -> Iterator[tuple[str, str]]:
    """Of a server that has no gateways; as arguments."""
    arguments = ("--url", server.url)
    yield arguments
    for each in done("gateway", "list", *arguments, "--json").splitlines():
        done("gateway", "destroy", "--yes", *arguments, "--", json.loads(each)["name"])


def one(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done("gateway", *arguments, "--json"))
    return found


def test_a_gateway_is_created_shown_changed_and_destroyed(url: tuple[str, str]) -> None:
    empty = holdfast("gateway", "list", *url)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", "0 gateways\n")
    named = ("--queue", "orders", "--queue", "bills", "--topic", "news", "--region", "quotes")
    made = done("gateway", "create", "north", "--to", FAR, *named, "--selector", "a = 1", *url)
    assert made == "created gateway north; 0 messages wait\n"
    found = one("status", "north", *url)
    assert found["destinations"] == ["queue:orders", "queue:bills", "topic:news", "region:quotes"]
    assert (found["state"], found["selector"], found["url"]) == ("created", "a = 1", "amqp://***@127.0.0.1:1")
    options = ("--batch-messages", "7", "--batch-bytes", "5000", "--batch-seconds", "0.5", "--alert-seconds", "60")
    assert done("gateway", "alter", "north", *options, "--selector", "", *url).startswith("changed gateway north")
    changed = one("status", "north", *url)
    assert [changed[each] for each in ("batch_messages", "batch_bytes", "batch_ms", "alert_ms", "selector")] == [
        *(7, 5000, 500, 60_000),
        None,
    ]
    assert "fetches              no\n" in done("gateway", "status", "north", *url)
    assert "transactions         may be divided\n" in done("gateway", "status", "north", *url)
    for given, is_whole in (("--group-transaction-events", True), ("--no-group-transaction-events", False)):
        assert one("alter", "north", given, *url)["group_transaction_events"] is is_whole
    assert [one(action, "north", *url)["state"] for action in ("start", "pause", "resume", "stop")] == [
        *("running", "paused", "running", "stopped"),
    ]
    shown = done("gateway", "status", "north", *url)
    assert "destinations         queue:orders, queue:bills, topic:news, region:quotes\n" in shown
    assert "batch                7 messages, 5000 bytes or 0.5 s\n" in shown
    assert "secret" not in shown
    listed = done("gateway", "list", *url)
    assert listed.splitlines()[1].split()[:4] == ["north", "amqp://***@127.0.0.1:1", "stopped", "no"]
    assert one("destroy", "north", "--yes", *url) == {"dropped": 0}


def test_updates_may_be_conflated_unless_transactions_are_kept_whole(url: tuple[str, str]) -> None:
    done("gateway", "create", "north", "--to", FAR, "--region", "quotes", "--conflate", *url)
    assert "updates of a key     the last of a batch\n" in done("gateway", "status", "north", *url)
    refused = holdfast("gateway", "alter", "north", "--group-transaction-events", *url)
    assert (refused.returncode, "take away --group-transaction-events, or --conflate\n" in refused.stderr) == (1, True)
    changed = one("alter", "north", "--group-transaction-events", "--no-conflate", *url)
    assert (changed["group_transaction_events"], changed["batch_conflation"]) == (True, False)


def test_what_drops_messages_asks_first(url: tuple[str, str]) -> None:
    done("gateway", "create", "north", "--to", FAR, "--queue", "asked", *url)
    done("send", "asked", "a", "b", *url)
    for arguments in (("start", "north", "--clean"), ("destroy", "north")):
        assert answered("n", "gateway", *arguments, *url).returncode == 1
        without = holdfast("gateway", *arguments, *url)
        assert (without.returncode, "give --yes" in without.stderr) == (2, True)
    assert one("status", "north", *url)["waiting"] == 2
    assert done("gateway", "start", "north", "--clean", "--yes", *url) == "started gateway north; 0 messages wait\n"
    found = one("pause", "north", *url)
    assert (found["received"], found["dropped"]) == (2, 2)
    done("send", "asked", "c", *url)
    assert done("gateway", "destroy", "north", "--yes", *url) == (
        "destroyed gateway north; 1 message was waiting, and dropped\n"
    )


def test_the_age_of_what_waits_is_shown_in_seconds(url: tuple[str, str]) -> None:
    done("gateway", "create", "north", "--to", FAR, "--queue", "aged", *url)
    assert one("status", "north", *url)["oldest_age_ms"] is None
    assert "oldest               -\n" in done("gateway", "status", "north", *url)
    done("send", "aged", "x", *url)
    assert one("status", "north", *url)["oldest_age_ms"] >= 0
    assert re.search(r"^waiting +1\noldest +[0-9.]+ s$", done("gateway", "status", "north", *url), re.MULTILINE)
    heading, row = done("gateway", "list", *url).splitlines()
    assert "  waiting  oldest  " in heading
    assert re.search(r" 1 +[0-9.]+ s +0 ", row)
    assert json.loads(done("stat", "north", *url, "--json"))["oldest_age_ms"] >= 0


def test_the_url_of_the_other_site_may_come_from_the_environment(url: tuple[str, str]) -> None:
    done("gateway", "create", "north", "--queue", "q", *url, HOLDFAST_GATEWAY_URL=FAR)
    assert one("status", "north", *url)["url"] == "amqp://***@127.0.0.1:1"
    done("gateway", "alter", "north", "--to", "-", *url, HOLDFAST_GATEWAY_URL="amqp://you:secret@127.0.0.1:2")
    assert one("status", "north", *url)["url"] == "amqp://***@127.0.0.1:2"


def test_a_gateway_may_fetch(url: tuple[str, str]) -> None:
    done("gateway", "create", "south", "--from", FAR, "--queue", "q", *url, HOLDFAST_GATEWAY_URL="amqp://elsewhere")
    done("gateway", "create", "west", "--from", "-", "--topic", "t", *url, HOLDFAST_GATEWAY_URL=FAR)
    for name in ("south", "west"):
        found = one("status", name, *url)
        assert (found["url"], found["fetches"]) == ("amqp://***@127.0.0.1:1", True)


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("create", "g", "--to", FAR), 1, "nothing to send is named; give --queue, --topic, --region or --move"),
        (("create", "g", "--queue", "q"), 2, "one of the arguments --to --from is required"),
        (("create", "g", "--queue", "q", "--to", "embedded:x"), 1, "is no server"),
        (("create", "g", "--queue", "q", "--to", FAR, "--from", FAR), 2, "--from: not allowed with argument --to"),
        (
            ("create", "g", "--region", "q", "--from", FAR),
            1,
            "fetches from queues and topics, and 'region:q' is neither",
        ),
        (("create", "g", "--queue", "q", "--to", FAR, "--selector", "a ="), 1, "selector 'a =' is wrong"),
        (("create", "g", "--queue", "q", "--to", FAR, "--batch-messages", "0"), 1, "--batch-messages is not from 1 to"),
        (
            *(("create", "g", "--queue", "q", "--to", FAR, "--batch-seconds", "90000"), 1),
            "holdfast: --batch-seconds (in milliseconds) is not from 0 to 86400000: 90000000\n",
        ),
        (("create", "g", "--queue", "q", "--to", "-"), 1, "$HOLDFAST_GATEWAY_URL has no URL of the other site\n"),
        (("alter", "g", "--to", "-"), 1, "$HOLDFAST_GATEWAY_URL has no URL of the other site\n"),
        (("alter", "g", "--alert-seconds", "inf"), 2, "'inf' is invalid: seconds from 0 to"),
        (("alter", "g"), 1, "nothing to change is given"),
        (("status", "g"), 1, "there is no gateway 'g'"),
        (("pause", NASTY), 1, "there is no gateway"),
        (("start", "g"), 1, "there is no gateway 'g'"),
        (("destroy", "g", "--yes"), 1, "there is no gateway 'g'"),
        (("nonsense",), 2, "invalid choice: 'nonsense'"),
        ((), 2, "the following arguments are required: ACTION"),
    ],
)
def test_what_cannot_be_done_says_why(
    url: tuple[str, str], arguments: tuple[str, ...], status: int, reason: str
) -> None:
    finished = holdfast("gateway", *arguments, *(url if len(arguments) > 1 else ()))
    assert (finished.returncode, reason in finished.stderr) == (status, True), finished.stderr
    assert "secret" not in finished.stderr
    assert "\x1b" not in finished.stderr


def test_a_site_is_a_number_from_1_to_255() -> None:
    finished = holdfast("serve", "--data", "unused", "--site", "256")
    assert (finished.returncode, "site" in finished.stderr) == (1, True)
