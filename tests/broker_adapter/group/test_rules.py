"""The rules of a node, sentence by sentence; a lease of 2 s, a time-out of 3 s."""

from __future__ import annotations

from typing import TypeVar

import attrs
import pytest

from broker_adapter.errors import IllegalStateException
from broker_adapter.group.record import COPY, GroupRecord, NodeRecord
from broker_adapter.group.rules import (
    Action,
    Follow,
    Lead,
    Node,
    Read,
    RefuseSends,
    Release,
    Serve,
    Stopped,
    Swap,
)

NODES = {name: NodeRecord(name, 1) for name in ("n1", "n2", "n3")}
RECORD = GroupRecord("store", 5, "n1", frozenset(NODES), NODES, 100, "w1", 1, 2)
LEFT = attrs.evolve(RECORD, leaves=True)
_A = TypeVar("_A", bound=Action)


def node(name: str, lsn: int | None = 10) -> Node:
    return Node(name, NODES[name], f"w of {name}", lsn, 2.0, 3.0)


def of(kind: type[_A], actions: list[Action]) -> list[_A]:
    return [each for each in actions if isinstance(each, kind)]


def swapped(actions: list[Action]) -> GroupRecord:
    """The record that is to be swapped in."""
    [swap] = of(Swap, actions)
    return swap.record


def follower(name: str = "n2", record: GroupRecord = RECORD, lsn: int | None = 10) -> Node:
    """One that has read the record at 0."""
    made = node(name, lsn)
    assert made.tick(0.0) == [Read()]
    made.record_read(record, "t100", 0.0)
    return made


def primary(in_sync: frozenset[str] = RECORD.in_sync, lsn: int = 10, **fields: object) -> tuple[Node, list[Action]]:
    """One of term 6, from 0 on, and what it did first."""
    record = attrs.evolve(RECORD, in_sync=in_sync, **fields)
    made = node("n1", lsn)
    made.tick(0.0)
    assert swapped(made.record_read(record, "t100", 0.0)).term == 6
    return made, made.swap_won("t101", 0.0)


def ask(made: Node, name: str, lsn: int | None, now: float, term: int = 6) -> list[Action]:
    return made.asked(name, NODES[name], term, lsn, now)


def keep(made: Node, now: float, *names: str) -> list[Action]:
    """Some ask twice, with all that there is: they are up to date."""
    assert made.reign
    return [action for name in names * 2 for action in ask(made, name, made.reign.committed, now)]


def answer(made: Node, actions: list[Action], now: float) -> list[Action]:
    """The swap wins."""
    return made.swap_won(f"t{swapped(actions).renewed}", now)


# Who may stand.


def test_a_node_follows_the_primary_that_the_record_names() -> None:
    made = node("n2")
    made.tick(0.0)
    assert made.record_read(RECORD, "t", 0.0) == [Follow(5, "n1")]


def test_a_node_in_sync_stands_when_it_has_read_the_same_record_four_times_more() -> None:
    made = follower()
    for now in (0.5, 1.0, 1.5):
        assert made.tick(now) == [Read()]
        assert made.record_read(RECORD, "t100", now) == []
    assert made.tick(2.0) == [Read()]
    record = swapped(made.record_read(RECORD, "t100", 2.0))
    assert (record.term, record.primary, record.in_sync) == (6, "n2", {"n2", "n3"})
    assert (record.renewed, record.writer) == (101, "w of n2")


