"""What the comparison of brokers and clients makes of measurements, and what it tells its clients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from benchmarks import jms_client, peers
from benchmarks.peers import WORKS, Cost, Pair, heading, holdfast_sdk, measured, qpid_jms, rows, seconds_of, table
from sdk import AcknowledgeMode, ConnectionFactory
from tests.interop.brokers.brokers import Broker


class NotedClient:
    """A client whose work takes two seconds, and a thousandth of a second of CPU for each message."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self.calls = calls
        self.cpu = 0.0
        self.process: Any = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=self.cpu, system=0.0))

    def tell(self, *words: object) -> None:
        self.calls.append(words)

    def answer(self) -> list[str]:
        self.cpu += float(self.calls[-1][2]) / 1000
        return ["100.0", "102.0"]


def test_pairs_warm_up_with_all_works_and_then_take_turns_at_each() -> None:
    calls: list[tuple[Any, ...]] = []
    clients = {"send": NotedClient(calls), "receive": NotedClient(calls)}
    others = {"send": NotedClient([]), "receive": NotedClient([])}
    said: list[str] = []
    pairs = {"first": Pair(clients, [clients["send"].process]), "second": Pair(others, [])}
    found = measured(pairs, 10, 3, 2, said.append)
    each = [
        ("receive", "AUTO", ""),
        ("send", "AUTO", ""),
        ("send", "AUTO", ".alone"),
        ("receive", "AUTO", ".alone"),
        ("receive", "DUPS_OK", ""),
        ("send", "DUPS_OK", ""),
        ("receive", "TRANSACTED", ""),
        ("send", "TRANSACTED", ""),
    ]
    assert calls == [
        (what, f"peers.{turn}.{mode}{alone}", count, mode)
        for turn, count in (("warm-up", 3), ("turn-0", 10), ("turn-1", 10))
        for what, mode, alone in each
    ]
    assert said[:2] == ["first: warms up", "second: warms up"]
    assert said[2:] == [
        f"{pair}: {work.name}, turn {turn} of 2" for turn in (1, 2) for work in WORKS for pair in ("first", "second")
    ]
    assert [cost.rate for cost in found["first"]] == pytest.approx([5.0] * 5)
    assert [cost.producer for cost in found["first"]] == pytest.approx([1000.0, 1000.0, 0.0, 1000.0, 1000.0])
    assert [cost.broker for cost in found["first"]] == pytest.approx([cost.producer for cost in found["first"]])
    assert [cost.consumer for cost in found["first"]] == pytest.approx([1000.0, 0.0, 1000.0, 1000.0, 1000.0])
    assert [cost.broker for cost in found["second"]] == [0.0] * 5


@pytest.mark.parametrize(("costs", "place"), [([3.0], 0), ([3.0, 2.0], 1), ([3.0, 1.0, 2.0], 2)])
def test_the_middle_one_of_turns_is_that_by_cpu_time(costs: list[float], place: int) -> None:
    turns = [Cost(number, 0.0, cost, 1.0) for number, cost in enumerate(costs)]
    assert peers.middle(turns) is turns[place]


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ([[10.0, 14.0]], 4.0),
        ([[10.0, 12.0], [10.5, 14.0]], 4.0),  # the producer and the consumer
        ([[10.0, 15.0], [10.5, 14.0]], 5.0),
    ],
)
def test_a_work_lasts_from_the_first_send_until_all_have_ended(times: list[list[float]], seconds: float) -> None:
    assert seconds_of(times) == pytest.approx(seconds)


_FIRST = [Cost(1000.0, 10.0, 20.0, 10.0)] * len(WORKS)
_SECOND = [Cost(2000.0 + number, 5.0, 10.0, 5.0) for number in range(len(WORKS))]


def test_each_work_has_a_row_for_each_pair_with_the_ratio_to_the_first_one() -> None:
    found = rows({"first": _FIRST, "second": _SECOND})
    assert [(row["what"], row["pair"]) for row in found] == [
        (work.name, pair) for work in WORKS for pair in ("first", "second")
    ]
    assert found[0]["ratio of messages/s"] == found[0]["ratio of CPU"] == 1.0
    assert found[3] == {
        "what": "AUTO, send alone",
        "pair": "second",
        "messages/s": 2001.0,
        "ratio of messages/s": 2.001,
        "producer": 5.0,
        "broker": 10.0,
        "consumer": 5.0,
        "CPU": 20.0,
        "ratio of CPU": 0.5,
    }


def test_the_table_says_each_work_once() -> None:
    shown = StringIO()
    Console(width=150, file=shown).print(table(rows({"first": _FIRST, "second": _SECOND})))
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.getvalue().splitlines()]
    lines = [line for line in lines if line]
    assert lines[:2] == [
        ["AUTO, end to end", "first", "1,000", "1.00", "40.0", "1.00", "10.0", "20.0", "10.0"],
        ["", "second", "2,000", "2.00", "20.0", "0.50", "5.0", "10.0", "5.0"],
    ]
    assert [line[0] for line in lines if line[0]] == [work.name for work in WORKS]


def test_the_heading_says_the_conditions() -> None:
    said = heading(40_000, 20_000, 3)
    assert said.startswith("40,000 messages each time, after 20,000 to warm up; of 3 turns the middle one")
    assert "1,024 bytes" in said
    assert max(len(line) for line in said.splitlines()) <= 120


@pytest.mark.parametrize(
    ("url", "login", "java", "python"),
    [
        ("amqp://h:1", (None, None), "amqp://h:1?jms.prefetchPolicy.all=1000", "amqp://h:1?prefetch_messages=1000"),
        (
            "amqp://h:1?a=b",
            ("ada", "secret"),
            "amqp://h:1?jms.prefetchPolicy.all=1000",
            "amqp://h:1?a=b&prefetch_messages=1000",
        ),
    ],
)
def test_each_client_gets_the_url_of_its_kind(
    url: str, login: tuple[str | None, str | None], java: str, python: str
) -> None:
    broker = Broker("", url, *login, {}, SimpleNamespace())  # type: ignore[arg-type]
    words = [word for word in login if word]
    assert qpid_jms("classes", broker)[3:] == ["classes", "JmsClient", java, *words]
    assert holdfast_sdk(broker)[2:] == ["benchmarks.jms_client", f"{python}&send_window_messages=1000", *words]


@pytest.mark.parametrize("option", [["--messages", "0"], ["--warm-up", "100001"]])
def test_a_count_out_of_range_is_refused(
    option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.peers", *option])
    with pytest.raises(SystemExit):
        peers.main()
    assert f"{option[0]} is 1 to 100,000" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK, AcknowledgeMode.TRANSACTED])
def test_the_client_of_the_sdk_sends_and_receives(mode: AcknowledgeMode, tmp_path: Path) -> None:
    with ConnectionFactory(f"embedded:{tmp_path}").create_connection() as connection:
        connection.start()
        works: list[Callable[..., tuple[float, float]]] = [jms_client.send, jms_client.receive]
        for work in works:
            started, ended = work(connection, "queue", 150, mode)
            assert started <= ended


def test_the_client_of_the_sdk_refuses_messages_out_of_order(tmp_path: Path) -> None:
    with ConnectionFactory(f"embedded:{tmp_path}").create_connection() as connection:
        connection.start()
        jms_client.send(connection, "queue", 2, AcknowledgeMode.AUTO)
        jms_client.receive(connection, "queue", 1, AcknowledgeMode.AUTO)
        with pytest.raises(jms_client.OrderError, match="expected message 0"):
            jms_client.receive(connection, "queue", 1, AcknowledgeMode.AUTO)
