"""Values that two sites have put under one key, and what a function of the application makes of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.rules.conflicts import Conflict
from broker_adapter.errors import InvalidURLException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.sites import Site, pump

#: What the resolvers were asked.
asked: list[Conflict] = []


def union(conflict: Conflict) -> str:
    """All letters that any site has put, and none twice."""
    asked.append(conflict)
    return "".join(sorted({*conflict.here, *conflict.there}))


def mine(conflict: Conflict) -> Any:
    return conflict.here


def newer(conflict: Conflict) -> None:
    asked.append(conflict)


def fails(conflict: Conflict) -> Any:
    raise KeyError(conflict.key)


def number(_: Conflict) -> Any:
    return 7


def long(_: Conflict) -> Any:
    return "x" * 10_000


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    asked.clear()


def sites(resolver: str, *paths: Path | None, **settings: Any) -> list[Site]:
    """Sites with a region, each with a gateway to each other one."""
    made = [Site(at, path, resolver=f"{__name__}:{resolver}", **settings) for at, path in enumerate(paths, 1)]
    for site in made:
        site.ask("create_region", region="quotes")
        for other in made:
            if other is not site:
                site.gateway(str(other.number), "region:quotes")
    return made


def exchange(made: list[Site]) -> int:
    """Send until nothing waits; returns how many batches that took."""
    batches = 0
    while some := sum(pump(site, str(other.number), other) for site in made for other in made if other is not site):
        batches += some
    return batches


def close(made: list[Site]) -> None:
    for site in made:
        assert site.broker.check() == []
        site.broker.close()


@pytest.mark.parametrize("stored", [True, False])
def test_a_value_is_put_in_place_of_two_that_sites_have_put(tmp_path: Path, stored: bool) -> None:
    one, two = made = sites("union", *((tmp_path / "1", tmp_path / "2") if stored else (None, None)))
    one.change("quotes", ("k", "ab"))
    exchange(made)
    assert asked == [], "there was no value here"
    one.change("quotes", ("k", "abc"))
    exchange(made)
    assert asked == [], "both are of one site"
    two.change("quotes", ("k", "ad"), ("other", "x"))
    one.change("quotes", ("k", "abce"))
    exchange(made)
    assert {(each.key, each.here, each.there) for each in asked} == {("k", "abce", "ad"), ("k", "ad", "abce")}
    assert all(each.here_stamp != each.there_stamp for each in asked)
    assert one.values("quotes") == two.values("quotes") == {"k": "abcde", "other": "x"}
    close(made)


def test_a_value_that_is_destroyed_at_one_of_the_sites_goes_by_the_stamps() -> None:
    one, two = made = sites("union", None, None)
    one.change("quotes", ("k", "ab"), ("l", "ab"))
    exchange(made)
    one.change("quotes", ("k", "abc"), ("l", None))
    two.change("quotes", ("k", None), ("l", "c"))
    exchange(made)
    assert one.values("quotes") == two.values("quotes") == {"l": "c"}
    assert asked == []
    close(made)


@pytest.mark.parametrize("resolver", ["newer", "fails", "number", "long"])
def test_the_newer_value_holds_where_nothing_else_is_said_or_it_cannot_be(
    resolver: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = made = sites(resolver, None, None, max_message_bytes=5000)
    one.change("quotes", ("k", "1"))
    two.change("quotes", ("k", "2"))
    exchange(made)
    assert one.values("quotes") == two.values("quotes") == {"k": "2"}
    assert ("! the resolver failed for key 'k' of region 'quotes'" in caplog.text) == (resolver != "newer")
    close(made)


@pytest.mark.parametrize(("resolver", "number_of_sites"), [("union", 2), ("union", 3), ("mine", 3), ("newer", 3)])
@pytest.mark.parametrize("seed", range(3))
def test_the_sites_become_equal_whatever_the_resolver_returns(resolver: str, number_of_sites: int, seed: int) -> None:
    chance = random.Random(seed)
    made = sites(resolver, *[None] * number_of_sites)
    put: dict[str, set[str]] = {}
    for _ in range(40):
        site, key, letter = chance.choice(made), chance.choice("kl"), chance.choice("abcdefghij")
        if chance.random() < 0.7:
            value = site.values("quotes").get(key, "") + letter
            site.change("quotes", (key, value))
            put.setdefault(key, set()).add(letter)
        else:
            other = chance.choice([each for each in made if each is not site])
            pump(site, str(other.number), other)
    assert exchange(made) < 100
    values = made[0].values("quotes")
    assert all(site.values("quotes") == values for site in made)
    if number_of_sites == 2:
        assert {key: {*value} for key, value in values.items()} == put
    close(made)


@pytest.mark.parametrize("named", ["", "nowhere", "nowhere:f", "json:nothing", "json:__name__", ":f"])
def test_a_resolver_that_is_none_is_refused_at_the_start(named: str) -> None:
    with pytest.raises(InvalidURLException, match="is not module:function"):
        Broker(EngineSettings(resolver=named))
