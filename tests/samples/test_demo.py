"""The demos, with some of their departures: they check their own figures."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
from typing import Any
from uuid import uuid4

import pytest

from samples.demo import group
from sdk import ConnectionFactory, MessageProducer
from tests.broker_adapter.group.small_etcd import SmallEtcd
from tests.faults.scenarios import wait_for


@pytest.mark.slow
@pytest.mark.crash
def test_the_demo_finds_every_figure_equal() -> None:
    command = [sys.executable, "-m", "samples.demo", "--rows", "10000"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("equal") == 5
    assert "DIFFERENT" not in finished.stdout


@pytest.mark.slow
@pytest.mark.crash
def test_two_sites_end_with_the_same_departures_and_figures() -> None:
    command = [sys.executable, "-m", "samples.demo.sites", "--rows", "6000"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("equal") == 5


@pytest.mark.slow
@pytest.mark.crash
def test_each_message_is_received_once_while_a_group_loses_its_primary_in_three_ways() -> None:
    with contextlib.closing(SmallEtcd()) as etcd:
        command = [sys.executable, "-m", "samples.demo.group", "--coordinator", f"etcd://127.0.0.1:{etcd.port}"]
        command += ["--calm", "0.2", "--away", "2.5"]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("the longest send took") == 3
    assert finished.stdout.count("equal") == 2
    assert "confirmed: 0 lost, 0 doubled" in finished.stdout


def test_what_is_lost_and_what_comes_twice_in_a_group_is_counted() -> None:
    assert group.lost_and_doubled(4, [0, 1, 2, 3]) == (0, 0)
    assert group.lost_and_doubled(4, [0, 1, 1, 3]) == (1, 1)
    assert group.lost_and_doubled(2, []) == (2, 0)


@pytest.mark.parametrize("fails", [False, True])
def test_a_producer_of_the_demo_that_fails_has_not_done_all(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    send, calls = MessageProducer.send, itertools.count(1)

    def counted(self: MessageProducer, *arguments: Any) -> Any:
        if next(calls) > 3 and fails:
            raise RuntimeError("no send any more")
        return send(self, *arguments)

    monkeypatch.setattr(MessageProducer, "send", counted)
    url = f"embedded:?memory={uuid4()}"
    with ConnectionFactory(url).create_connection():  # the engine stays
        load = group.Load(url)
        assert wait_for(lambda: len(load.received) >= 3, 20)
        load.end()
    assert load.ended == (["consumer"] if fails else ["producer", "consumer"])
    assert group.lost_and_doubled(len(load.sends), (number for _, number in load.received)) == (0, 0)
