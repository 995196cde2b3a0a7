"""``holdfast gateway verify``: whether regions are the same at both sites of a gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from broker_adapter.server.cli import gateway_comparing
from broker_adapter.server.cli.parser import parse
from tests.broker_adapter.server.cli.running import done, holdfast
from tests.faults.sites import Site


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    directory = tmp_path_factory.mktemp("sites")
    here, there = Site(1, directory / "one"), Site(2, directory / "two")
    yield here, there
    here.close()
    there.close()


@pytest.fixture
def name(sites: tuple[Site, Site]) -> Iterator[str]:
    """Of a region at both sites, equal, and of the gateway that sends it, which is paused."""
    here, there = sites
    made = f"r{uuid4().hex}"
    mine = here.session.create_region(made)
    there.session.create_region(made)
    here.gateway(made, there.server.url, f"region:{made}")
    mine.put_all({key: key.upper() for key in "abcdef"})
    mine.destroy("f")
    here.drained(made)
    here.ask("change_gateway", name=made, state="paused")
    yield made
    here.ask("destroy_gateway", name=made)


def compared(name: str, sites: tuple[Site, Site], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status and answer of the command."""
    given = ("--wait", "0", "--json", "--url", sites[0].server.url)
    finished = holdfast("gateway", "verify", name, *arguments, *given)
    return finished.returncode, json.loads(finished.stdout)


def test_sites_that_are_equal_are_said_to_be(sites: tuple[Site, Site], name: str) -> None:
    assert done("gateway", "verify", name, "--url", sites[0].server.url) == f"region {name}: equal, of 5 keys here\n"
    assert compared(name, sites) == (*(0, {"region": name, "keys": 5, "differing": {}, "under_way": 0, "waiting": 0}),)


def test_a_region_that_is_not_there_is_said_to_be_missing_at_which_site(sites: tuple[Site, Site], name: str) -> None:
    wanted = ("gateway", "verify", name, "--url", sites[0].server.url, "--region")
    assert "here there is no region 'missing'" in holdfast(*wanted, "missing").stderr
    done("create-region", "only here", "--url", sites[0].server.url)
    missing = holdfast(*wanted, "only here")
    said = (
        "at the other site there is no region 'only here': create it first (create_region, or: holdfast create-region)"
    )
    assert (missing.returncode, missing.stderr) == (1, f"holdfast: {said}\n")


@pytest.mark.parametrize("at_once", [1, 2, 5, 1000])
def test_each_key_that_differs_is_found(
    sites: tuple[Site, Site],
    name: str,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gateway_comparing, "_RANGE_KEYS", at_once)
    monkeypatch.setattr(gateway_comparing, "_PAUSE_SECONDS", 0.0)
    here, there = (each.session.create_region(name) for each in sites)
    here.put("b", "changed here")
    there.put("d", "changed there")
    there.put("dd", "only there")
    here.put("0", "only here")
    there.put("z", "only there")
    there.destroy("a")
    here.put("x", "destroyed")
    here.destroy("x")
    arguments = ["gateway", "verify", name, "--wait", "0", "--url", sites[0].server.url]
    assert gateway_comparing.verify(parse([*arguments, "--json"])) == 1
    found = json.loads(capsys.readouterr().out)
    assert sorted(found["differing"]) == ["0", "a", "b", "d", "dd", "z"]
    assert (found["keys"], found["under_way"], found["waiting"]) == (6, 0, 4)
    assert [
        (one and one[1], other and other[1]) for one, other in map(found["differing"].get, ("a", "b", "d", "dd"))
    ] == [
        *((1, None), (1, 1), (1, 2), (None, 2)),
    ]
    assert gateway_comparing.verify(parse(arguments)) == 1
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"region {name}: 6 keys differ, of 6 keys here; 0 under way, 4 wait for the gateway"
    assert [each.split(":")[0].strip() for each in others] == ["0", "a", "b", "d", "dd", "z"]
    assert others[4].startswith("  dd: here not there, there changed at 2")
    assert others[4].endswith(" by site 2")


def test_a_change_that_is_under_way_is_told_from_a_difference(
    sites: tuple[Site, Site], name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = (each.session.create_region(name) for each in sites)
    here.put("a", "is sent meanwhile")
    here.put("b", "is changed meanwhile")
    there.put("c", "differs")

    def meanwhile(_seconds: float) -> None:
        sites[0].ask("change_gateway", name=name, state="running")
        sites[0].drained(name)
        sites[0].ask("change_gateway", name=name, state="paused")
        here.put("b", "is changed again")

    monkeypatch.setattr(gateway_comparing, "time", SimpleNamespace(sleep=meanwhile, monotonic=time.monotonic))
    arguments = ["gateway", "verify", name, "--wait", "0", "--json", "--url", sites[0].server.url]
    assert gateway_comparing.verify(parse(arguments)) == 1
    found = json.loads(capsys.readouterr().out)
    assert (list(found["differing"]), found["under_way"], found["waiting"]) == (["c"], 2, 1)


def test_no_more_keys_are_listed_than_the_limit(
    sites: tuple[Site, Site], name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gateway_comparing, "_MOST_KEYS", 30)
    monkeypatch.setattr(gateway_comparing, "_PAUSE_SECONDS", 0.0)
    there = sites[1].session.create_region(name)
    there.put_all({f"{number:03}": "x" for number in range(50)})
    arguments = ["gateway", "verify", name, "--wait", "0", "--url", sites[0].server.url]
    assert gateway_comparing.verify(parse(arguments)) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith(f"region {name}: 30 keys differ at least, of 5 keys here\n  000: ")
    assert len(shown.out.splitlines()) == 21
    assert shown.err == "  and 10 more (--json lists them)\n"


def test_what_cannot_be_compared_says_why(sites: tuple[Site, Site], name: str) -> None:
    here, there = sites
    url = ("--url", here.server.url)
    assert "there is no gateway 'none'" in holdfast("gateway", "verify", "none", *url).stderr
    unknown = holdfast("gateway", "verify", name, "--region", "unknown", *url)
    assert (unknown.returncode, "there is no region 'unknown'" in unknown.stderr) == (1, True)
    with_user = there.server.url.replace("//", "//me:secret@")
    done("gateway", "create", "q", "--queue", "q", "--to", with_user, *url)
    assert "has no region that could be compared" in holdfast("gateway", "verify", "q", *url).stderr
    given = ("--region", name)
    finished = holdfast("gateway", "verify", "q", *given, *url)
    assert (finished.returncode, "has a user: give it with --to" in finished.stderr) == (1, True)
    assert "equal" in done("gateway", "verify", "q", *given, "--to", there.server.url, *url)
    assert "equal" in done("gateway", "verify", "q", *given, *url, HOLDFAST_GATEWAY_URL=there.server.url)
    done("gateway", "destroy", "q", "--yes", *url)