def test_one_that_reads_a_renewed_record_waits_anew() -> None:
    made = follower()
    for part in range(1, 40):
        made.tick(part / 2)
        renewed = attrs.evolve(RECORD, renewed=100 + part // 4)
        assert made.record_read(renewed, part // 4, part / 2) == []


def test_a_process_that_was_stopped_does_not_stand_as_it_wakes() -> None:
    made = follower()
    assert made.tick(60.0) == [Read()]
    assert made.record_read(RECORD, "t100", 60.0) == []


def test_a_coordinator_that_was_away_deposes_nobody() -> None:
    made = follower()
    for now in range(1, 60):
        assert of(Swap, made.tick(now) + made.no_answer(now)) == []
    made.tick(60.0)
    assert of(Swap, made.record_read(RECORD, "t100", 60.0)) == []


def test_reading_more_often_does_not_make_it_stand_earlier() -> None:
    made = follower()
    for part in range(19):
        made.told(part / 10)
        assert made.record_read(RECORD, "t100", part / 10) == []


@pytest.mark.parametrize("lsn", [10, None])
def test_one_that_is_not_in_sync_or_has_an_empty_store_never_stands(lsn: int | None) -> None:
    in_sync = RECORD.in_sync if lsn is None else frozenset({"n1", "n3"})
    for record in (RECORD, attrs.evolve(RECORD, leaves=True)):
        record = attrs.evolve(record, in_sync=in_sync)
        made = follower("n2", record, lsn)
        assert made.refused(record.term, "n1", 0.1) == []
        for part in range(1, 30):
            made.tick(part / 2)
            assert made.record_read(record, "t100", part / 2) == []


def test_where_the_primary_leaves_a_node_in_sync_stands_at_once() -> None:
    made = node("n2")
    made.tick(0.0)
    record = swapped(made.record_read(LEFT, "t", 0.0))
    assert (record.term, record.primary, record.in_sync, record.leaves) == (6, "n2", {"n2", "n3"}, False)


def test_where_nothing_listens_at_the_primarys_address_a_node_in_sync_stands_at_once() -> None:
    record = swapped(follower().refused(5, "n1", 0.1))
    assert (record.term, record.primary, record.in_sync) == (6, "n2", {"n2", "n3"})


def test_a_refusal_by_the_primary_of_another_term_says_nothing() -> None:
    made = follower()
    assert made.refused(4, "n1", 0.1) == []
    later = attrs.evolve(RECORD, term=6, primary="n3", renewed=101)
    made.refused(5, "n1", 0.2)
    made.no_answer(0.3)
    assert of(Swap, made.record_read(later, "t101", 0.4)) == []


def test_a_refusal_by_a_primary_that_has_handed_over_says_nothing_of_its_successor() -> None:
    made = follower()
    assert made.told(0.1) == [Read()]
    made.refused(5, "n1", 0.1)
    handed_over = attrs.evolve(RECORD, primary="n3", in_sync=frozenset({"n2", "n3"}), renewed=101)
    assert made.record_read(handed_over, "t101", 0.1) == [Follow(5, "n3")]


def test_where_nobody_stands_a_primary_that_has_left_stands_as_it_comes_back() -> None:
    made = node("n1")
    made.tick(0.0)
    record = swapped(made.record_read(LEFT, "t", 0.0))
    assert (record.term, record.primary, record.in_sync, record.leaves) == (6, "n1", RECORD.in_sync, False)


def test_a_primary_that_was_started_again_begins_a_new_term_at_once() -> None:
    made = node("n1")
    made.tick(0.0)
    actions = made.record_read(RECORD, "t", 0.0)
    assert of(Lead, actions) == []
    assert swapped(actions).term == 6
    assert of(Lead, made.swap_won("t101", 0.1)) == [Lead(6)]


def test_one_whose_swap_has_lost_follows_who_has_won() -> None:
    made = node("n2")
    made.tick(0.0)
    made.record_read(LEFT, "t", 0.0)
    assert made.no_answer(0.1) == [Read()]
    won = attrs.evolve(RECORD, term=6, primary="n3", renewed=101, writer="w of n3")
    assert made.record_read(won, "t101", 0.2) == [Follow(6, "n3")]


def test_one_whose_answer_was_lost_finds_itself_primary_as_it_reads_again() -> None:
    made = node("n2")
    made.tick(0.0)
    record = swapped(made.record_read(LEFT, "t", 0.0))
    assert made.no_answer(0.1) == [Read()]
    assert of(Lead, made.record_read(record, "t101", 0.2)) == [Lead(6)]


def test_a_read_that_was_overtaken_says_nothing() -> None:
    made, _ = primary()
    made.tick(0.5)
    made.no_answer(0.6)
    assert of(Follow, made.record_read(RECORD, "t100", 0.7)) == []
    assert made.reign is not None


# What is released.


def test_a_new_primary_releases_nothing_before_the_others_in_sync_have_what_it_has() -> None:
    made, actions = primary()
    assert of(Lead, actions) == [Lead(6)]
    assert of(Release, actions) == [Release(-1)]
    assert of(Release, ask(made, "n2", 10, 0.1)) == []
    assert of(Release, ask(made, "n3", 8, 0.1)) == [Release(8)]
    assert of(Release, ask(made, "n3", 10, 0.2)) == [Release(10)]


def test_what_all_in_sync_have_is_released() -> None:
    made, _ = primary()
    keep(made, 0.1, "n2", "n3")
    assert of(Release, made.committed(12, 0.2)) == []
    assert of(Release, ask(made, "n2", 12, 0.2)) == []
    assert of(Release, ask(made, "n3", 11, 0.2)) == [Release(11)]
    assert of(Release, ask(made, "n3", 12, 0.2)) == [Release(12)]


def test_one_that_has_more_than_the_own_disk_releases_nothing_more() -> None:
    made, _ = primary(frozenset({"n1", "n2"}))
    assert of(Release, ask(made, "n2", 15, 0.1)) == [Release(10)]


def test_a_primary_that_is_in_sync_alone_releases_what_it_commits() -> None:
    made, actions = primary(frozenset({"n1"}))
    assert of(Release, actions) == [Release(10)]
    assert of(Release, made.committed(11, 0.1)) == [Release(11)]


def test_what_a_node_says_in_another_term_counts_for_nothing() -> None:
    made, _ = primary(frozenset({"n1", "n2"}))
    assert of(Release, ask(made, "n2", 10, 0.1, term=5)) == []
    assert of(Release, ask(made, "n2", 10, 0.1, term=6)) == [Release(10)]


# Who is in sync.


def test_one_that_is_behind_for_the_timeout_is_taken_out_before_it_is_passed_over() -> None:
    made, _ = primary()
    keep(made, 0.1, "n2", "n3")
    made.committed(11, 0.2)
    now, actions = 0.2, list[Action]()
    while not of(Swap, actions) or swapped(actions).in_sync == RECORD.in_sync:
        assert of(Release, actions) == []
        if of(Swap, actions):
            answer(made, actions, now)
        now += 0.25
        assert now < 4
        actions = made.tick(now) + keep(made, now, "n2")
    assert now > 3
    assert swapped(actions).in_sync == {"n1", "n2"}
    assert of(Release, actions) == []
    assert made.no_answer(now) == [Read()], "it may be carried out, or not"
    assert of(Release, made.record_read(swapped(actions), "t", now)) == [Release(11)]


def test_one_that_is_slow_and_gets_on_stays_in_sync() -> None:
    made, _ = primary()
    for part in range(1, 60):
        now = part / 4
        actions = made.committed(10 + part, now)
        for name in ("n2", "n3"):
            actions += ask(made, name, 9 + part, now)
        for swap in of(Swap, actions):
            assert swap.record.in_sync == RECORD.in_sync
            made.swap_won(now, now)


def test_one_that_has_stopped_is_taken_out_at_once() -> None:
    made, _ = primary()
    keep(made, 0.1, "n2", "n3")
    assert swapped(made.gone("n3", 0.2)).in_sync == {"n1", "n2"}


def test_one_that_takes_an_image_is_taken_out_at_once() -> None:
    made, _ = primary()
    keep(made, 0.1, "n2", "n3")
    assert swapped(ask(made, "n3", None, 0.2)).in_sync == {"n1", "n2"}


def test_a_primary_that_was_stopped_gives_the_others_their_time_again() -> None:
    made, _ = primary()
    for name in ("n2", "n3"):
        ask(made, name, 10, 0.1)
    made.tick(0.2)
    assert swapped(made.tick(60.0)).in_sync == RECORD.in_sync


def test_one_that_comes_counts_from_before_the_swap_that_adds_it() -> None:
    made, _ = primary(frozenset({"n1"}))
    made.committed(12, 0.1)
    assert of(Swap, ask(made, "n2", 5, 0.1)) == []
    assert of(Release, made.committed(13, 0.2)) == [Release(13)]
    assert of(Swap, ask(made, "n2", 12, 0.2)) == [], "it had what there was, and lacks what was released since"
    assert of(Release, made.committed(14, 0.3)) == [], "it counts"
    actions = ask(made, "n2", 13, 0.3)
    assert swapped(actions).in_sync == {"n1", "n2"}
    assert of(Release, actions) == []
    assert of(Release, ask(made, "n2", 14, 0.4)) == [Release(14)], "while the swap is under way"
    made.committed(15, 0.5)
    made.gone("n2", 0.5)
    assert made.no_answer(0.6) == [Read()]
    before = made.record
    assert before
    actions = made.record_read(before, "t101", 0.7)
    assert of(Release, actions) == [], "the swap that was not carried out may still be"
    assert swapped(actions).in_sync == {"n1"}
    assert of(Release, answer(made, actions, 0.8)) == [Release(15)]


def test_one_that_begins_to_count_and_is_gone_before_its_swap_counts_no_more() -> None:
    made, _ = primary(frozenset({"n1"}))
    ask(made, "n2", 5, 0.1)
    made.committed(13, 0.2)
    ask(made, "n2", 10, 0.2)
    assert of(Release, made.committed(14, 0.3)) == []
    assert of(Release, made.gone("n2", 0.4)) == [Release(14)]


def test_a_copy_never_gets_in_sync() -> None:
    copy = NodeRecord("n2", 1, COPY)
    made, _ = primary(frozenset({"n1"}), nodes={**NODES, "n2": copy})
    for now in (0.1, 0.2):
        assert of(Swap, made.asked("n2", copy, 6, 10, now)) == []


def test_a_node_that_the_record_does_not_have_is_added_first() -> None:
    made, _ = primary(frozenset({"n1"}), nodes={"n1": NODES["n1"]})
    actions = ask(made, "n2", 10, 0.1)
    assert swapped(actions).nodes.keys() == {"n1", "n2"}
    assert swapped(actions).in_sync == {"n1"}
    answer(made, actions, 0.2)
    assert swapped(ask(made, "n2", 10, 0.3)).in_sync == {"n1", "n2"}


def test_sends_are_refused_while_too_few_are_in_sync() -> None:
    made, actions = primary(frozenset({"n1"}))
    assert of(RefuseSends, actions) == [RefuseSends("1 of 2 nodes are in sync")]
    assert of(RefuseSends, answer(made, ask(made, "n2", 10, 0.1), 0.2)) == [RefuseSends("")]


# The lease, and who is deposed.


def test_a_primary_renews_each_quarter_of_the_lease() -> None:
    made, _ = primary()
    assert made.tick(0.4) == []
    actions = made.tick(0.5)
    assert swapped(actions).renewed == 102
    assert made.tick(0.6) == [], "one request at a time"
    assert answer(made, actions, 0.7) == [], "nobody need be told"
    assert made.tick(1.1) == []
    assert swapped(made.tick(1.2)).renewed == 103


def test_a_primary_stops_serving_when_its_lease_may_have_run_out_and_others_do_not_ask() -> None:
    made, actions = primary()
    assert of(Serve, actions) == [Serve(True)]
    assert of(Serve, made.tick(1.9)) == []
    keep(made, 1.95, "n2")
    assert of(Serve, made.tick(2.0)) == [Serve(False)], "n3 may be primary"


def test_it_goes_on_without_the_coordinator_while_all_others_ask() -> None:
    made, _ = primary()
    actions = []
    for part in range(1, 100):
        now = part / 4
        actions += made.tick(now)
        keep(made, now, "n2", "n3")
        if of(Swap, actions) or of(Read, actions):
            actions += made.no_answer(now)
    assert of(Serve, actions) == []
    assert of(Release, made.committed(11, 25.0) + ask(made, "n2", 11, 25.0) + ask(made, "n3", 11, 25.0)) == [
        Release(11)
    ]


def test_one_that_is_in_sync_alone_goes_on_without_the_coordinator() -> None:
    made, _ = primary(frozenset({"n1"}))
    assert of(Serve, made.tick(30.0) + made.no_answer(30.0)) == []
    assert of(Release, made.committed(11, 31.0)) == [Release(11)]


def test_a_lease_is_counted_from_when_its_renewal_was_sent() -> None:
    made, _ = primary()
    actions = made.tick(0.5)
    answer(made, actions, 2.4)
    assert of(Serve, made.tick(2.45)) == []
    assert of(Serve, made.tick(2.55)) == [Serve(False)]


def test_a_primary_that_reads_of_another_one_follows_it() -> None:
    made, _ = primary()
    made.tick(0.5)
    assert made.no_answer(0.6) == [Read()]
    record = attrs.evolve(RECORD, term=7, primary="n2", renewed=105, writer="w of n2")
    assert made.record_read(record, "t", 0.7) == [Follow(7, "n2")]
    assert of(Release, ask(made, "n2", 11, 0.8)) == []


def test_an_answer_that_fails_is_followed_by_a_pause() -> None:
    made, _ = primary()
    made.tick(0.5)
    assert made.no_answer(0.6) == [Read()]
    assert made.no_answer(0.6) == []
    assert made.tick(1.0) == []
    assert of(Read, made.tick(1.1)) == [Read()]


def test_whoever_is_told_looks_at_the_record() -> None:
    made = follower()
    assert made.told(0.01) == [Read()]
    assert made.told(0.02) == []
    assert made.record_read(RECORD, "t100", 0.03) == [Read()], "it may have been read before it changed"
    assert made.record_read(RECORD, "t100", 0.04) == []


# What an administrator wants.


def test_a_hand_over_waits_until_the_successor_has_everything() -> None:
    made, _ = primary()
    keep(made, 0.1, "n2", "n3")
    made.committed(11, 0.1)
    actions = made.hand_over("n3", 0.2)
    assert actions == [Serve(False)]
    assert of(Swap, ask(made, "n2", 11, 0.2)) == []
    actions = ask(made, "n3", 11, 0.2)
    record = swapped(actions)
    assert (record.term, record.primary, record.in_sync) == (6, "n3", {"n2", "n3"})
    assert answer(made, actions, 0.3) == [Follow(6, "n3")]
    successor = node("n3")
    successor.tick(0.3)
    assert swapped(successor.record_read(record, "t", 0.3)).term == 7


def test_a_hand_over_to_one_that_falls_behind_is_given_up() -> None:
    made, _ = primary()
    keep(made, 0.1, "n2", "n3")
    made.committed(11, 0.1)
    made.hand_over("n3", 0.2)
    actions = made.gone("n3", 0.3)
    assert of(Serve, answer(made, actions, 0.4)) == [Serve(True)]


def test_a_hand_over_is_given_up_where_the_coordinator_does_not_answer() -> None:
    made, _ = primary()
    keep(made, 0.1, "n2", "n3")
    assert swapped(made.hand_over("n3", 0.2)).primary == "n3"
    actions = []
    for part in range(1, 13):
        now = 0.2 + part / 4
        actions += made.no_answer(now) + keep(made, now, "n2", "n3")
    assert of(Serve, actions) == [Serve(True)]
    assert now == pytest.approx(3.2)


def test_a_hand_over_needs_a_primary_and_another_node_in_sync() -> None:
    with pytest.raises(IllegalStateException, match="n2 is not the primary"):
        follower().hand_over("n3", 0.1)
    made, _ = primary(frozenset({"n1", "n2"}))
    for name in ("n1", "n3", "n4"):
        with pytest.raises(
            IllegalStateException, match=f"{name} is the primary, or not in sync; nodes that can take over: n2"
        ):
            made.hand_over(name, 0.1)


def test_a_primary_that_stops_leaves_when_another_one_has_everything() -> None:
    made, _ = primary()
    keep(made, 0.1, "n2", "n3")
    made.committed(11, 0.1)
    assert made.stop(0.2) == [Serve(False)]
    actions = ask(made, "n2", 11, 0.3)
    record = swapped(actions)
    assert (record.primary, record.leaves, record.in_sync) == ("n1", True, RECORD.in_sync)
    assert answer(made, actions, 0.4) == [Follow(6, ""), Stopped()]


def test_one_that_is_in_sync_alone_or_follows_stops_at_once() -> None:
    made, _ = primary(frozenset({"n1"}))
    assert Stopped() in made.stop(0.1)
    assert Stopped() in follower().stop(0.1)


def test_a_primary_whose_disk_fails_leaves_at_once() -> None:
    made, _ = primary()
    made.committed(11, 0.1)
    actions = made.stop(0.2, failed=True)
    assert of(Serve, actions) == [Serve(False)]
    assert swapped(actions).leaves


def test_who_is_forced_becomes_primary_alone_without_being_in_sync() -> None:
    made = follower("n2", attrs.evolve(RECORD, in_sync=frozenset({"n1"})))
    made.force(0.1)
    assert made.record is not None
    for now in (1.0, 2.0, 3.0):
        made.tick(now)
        assert of(Swap, made.record_read(made.record, "t100", now)) == []
    made.tick(4.0)
    record = swapped(made.record_read(made.record, "t100", 4.0))
    assert (record.term, record.primary, record.in_sync) == (6, "n2", {"n2"})
    assert of(Lead, made.swap_won("t101", 4.1)) == [Lead(6)]
    with pytest.raises(IllegalStateException, match="n2 is primary already"):
        made.force(4.2)


def test_a_force_deposes_no_primary_that_renews_the_record() -> None:
    made = follower("n2", attrs.evolve(RECORD, in_sync=frozenset({"n1"})))
    made.force(0.1)
    for renewed in range(101, 120):
        now = float(renewed)
        made.tick(now)
        record = attrs.evolve(RECORD, in_sync=frozenset({"n1"}), renewed=renewed)
        assert of(Swap, made.record_read(record, f"t{renewed}", now)) == []


def test_a_force_is_given_up_where_another_node_has_become_primary() -> None:
    made = follower("n2", attrs.evolve(RECORD, in_sync=frozenset({"n1"})))
    made.force(0.1)
    made.no_answer(0.2)
    other = attrs.evolve(RECORD, term=6, primary="n3", in_sync=frozenset({"n3"}), renewed=101, writer="w of n3")
    assert made.record_read(other, "t101", 0.3) == [Follow(6, "n3")]


def test_force_needs_a_store_and_the_record() -> None:
    with pytest.raises(IllegalStateException, match="n2 has nothing"):
        follower("n2", lsn=None).force(0.1)
    with pytest.raises(IllegalStateException, match="has not read the group's record yet"):
        node("n2").force(0.1)


def test_a_node_leaves_by_the_primary() -> None:
    made, _ = primary()
    keep(made, 0.1, "n2", "n3")
    record = swapped(made.leave("n3", 0.2))
    assert record.nodes.keys() == record.in_sync == {"n1", "n2"}
    for other, name in ((made, "n1"), (follower(), "n3")):
        with pytest.raises(IllegalStateException, match="hand over first"):
            other.leave(name, 0.3)


def test_the_version_of_the_stores_is_raised_once_every_node_knows_it() -> None:
    made = Node("n1", NodeRecord("n1", 2), "w", 10, 2.0, 3.0)
    made.tick(0.0)
    actions = made.record_read(RECORD, "t100", 0.0)
    for name, expected in (("n2", 1), ("n3", 2)):
        answer(made, actions, 0.1)
        actions = made.asked(name, NodeRecord(name, 2), 6, 10, 0.1)
        assert swapped(actions).store_version == expected
