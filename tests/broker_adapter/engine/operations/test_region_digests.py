"""Digests of regions, by which sites are compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.operations import region_digests
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.errors import InvalidDestinationException
from tests.broker_adapter.engine.asking import damage_body
from tests.broker_adapter.engine.driving import WAIT
from tests.broker_adapter.engine.sites import Site, pump, text_message

KEYS = [f"key {number:02}" for number in range(20)]


@pytest.fixture(params=["disk", "memory"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made = Site(1, tmp_path if request.param == "disk" else None)
    with closing(made.broker):
        made.ask("create_region", region="quotes")
        made.change("quotes", *[(key, f"value of {key}") for key in KEYS])
        yield made


def digest(site: Site, **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = site.ask("region_digest", region="quotes", **arguments)
    return found


def summed(site: Site, **arguments: Any) -> tuple[int, int]:
    """Digest and count of a range, of all answers together."""
    total = count = 0
    after = arguments.pop("after", None)
    while True:
        found = digest(site, after=after, **arguments)
        total, count = total + int.from_bytes(found["digest"]), count + found["count"]
        after = found["next"]
        if after is None:
            return total % (1 << 128), count


@pytest.mark.parametrize("limit", [1, 3, 10, 20, 1000])
def test_digests_of_ranges_add_up_wherever_an_answer_ends(site: Site, limit: int) -> None:
    whole = digest(site)
    assert (whole["count"], whole["next"], whole["keys"]) == (20, None, None)
    assert summed(site, limit=limit) == (int.from_bytes(whole["digest"]), 20)
    parts = [
        summed(site, after=after, through=through, limit=limit)
        for after, through in ((None, KEYS[4]), (KEYS[4], "key 08x"), ("key 08x", KEYS[-1]), (KEYS[-1], None))
    ]
    assert [count for _, count in parts] == [5, 4, 11, 0]
    assert sum(each for each, _ in parts) % (1 << 128) == int.from_bytes(whole["digest"])


def test_an_answer_ends_once_the_values_were_many_bytes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_digests, "_MOST_BYTES", 100)
    monkeypatch.setattr(region_digests, "MAX_RANGE_BYTES", 60)
    whole = digest(site)
    assert 0 < whole["count"] < 20
    assert whole["next"] == KEYS[whole["count"] - 1]
    assert summed(site)[1] == 20


def test_a_range_that_ends_with_its_last_key_says_so(site: Site) -> None:
    assert digest(site, through=KEYS[2], limit=3)["next"] is None
    assert digest(site, through=KEYS[2], limit=2)["next"] == KEYS[1]
    assert digest(site, through="a") == {"digest": bytes(16), "count": 0, "next": None, "keys": None}


def test_a_digest_is_of_keys_values_and_stamps(site: Site) -> None:
    seen = [digest(site)["digest"]]
    for changes in (
        [("key 03", "another value")],
        [("key 03", "another value")],  # with another stamp
        [("key 03", None)],
        [("key 03", "value of key 03")],
    ):
        site.change("quotes", *changes)
        seen.append(digest(site)["digest"])
    assert len(set(seen)) == len(seen)
    site.broker.call(e.ChangeKeys("quotes", [e.KeyChange("key 04", Wanted.INVALIDATE, text_message(""))]), WAIT)
    assert digest(site)["digest"] not in seen
    assert digest(site)["count"] == 20


def test_a_key_that_was_destroyed_counts_as_one_that_was_never_there(site: Site) -> None:
    before = digest(site)
    site.change("quotes", ("x", "1"), ("x", None))
    assert digest(site) == before


def test_the_keys_of_a_range_are_told_with_their_stamps(site: Site) -> None:
    found = digest(site, after=KEYS[2], through=KEYS[5], each=True)
    assert [key for key, *_ in found["keys"]] == KEYS[3:6]
    assert {of for _, _, of, _ in found["keys"]} == {1}
    times = [at for _, at, _, _ in found["keys"]]
    assert times == sorted(set(times))
    total = sum(int.from_bytes(each) for *_, each in found["keys"]) % (1 << 128)
    assert total == int.from_bytes(found["digest"])


def test_the_digest_of_another_site_is_the_same_once_it_has_all(site: Site) -> None:
    far = Site(2)
    with closing(far.broker):
        far.ask("create_region", region="quotes")
        site.gateway("g", "region:quotes")
        site.ask("copy_to_gateway", name="g", region="quotes")
        assert digest(far) != digest(site)
        pump(site, "g", far)
        assert digest(far, each=True) == digest(site, each=True)


@pytest.mark.damages
def test_a_value_that_cannot_be_trusted_makes_another_digest(tmp_path: Path) -> None:
    site = Site(1, tmp_path)
    site.ask("create_region", region="quotes")
    site.change("quotes", ("a", "value"), ("b", "other"))
    before = digest(site, each=True)["keys"]
    damage_body(site.broker, b"value")
    after = digest(site, each=True)["keys"]
    assert (after[0][:3], after[1]) == (before[0][:3], before[1])
    assert after[0] != before[0]
    site.broker.close()


def test_there_is_no_digest_of_a_region_that_does_not_exist(site: Site) -> None:
    with pytest.raises(InvalidDestinationException, match="there is no region 'other'"):
        site.ask("region_digest", region="other")
