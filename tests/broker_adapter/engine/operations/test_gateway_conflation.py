"""Gateways that send of the updates of a key in a batch only the last."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.commands import gateways as g
from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.regions.stamps import Stamp
from broker_adapter.engine.rules.event_changes import event_annotations
from broker_adapter.errors import IllegalStateException
from tests.broker_adapter.engine.driving import WAIT
from tests.broker_adapter.engine.sites import Site, apply, end, in_queue, pump, read, text_message


@pytest.fixture(params=["disk", "memory"])
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    paths = [tmp_path / name if request.param == "disk" else None for name in ("near", "far")]
    near, far = Site(1, paths[0]), Site(2, paths[1])
    with closing(near.broker), closing(far.broker):
        for site in (near, far):
            for region in ("quotes", "rates"):
                site.ask("create_region", region=region)
        near.gateway("g", "region:quotes", "region:rates", "queue:q", batch_conflation=True)
        yield near, far


def left_out(found: dict[str, Any]) -> list[int]:
    """The indexes of those that are conflated, among all that was read."""
    positions = sorted([*found["conflated"], *[position for position, *_ in found["entries"]]])
    return [positions.index(each) for each in found["conflated"]]


def test_of_the_updates_of_a_key_in_a_batch_the_last_one_is_sent(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.change("quotes", ("a", "0"), ("a", "1"), ("b", "2"), ("a", "3"))
    near.change("rates", ("a", "4"))
    near.send("q", "5", "6")
    near.change("quotes", ("b", "7"), ("a", "8"))
    found = read(near, "g")
    assert left_out(found) == [1, 3]  # 0 and 2 make keys
    assert end(near, "g", found, apply(near, far, found)) == 9
    assert far.values("quotes") == near.values("quotes") == {"a": "8", "b": "7"}
    assert (far.values("rates"), in_queue(far)) == ({"a": "4"}, ["5", "6"])
    counted = near.gateways("g")
    assert (counted["queued"], counted["distributed"], counted["conflated"]) == (9, 7, 2)


def test_something_else_of_the_key_in_between_keeps_both(sites: tuple[Site, Site]) -> None:
    near, _ = sites
    near.change("quotes", ("a", "0"), ("a", "1"), ("a", None), ("a", "3"), ("a", "4"))
    assert left_out(read(near, "g")) == []
    near.change("quotes", ("a", "5"), ("a", "6"))
    assert left_out(read(near, "g")) == [4, 5]


def test_updates_in_different_batches_are_all_sent(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.change("quotes", *[("a", str(number)) for number in range(9)])
    assert pump(near, "g", far, max_messages=2) == 5
    assert near.gateways("g")["conflated"] == 3  # 2, 4 and 6: the first batch has what made the key
    assert far.values("quotes") == {"a": "8"}


def test_without_the_option_all_are_sent(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.ask("change_gateway", name="g", batch_conflation=False)
    near.change("quotes", *[("a", str(number)) for number in range(9)])
    pump(near, "g", far)
    assert near.gateways("g")["distributed"] == 9


def test_an_update_that_is_left_out_itself_replaces_none(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.ask("change_gateway", name="g", selector="wanted")
    changes = [("a", True), ("a", True), ("a", False)]
    for key, wanted in changes:
        message = text_message("value", properties={"wanted": wanted})
        _put(near, key, message)
    found = read(near, "g")
    assert (len(found["entries"]), len(found["filtered"]), found["conflated"]) == (2, 1, [])
    pump(near, "g", far)
    assert list(far.values("quotes")) == ["a"]


def _put(site: Site, key: str, message: Any) -> None:
    site.ask("change_keys", region="quotes", changes=[[key, 0, message.payload]])


def test_a_copy_that_is_older_replaces_no_later_update(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.change("quotes", ("a", "0"), ("a", "new"))
    old = event_annotations("quotes", "a", Operation.UPDATE, 1, Stamp(5, 1))
    copied = g.CopyToGateway("g", "region:quotes", [(text_message("old"), old)])
    near.broker.call(copied, WAIT)
    found = read(near, "g")
    assert (len(found["entries"]), found["conflated"]) == (3, [])
    pump(near, "g", far)
    assert far.values("quotes") == {"a": "new"}
    near.change("quotes", ("a", "newer"))
    near.ask("copy_to_gateway", name="g", region="quotes")
    assert left_out(read(near, "g")) == [0], "the same change"


def test_where_a_batch_is_cut_the_update_that_replaces_others_comes_later(sites: tuple[Site, Site]) -> None:
    near, _ = sites
    far = Site(3, max_message_bytes=1000)
    with closing(far.broker):
        for region in ("quotes", "rates"):
            far.ask("create_region", region=region)
        near.change("quotes", ("a", "0"), ("a", "1"))
        near.send("q", "x" * 2000)
        near.change("quotes", ("a", "2"))
        found = read(near, "g")
        answer = apply(near, far, found)
        assert answer["through"] < found["through"]
        end(near, "g", found, answer)
        assert near.gateways("g")["conflated"] == 1
        pump(near, "g", far)
        assert far.values("quotes") == {"a": "2"}
        counted = near.gateways("g")
        assert (counted["distributed"], counted["refused"], counted["conflated"]) == (2, 1, 1)


def test_a_gateway_that_keeps_transactions_whole_does_not_conflate(sites: tuple[Site, Site]) -> None:
    near, _ = sites
    with pytest.raises(IllegalStateException, match="take away group_transaction_events, or batch_conflation"):
        near.gateway("both", "region:quotes", group_transaction_events=True, batch_conflation=True)
    with pytest.raises(IllegalStateException, match="take away group_transaction_events, or batch_conflation"):
        near.ask("change_gateway", name="g", group_transaction_events=True)
    assert near.gateways("g")["group_transaction_events"] is False
    near.ask("change_gateway", name="g", group_transaction_events=True, batch_conflation=False)
    with pytest.raises(IllegalStateException):
        near.ask("change_gateway", name="g", batch_conflation=True)


@pytest.mark.parametrize("seed", range(4))
def test_sites_become_equal_whatever_is_conflated(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    near, far = Site(1, tmp_path / "near"), Site(2, tmp_path / "far")
    for site in (near, far):
        site.ask("create_region", region="quotes")
    near.gateway("g", "region:quotes", batch_conflation=True)
    for number in range(60):
        what = chance.choice(("change", "change", "batch", "lost answer", "restart", "copy"))
        if what == "change":
            keys = chance.choices("abc", k=chance.choice((1, 4)))
            near.change("quotes", *[(key, None if chance.random() < 0.2 else f"{number} {key}") for key in keys])
        elif what == "restart":
            near.restart()
        elif what == "copy":
            near.ask("copy_to_gateway", name="g", region="quotes")
        else:
            found = read(near, "g", max_messages=chance.choice((1, 3, 20)), remote_site=2)
            answer = apply(near, far, found) if found["entries"] else None
            if what == "batch" and found["through"]:
                end(near, "g", found, answer)
        near.gateways("g")
    pump(near, "g", far, max_messages=chance.choice((1, 5, 100)))
    assert far.values("quotes") == near.values("quotes")
    assert near.gateways("g")["conflated"] > 0
    for site in (near, far):
        assert site.broker.check() == []
        site.broker.close()
