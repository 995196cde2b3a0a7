"""The demos, with some of their departures: they check their own figures."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.broker_adapter.group.small_etcd import SmallEtcd


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
    etcd = SmallEtcd()
    command = [sys.executable, "-m", "samples.demo.group", "--coordinator", f"etcd://127.0.0.1:{etcd.port}"]
    finished = subprocess.run([*command, "--calm", "1"], capture_output=True, text=True, timeout=300, check=False)
    etcd.close()
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("the longest send took") == 3
    assert finished.stdout.count("equal") == 1
