"""Transactions that gateways keep whole, between engines whose sender is driven by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.operations.steps import MAX_RANGE_BYTES
from broker_adapter.engine.records.gateway_records import MAX_BATCH
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.envelope import DEAD_LETTER_REASON, unpack
from broker_adapter.errors import MessageFormatException
from tests.broker_adapter.engine.asking import damage_body
from tests.broker_adapter.engine.driving import WAIT, drained
from tests.broker_adapter.engine.sites import Q, Site, apply, end, in_queue, pump, read, text_message

NEWS = topic("news")
WHOLE: dict[str, Any] = {"group_transaction_events": True}


@pytest.fixture(params=["disk", "memory"])
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    near, far = (Site(number, tmp_path / str(number) if request.param == "disk" else None) for number in (1, 2))
    with closing(near.broker), closing(far.broker):
        for site in (near, far):
            site.ask("create_region", region="quotes")
        yield near, far


def commit(
    site: Site, *sends: str | tuple[str, Destination], puts: Sequence[str] = (), region: str = "quotes", **fields: Any
) -> None:
    """Send bodies, to the queue ``q`` where nothing else is said, and put keys, in one transaction."""
    placed = [(each, Q) if isinstance(each, str) else each for each in sends]
    messages = [(to, text_message(body, to, **fields)) for body, to in placed]
    changes = [e.ChangeKeys(region, [e.KeyChange(each, Wanted.PUT, text_message(each)) for each in puts])]
    site.broker.call(c.Commit(site.client, None, messages, [], changes=changes if puts else ()), WAIT)


def bodies_of(found: dict[str, Any]) -> list[str]:
    return [str(unpack(payload).body) for *_, payload in found["entries"]]


def whole(found: dict[str, Any]) -> list[str]:
    """What was read: the bodies of each transaction behind each other."""
    texts: list[str] = []
    for (position, *_), body in zip(found["entries"], bodies_of(found), strict=True):
        is_joined = position in found["joined"]
        texts[len(texts) - is_joined :] = [(texts[-1] if is_joined else "") + body]
    return texts


def batches(near: Site, far: Site, size: int) -> list[int]:
    """How many messages each batch has, until nothing waits."""
    sizes = []
    while (found := read(near, "g", max_messages=size))["through"]:
        sizes.append(len(found["entries"]))
        end(near, "g", found, apply(near, far, found))
    return sizes


@pytest.mark.parametrize(
    ("transactions", "of", "size", "expected"),
    [
        (4, 3, 10, [12]),
        (8, 3, 10, [12, 12]),
        (1, 500, 100, [500]),
        (3, 1, 2, [2, 1]),
        (2, 2, 1, [2, 2]),
    ],
)
def test_a_batch_grows_by_what_completes_its_last_transaction_and_nothing_else(
    sites: tuple[Site, Site], transactions: int, of: int, size: int, expected: list[int]
) -> None:
    near, far = sites
    near.gateway("g", "queue:q", **WHOLE)
    for number in range(transactions):
        commit(near, *[f"{number}/{each}" for each in range(of)])
    assert batches(near, far, size) == expected
    assert in_queue(far) == in_queue(near)
    assert near.gateways("g")["batches_with_incomplete_transactions"] == 0


def test_without_the_option_batches_are_cut_at_their_size(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    for _ in range(8):
        commit(near, "a", "b", "c")
    assert batches(near, far, 10) == [10, 10, 4]


def test_sends_and_changes_of_keys_to_all_destinations_are_one_transaction(sites: tuple[Site, Site]) -> None:
    near, _ = sites
    near.gateway("g", "queue:q", "topic:news", "region:quotes", **WHOLE)
    near.send("q", *"xy")
    commit(near, "1", ("2", NEWS), ("left", queue("other")), "3", puts="45")
    commit(near, "6")
    near.change("quotes", ("7", "7"), ("8", "8"))
    near.change("quotes", ("9", "9"))
    commit(near, *"abc")
    commit(near, *"def")
    assert whole(read(near, "g")) == ["x", "y", "12345", "6", "78", "9", "abc", "def"]
    assert whole(read(near, "g", max_messages=4)) == ["x", "y", "12345"]
    assert whole(read(near, "g", max_bytes=1)) == ["x"]


def test_the_option_may_be_changed_while_messages_wait(sites: tuple[Site, Site]) -> None:
    near, _ = sites
    near.gateway("g", "queue:q")
    commit(near, *"abc")
    assert whole(read(near, "g", max_messages=2)) == ["a", "b"]
    assert near.ask("change_gateway", name="g", group_transaction_events=True)["group_transaction_events"]
    assert whole(read(near, "g", max_messages=2)) == ["abc"]
    near.ask("change_gateway", name="g", group_transaction_events=False)
    assert whole(read(near, "g", max_messages=2)) == ["a", "b"]


def test_what_spark_publishes_is_in_no_transaction(sites: tuple[Site, Site]) -> None:
    near, _ = sites
    near.gateway("g", "queue:q", **WHOLE)
    commit(near, *"ab")
    payloads = [text_message(body).payload for body in "cd"]
    assert near.ask("stage", transaction="group/1/0", queue="q", first=0, messages=payloads)
    assert near.ask("publish", group="group", number=1, transactions=["group/1/0"])
    assert whole(read(near, "g")) == ["ab", "c", "d"]


def test_a_transaction_is_refused_as_a_whole_and_the_others_go_on(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.ask("create_region", region="unknown")
    near.gateway("g", "queue:q", "region:unknown", **WHOLE)
    commit(near, *"ab")
    commit(near, *"cd", puts="k", region="unknown")
    commit(near, *"ef")
    found = read(near, "g")
    answer = apply(near, far, found)
    positions = [position for position, *_ in found["entries"]]
    assert [position for position, _ in answer["refused"]] == positions[2:5]
    assert (answer["through"], answer["applied"]) == (positions[4], positions[1])
    end(near, "g", found, answer)
    pump(near, "g", far)
    assert in_queue(far) == [*"abef"]
    reasons = [
        str((each.annotations or {})[DEAD_LETTER_REASON])
        for each in drained(near.broker, near.client, "$gateway/g/refused")
    ]
    reason = "there is no region 'unknown': create it first (create_region, or: holdfast create-region)"
    assert reasons == [
        f"queue:q: another message of its transaction was refused: {reason}",
        f"queue:q: another message of its transaction was refused: {reason}",
        f"region:unknown: {reason}",
    ]
    assert near.gateways("g")["refused"] == 3
    assert near.broker.check() == []


@pytest.mark.parametrize(
    ("option", "most", "named"),
    [
        ("max_transaction_messages", 3, "4 is more than the limit of 3 messages (option max_transaction_messages)"),
        (
            "max_transaction_entries",
            7,
            "8 is more than the limit of 7 places in queues (limit max_transaction_entries)",
        ),
        ("max_transaction_bytes", 300, "bytes (option max_transaction_bytes)"),
    ],
)
def test_a_transaction_that_no_commit_of_the_other_site_can_have_is_refused_with_the_limit(
    option: str, most: int, named: str
) -> None:
    near, far = Site(1), Site(2, **{option: most})
    with closing(near.broker), closing(far.broker):
        near.gateway("g", "queue:q", **WHOLE)
        commit(near, *"ab")
        commit(near, "x" * 40, "x" * 40, "x" * 40, "x" * 40)
        commit(near, *"cd")
        found = read(near, "g")
        answer = apply(near, far, found)
        assert {reason.endswith(named) for _, reason in answer["refused"]} == {True}
        end(near, "g", found, answer)
        pump(near, "g", far)
        assert in_queue(far) == [*"abcd"]
        assert near.gateways("g")["refused"] == 4


def test_a_batch_that_is_too_much_for_one_commit_is_applied_in_several_between_transactions() -> None:
    near, far = Site(1), Site(2, max_transaction_messages=5)
    with closing(near.broker), closing(far.broker):
        near.gateway("g", "queue:q", **WHOLE)
        far.gateway("g", "queue:q", **WHOLE)
        for _ in range(4):
            commit(near, *"abc")
        assert pump(near, "g", far) == 1
        assert whole(read(far, "g")) == ["abc"] * 4


def test_transactions_that_have_both_do_not_become_one_at_the_next_site() -> None:
    near, over, far = Site(1), Site(2), Site(3, max_transaction_messages=10, max_message_bytes=1000)
    with closing(near.broker), closing(over.broker), closing(far.broker):
        for site in (near, over, far):
            site.ask("create_region", region="quotes")
        for site in (near, over):
            site.gateway("g", "queue:q", "region:quotes", **WHOLE)
        for number in range(20):
            commit(near, "a" * (2000 if number == 7 else 1), "b", puts="x")
        pump(near, "g", over)
        pump(over, "g", far)
        assert len(in_queue(far)) == 2 * 19
        assert over.gateways("g")["refused"] == 3


def test_a_transaction_that_never_fits_into_a_queue_is_refused() -> None:
    near, far = Site(1), Site(2, max_queue_messages=4)
    with closing(near.broker), closing(far.broker):
        near.gateway("g", "queue:q", **WHOLE)
        commit(near, *"abcde")
        near.send("q", "f")
        pump(near, "g", far)
        assert in_queue(far) == ["f"]
        assert near.gateways("g")["refused"] == 5


def test_a_transaction_that_is_larger_than_any_batch_is_refused_as_a_whole() -> None:
    near, far = Site(1, max_gateway_batch_bytes=1 << 20), Site(2)
    with closing(near.broker), closing(far.broker):
        near.gateway("g", "queue:q", **WHOLE)
        commit(near, *"ab")
        commit(near, *[f"{number}" + "x" * 300_000 for number in range(5)])
        commit(near, *"cd")
        commit(near, *["y"] * (MAX_BATCH + 1))
        commit(near, *"ef")
        assert whole(read(near, "g", max_messages=3)) == ["ab"]
        first = read(near, "g")
        assert whole(read(near, "g", after=first["through"])) == ["cd"], "while those ahead are under way"
        assert (near.gateways("g")["refused"], near.gateways("g")["distributed"]) == (5, 0)
        pump(near, "g", far)
        assert in_queue(far) == [*"abcdef"]
        assert near.gateways("g")["refused"] == 5 + MAX_BATCH + 1
        refused = drained(near.broker, near.client, "$gateway/g/refused")
        assert "5 messages of 1500" in str((refused[0].annotations or {})[DEAD_LETTER_REASON])
        assert f"{MAX_BATCH + 1} messages" in str((refused[-1].annotations or {})[DEAD_LETTER_REASON])


def test_a_message_alone_may_be_larger_than_a_batch(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q", **WHOLE)
    commit(near, "x" * (2 * MAX_RANGE_BYTES + 5))
    commit(near, *"ab")
    assert pump(near, "g", far) == 2
    assert [len(each) for each in far.bodies("q")] == [2 * MAX_RANGE_BYTES + 5, 1, 1]


def test_a_transaction_of_which_a_part_is_known_is_completed(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    commit(near, *"abc")
    apply(near, far, read(near, "g", max_messages=1))
    near.ask("change_gateway", name="g", **WHOLE)
    commit(near, *"de")
    found = read(near, "g")
    assert apply(near, far, found)["repeated"] == 1
    assert in_queue(far) == [*"abcde"]


def test_what_a_site_passes_on_has_the_transactions_that_came(sites: tuple[Site, Site]) -> None:
    near, far = sites
    names = "queue:q", "region:quotes"
    near.gateway("g", *names, **WHOLE)
    far.gateway("g", *names, **WHOLE)
    near.send("q", *"xy")
    commit(near, *"ab")
    commit(near, *"cd")
    pump(near, "g", far)
    assert whole(read(far, "g")) == ["x", "y", "ab", "cd"]
    far.ask("change_gateway", name="g", state="running", clean=True)
    near.send("q", "x")
    commit(near, "a", puts="1")
    commit(near, *"bc")
    commit(near, "d", puts="2")
    near.change("quotes", ("3", "3"))
    pump(near, "g", far)
    assert whole(read(far, "g")) == ["x", "a1", "bc", "d2", "3"]


def test_what_a_gateway_without_the_option_brings_is_in_no_transaction(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q")
    far.gateway("g", "queue:q", **WHOLE)
    commit(near, *"abc")
    pump(near, "g", far)
    assert whole(read(far, "g")) == [*"abc"]


@pytest.mark.damages
@pytest.mark.parametrize(
    ("damaged", "sent"), [("a", ["bc", "de"]), ("b", ["a", "c", "de"]), ("c", ["ab", "de"]), ("d", ["abc", "e"])]
)
def test_what_is_left_of_a_damaged_transaction_is_sent_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: str, sent: list[str]
) -> None:
    near, far = Site(1, tmp_path), Site(2)
    with closing(near.broker), closing(far.broker):
        near.gateway("g", "queue:q", **WHOLE)
        commit(near, *"abc")
        commit(near, *"de")
        last = {each: position for each, (position, *_) in zip("abcde", read(near, "g")["entries"], strict=True)}
        damage_body(near.broker, damaged.encode())
        assert whole(read(near, "g")) == sent
        pump(near, "g", far)
        near.send("other", "what was said of the last batch is written by now")
        is_seen = damaged != "c"  # who knows that it was not the last one
        assert near.gateways("g")["batches_with_incomplete_transactions"] == is_seen
        said = f"a part of a transaction is missing ahead of position {last[damaged] + 1};"
        assert (said in caplog.text) == is_seen


def test_what_is_left_of_a_transaction_that_was_not_persistent_throughout_is_counted(tmp_path: Path) -> None:
    near, far = Site(1, tmp_path), Site(2)
    near.gateway("g", "queue:q", **WHOLE)
    sends = [(Q, text_message(body, persistent=body != "b")) for body in "abc"]
    near.broker.call(c.Commit(near.client, None, sends, []), WAIT)
    assert whole(read(near, "g")) == ["abc"]
    near.restart()
    assert whole(read(near, "g")) == ["a", "c"]
    pump(near, "g", far)
    found = near.gateways("g")
    assert (found["batches_with_incomplete_transactions"], found["lost"]) == (1, 1)
    near.broker.close()
    far.broker.close()


def test_what_expired_or_is_not_wanted_is_no_part_of_a_transaction(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q", selector="wanted = TRUE", **WHOLE)
    for wanted in ("abc", "b", "ac", "bc"):
        sends = [(Q, text_message(each, properties={"wanted": each in wanted})) for each in "abc"]
        near.broker.call(c.Commit(near.client, None, sends, []), WAIT)
    assert whole(read(near, "g")) == ["abc", "b", "ac", "bc"]
    pump(near, "g", far)
    assert near.gateways("g")["batches_with_incomplete_transactions"] == 0


def test_a_transaction_that_goes_by_different_gateways_is_committed_told_and_counted(
    sites: tuple[Site, Site], caplog: pytest.LogCaptureFixture
) -> None:
    near, _ = sites
    near.gateway("g", "queue:q", "region:quotes", **WHOLE)
    near.gateway("h", "topic:news", **WHOLE)
    near.gateway("plain", "queue:p", "queue:q")
    for number in range(3):
        commit(near, f"a{number}", (f"b{number}", NEWS), f"c{number}", puts=[f"d{number}"])
    commit(near, *"ef", ("for this site only", queue("other")), puts="g")
    assert [near.gateways(name)["divided_transactions"] for name in ("g", "h", "plain")] == [3, 3, 0]
    assert whole(read(near, "g")) == [*[f"a{each}c{each}d{each}" for each in range(3)], "efg"]
    commit(near, "i", ("j", queue("p")))
    commit(near, ("k", queue("p")), ("l", queue("other")))
    assert near.gateways("g")["divided_transactions"] == 4
    for names in ("'g', 'h'", "'g'"):  # what a commit says is written before the next one is done
        assert caplog.text.count(f"not all messages of a transaction go by the same gateways: {names};") == 1


def test_a_unit_with_a_message_that_is_none_makes_no_other_one_known(sites: tuple[Site, Site]) -> None:
    near, far = sites
    near.gateway("g", "queue:q", **WHOLE)
    commit(near, *"ab")
    found = read(near, "g")
    first, (position, _, *rest) = found["entries"]
    broken = {**found, "entries": [first, (position, b"\xc1", *rest)]}
    with pytest.raises(MessageFormatException):
        apply(near, far, broken)
    assert apply(near, far, found)["repeated"] == 0
    assert in_queue(far) == [*"ab"]
