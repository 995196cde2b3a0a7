"""``holdfast gateway copy``: what regions and queues had before a gateway goes to its other site."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from typing import Any

import pytest

from broker_adapter.server.cli import gateway_copying
from broker_adapter.server.cli.parser import parse
from sdk import ConnectionFactory
from tests.broker_adapter.server.cli.running import done, holdfast
from tests.server_process import ServerProcess


@pytest.fixture
def url(server: ServerProcess) -> Iterator[tuple[str, str]]:
    """Of a server with a gateway ``g`` that is paused, whose region and queue had something before; as arguments."""
    with ConnectionFactory(server.url).create_connection() as connection:
        session = connection.create_session()
        keys = session.create_region("prices")
        keys.put_all(dict.fromkeys("abcde", "1"))
        keys.destroy("e")
        session.create_producer(session.create_queue("orders")).send_all(["1", "2", "3"])
        destinations = ["queue:orders", "topic:news", "region:prices"]
        made = {"name": "g", "url": "amqp://127.0.0.1:1", "destinations": destinations}
        connection.request("create_gateway", made)
        connection.request("change_gateway", {"name": "g", "state": "paused"})
        yield ("--url", server.url)
        connection.request("destroy_gateway", {"name": "g"})
        connection.request("purge", {"destination": "orders"})


def waiting(url: tuple[str, str]) -> int:
    found: dict[str, Any] = json.loads(done("gateway", "status", "g", *url, "--json"))
    return int(found["waiting"])


def test_all_regions_and_queues_are_copied_or_those_that_are_named(url: tuple[str, str]) -> None:
    assert done("gateway", "copy", "g", *url) == (
        "copied 3 messages of queue:orders\ncopied 5 messages of region:prices\n"
    )
    assert waiting(url) == 8
    assert json.loads(done("gateway", "copy", "g", "--region", "prices", *url, "--json")) == {
        **{"destination": "region:prices", "copied": 5, "left_out": 0},
    }
    assert done("gateway", "copy", "g", "--region", "prices", "--after", "c", *url) == (
        "copied 2 messages of region:prices\n"
    )
    assert waiting(url) == 15


def test_a_queue_is_copied_again_only_with_an_option(url: tuple[str, str]) -> None:
    copying = ("gateway", "copy", "g", "--queue", "orders", *url)
    assert done(*copying) == "copied 3 messages of queue:orders\n"
    assert "copied               queue:orders\n" in done("gateway", "status", "g", *url)
    refused = holdfast(*copying)
    assert (refused.returncode, refused.stdout, "or give --again\n" in refused.stderr) == (1, "", True)
    assert done(*copying, "--again") == "copied 3 messages of queue:orders\n"


def test_what_was_left_out_is_said(url: tuple[str, str], server: ServerProcess) -> None:
    with ConnectionFactory(server.url).create_connection() as connection:
        connection.create_session().create_region("prices").invalidate("a")
    assert done("gateway", "copy", "g", "--region", "prices", *url) == (
        "copied 4 messages of region:prices; 1 left out: damaged, or a key without a value\n"
    )


def test_a_copy_is_no_faster_than_its_rate(url: tuple[str, str]) -> None:
    began = time.monotonic()
    done("gateway", "copy", "g", "--queue", "orders", "--max-rate", "2", *url)
    assert time.monotonic() - began >= 1.0


class _Clock:
    """A clock whose waits are noted; after a few, the user interrupts."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    @staticmethod
    def monotonic() -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        if len(self.waits) == 3:
            raise KeyboardInterrupt


def test_a_copy_waits_while_much_waits_and_says_how_to_go_on_when_it_is_interrupted(
    url: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = _Clock()
    monkeypatch.setattr(gateway_copying, "time", clock)
    monkeypatch.setattr(gateway_copying, "_AT_ONCE", 2)
    monkeypatch.setattr(gateway_copying, "_MOST_WAITING", 3)
    monkeypatch.setattr(gateway_copying.sys.stderr, "isatty", lambda: True, raising=False)
    with pytest.raises(KeyboardInterrupt):
        gateway_copying.copy(parse(["gateway", "copy", "g", "--region", "prices", *url]))
    shown = capsys.readouterr().err
    assert "region:prices: copied 4 messages; 4 messages wait: the gateway is paused" in shown
    *_, said, command = shown.splitlines()
    assert said.endswith("copied 4 messages of region:prices; go on with:")
    assert command == "holdfast gateway copy g --region prices --after d"
    assert waiting(url) == 4
    monkeypatch.undo()
    assert done(*shlex.split(command)[1:], *url) == "copied 1 message of region:prices\n"
    assert waiting(url) == 5


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("copy", "none"), "there is no gateway 'none'"),
        (
            ("copy", "g", "--queue", "other"),
            "gateway 'g' does not send 'queue:other'; it sends queue:orders, topic:news",
        ),
        (("copy", "g", "--after", "x"), "--after needs one --region or --queue that it is a place of"),
        (("copy", "g", "--queue", "orders", "--after", "x"), "is no answer of a copy of a queue: 'x'"),
        (("copy", "g", "--max-rate", "0"), "--max-rate 0 is not 1 or more"),
    ],
)
def test_what_cannot_be_copied_says_why(url: tuple[str, str], arguments: tuple[str, ...], reason: str) -> None:
    finished = holdfast("gateway", *arguments, *url)
    assert (finished.returncode, reason in finished.stderr) == (1, True), finished.stderr


def test_topics_have_nothing_to_copy(url: tuple[str, str]) -> None:
    done("gateway", "create", "t", "--topic", "news", "--to", "amqp://127.0.0.1:1", *url)
    assert "has no region, and no queue that was not copied" in holdfast("gateway", "copy", "t", *url).stderr
    done("gateway", "destroy", "t", "--yes", *url)
