"""Every row and column of the table in the docstring of ``ack_modes``, and the law below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

import ack_modes
from ack_modes import AcknowledgeMode, AckPolicy, BatchLimits, DeliveryTag, Failure, Outcome, Settlement
from ack_modes.client import MAX_LOST_LINKS, ClientPolicy
from ack_modes.individual import MAX_STALE, IndividualPolicy

_BATCH = BatchLimits(messages=3, delay_seconds=1.0)
_REJECTED = Failure("no such customer", Outcome.REJECTED)


def _tag(number: int, epoch: int = 0) -> DeliveryTag:
    return DeliveryTag(epoch, 1, number)


def _table() -> list[tuple[str, str, str]]:
    lines = [line for line in (ack_modes.__doc__ or "").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head = rows[0][1:]
    return [(row[0], column, text) for row in rows[2:] for column, text in zip(head, row[1:], strict=True)]


def _new(mode: str) -> AckPolicy:
    return AcknowledgeMode[mode].new_policy(_BATCH)


def _see(policy: AckPolicy, *numbers: int) -> list[Settlement]:
    """The application receives these; returns what was settled on the way."""
    settled: list[Settlement] = []
    for number in numbers:
        policy.delivered(_tag(number))
        settled += policy.consumed(_tag(number), 0.0)
    return settled


def _modified(*numbers: int) -> list[Settlement]:
    return [Settlement(_tag(number), Outcome.MODIFIED) for number in numbers]


def _accepted(*numbers: int) -> list[Settlement]:
    return [Settlement(_tag(number), Outcome.ACCEPTED) for number in numbers]


def _failed(*numbers: int) -> list[Settlement]:
    return [Settlement(_tag(number), Outcome.FAILED) for number in numbers]


def _given_back(mode: str, *numbers: int) -> list[Settlement]:
    """What is left at the end: undone in order, or failed each by itself."""
    return (_failed if mode == "INDIVIDUAL" else _modified)(*numbers)


def _everything(policy: AckPolicy) -> list[Settlement]:
    """What is left to settle, from the end of the session and from an acknowledgement before it."""
    return [*policy.due(1e9), *policy.recover()]


# One check for each text that a cell can have, given the event of its column.


def _answer(policy: AckPolicy, column: str) -> Sequence[Settlement]:
    """The column's event, on delivery 1, as the last of its history."""
    tag = _tag(1)
    if column == "delivered":
        policy.delivered(tag)
        return ()
    policy.delivered(tag)
    if column == "consumed":
        return policy.consumed(tag, 0.0)
    if column == "listener raised":
        return policy.listener_raised(tag, 0.0)
    if column == "`acknowledge()`":
        return policy.acknowledge(tag).settlements
    if column == "`reject()`, `retry()`":
        ending = policy.settle(tag, _REJECTED)
        return () if ending is None else ending.settlements
    if column == "commit":
        return policy.commit().settlements
    if column == "rollback, recover, close":
        return policy.recover()
    assert column == "interrupted"
    policy.interrupted(1)
    return ()


def _nothing(mode: str, column: str) -> None:
    policy = _new(mode)

    assert list(_answer(policy, column)) == []


def _hold(mode: str, column: str) -> None:
    policy = _new(mode)

    assert list(_answer(policy, column)) == []
    assert _everything(policy) == _given_back(mode, 1)


def _accept_it(mode: str, column: str) -> None:
    policy = _new(mode)
    if column == "`acknowledge()`":
        policy.delivered(_tag(7))  # another one, which stays

    assert list(_answer(policy, column)) == _accepted(1)
    assert _everything(policy) == (_given_back(mode, 7) if column == "`acknowledge()`" else [])


def _fail_it(mode: str, column: str) -> None:
    policy = _new(mode)

    assert list(_answer(policy, column)) == [Settlement(_tag(1), Outcome.FAILED)]
    assert _everything(policy) == []


def _end_it(mode: str, column: str) -> None:
    policy = _new(mode)
    policy.delivered(_tag(7))  # another one
    rest = _given_back(mode, 7) if policy.acknowledge(_tag(7)).settlements else []  # where the mode holds it, it stays
    policy = _new(mode)
    policy.delivered(_tag(7))

    assert list(_answer(policy, column)) == [Settlement(_tag(1), _REJECTED)]
    assert policy.settle(_tag(1), _REJECTED) is None
    assert list(policy.consumed(_tag(1), 0.0)) == list(policy.listener_raised(_tag(1), 0.0)) == []
    assert _everything(policy) == rest


def _end_it_in_hand(mode: str, column: str) -> None:
    _end_it(mode, column)
    policy = _new(mode)
    _see(policy, 1)

    assert policy.settle(_tag(1), _REJECTED) is None


def _end_it_in_the_commit(mode: str, column: str) -> None:
    policy, undone = _new(mode), _new(mode)
    _see(policy, 5)
    assert policy.settle(_tag(4), _REJECTED) is None

    assert list(_answer(policy, column)) == []
    assert list(policy.commit().settlements) == [*_accepted(5), Settlement(_tag(1), _REJECTED)]
    assert policy.settle(_tag(1), _REJECTED) is None
    assert _answer(policy, "delivered") == ()
    assert list(policy.commit().settlements) == _accepted(1)  # the next transaction

    _answer(undone, column)
    assert _everything(undone) == _modified(1)
    _answer(undone, column)
    undone.interrupted(1)
    assert undone.settle(_tag(1), _REJECTED) == ((), False, 0)
    assert _ending(undone, _tag(1)) == ((), True, 1)


def _refuse(mode: str, column: str) -> None:
    policy = _new(mode)
    policy.delivered(_tag(1))

    assert policy.settle(_tag(1), _REJECTED) is None


def _accept_batch(mode: str, column: str) -> None:
    full, late, idle = _new(mode), _new(mode), _new(mode)

    assert _see(full, 1, 2) == []
    assert _see(full, 3) == _accepted(1, 2, 3)

    assert _see(late, 1) == []
    late.delivered(_tag(2))
    assert list(late.consumed(_tag(2), 1.0)) == _accepted(1, 2)

    assert idle.due_at is None
    assert _see(idle, 1) == []
    assert idle.due_at == 1.0
    assert list(idle.due(0.999)) == []
    assert list(idle.due(1.0)) == _accepted(1)
    assert idle.due_at is None


def _accept_all_held(mode: str, column: str) -> None:
    policy = _new(mode)
    assert _see(policy, 5, 6) == []

    assert list(_answer(policy, column)) == _accepted(5, 6, 1)
    assert _everything(policy) == []


def _fail_one_in_hand(mode: str, column: str) -> None:
    policy = _new(mode)

    assert list(_answer(policy, column)) == _failed(1)
    assert list(policy.consumed(_tag(1), 0.0)) == []  # its listener returns afterwards
    assert _everything(policy) == []


def _accept_rest_fail_one(mode: str, column: str) -> None:
    policy = _new(mode)
    assert _see(policy, 5, 6) == []

    assert list(_answer(policy, column)) == [*_accepted(5, 6), *_failed(1)]
    assert list(policy.consumed(_tag(1), 0.0)) == []
    assert _everything(policy) == []


def _modify_all_held(mode: str, column: str) -> None:
    policy = _new(mode)
    assert _see(policy, 5, 6) == []

    assert list(_answer(policy, column)) == _modified(5, 6, 1)
    assert _everything(policy) == []


def _fail_all_held(mode: str, column: str) -> None:
    policy = _new(mode)
    assert _see(policy, 5, 6) == []

    assert list(_answer(policy, column)) == _failed(5, 6, 1)
    assert _everything(policy) == []


def _forget(mode: str, column: str) -> None:
    policy = _new(mode)
    _see(policy, 5)

    assert list(_answer(policy, column)) == []
    assert list(policy.consumed(_tag(1), 0.0)) == []
    assert policy.acknowledge(_tag(1)) == policy.commit() == ((), False, 0)
    assert _everything(policy) == []


def _ending(policy: AckPolicy, tag: DeliveryTag) -> ack_modes.Ending:
    if not policy.transacted:
        return policy.acknowledge(tag)
    return policy.commit()


def _forget_dirty_if_held(mode: str, column: str) -> None:
    policy, clean = _new(mode), _new(mode)
    clean.interrupted(1)
    clean.delivered(_tag(9, epoch=1))
    assert not _ending(clean, _tag(9, epoch=1)).dirty

    assert list(_answer(policy, column)) == []
    told = _ending(policy, _tag(1))
    assert (told.dirty, told.stale_count, list(told.settlements)) == (True, 1, [])
    assert _ending(policy, _tag(1)) == ((), False, 0)  # once
    assert _everything(policy) == []


def _forget_dirty_if_worked(mode: str, column: str) -> None:
    _forget_dirty_if_held(mode, column)
    policy = _new(mode)
    policy.sent()

    policy.interrupted(1)

    assert _ending(policy, _tag(1)) == ((), True, 0)
    assert policy.commit() == ((), False, 0)


_CHECKS: dict[str, Callable[[str, str], None]] = {
    "-": _nothing,
    "hold": _hold,
    "accept it": _accept_it,
    "fail it": _fail_it,
    "end it so": _end_it,
    "end it so, if it is in hand": _end_it_in_hand,
    "note it for the commit": _end_it_in_the_commit,
    "refuse": _refuse,
    "accept when a batch is full or a short time has passed": _accept_batch,
    "accept all held": _accept_all_held,
    "fail the one in hand": _fail_one_in_hand,
    "accept the rest, fail the one in hand": _accept_rest_fail_one,
    "modify all held": _modify_all_held,
    "fail all held": _fail_all_held,
    "forget": _forget,
    "forget; dirty if any was held": _forget_dirty_if_held,
    "forget; dirty if anything was sent or received": _forget_dirty_if_worked,
}


@pytest.mark.parametrize(("mode", "column", "text"), _table(), ids=lambda cell: cell.replace("`", ""))
def test_policy_does_what_its_cell_of_the_table_says(mode: str, column: str, text: str) -> None:
    _CHECKS[text](mode, column)


def test_table_has_a_row_for_each_mode_and_a_column_for_each_event() -> None:
    table = _table()

    assert [mode for mode, column, _ in table if column == "delivered"] == [
        "AUTO",
        "DUPS_OK",
        "CLIENT",
        "INDIVIDUAL",
        "TRANSACTED",
        "NO_ACK",
    ]
    assert {mode.name for mode in AcknowledgeMode} == {mode for mode, _, _ in table}
    assert len(table) == 6 * 8


# What goes beyond the table.


def test_dirty_client_session_gives_back_what_came_after_the_interruption() -> None:
    policy = _new("CLIENT")
    _see(policy, 1, 2)
    policy.interrupted(1)
    policy.delivered(_tag(1, epoch=1))

    ending = policy.acknowledge(_tag(1, epoch=1))

    assert ending == ((Settlement(_tag(1, epoch=1), Outcome.MODIFIED),), True, 2)
    policy.delivered(_tag(2, epoch=1))
    assert policy.acknowledge(_tag(2, epoch=1)) == ((Settlement(_tag(2, epoch=1), Outcome.ACCEPTED),), False, 0)


def test_dirty_transaction_gives_back_what_came_after_the_interruption() -> None:
    policy = _new("TRANSACTED")
    _see(policy, 1)
    policy.interrupted(1)
    policy.delivered(_tag(1, epoch=1))
    policy.sent()

    assert _ending(policy, _tag(1)) == ((Settlement(_tag(1, epoch=1), Outcome.MODIFIED),), True, 1)
    assert policy.commit() == ((), False, 0)


@pytest.mark.parametrize("mode", ["CLIENT", "INDIVIDUAL", "TRANSACTED"])
def test_recover_makes_a_dirty_session_clean(mode: str) -> None:
    policy = _new(mode)
    policy.sent()
    _see(policy, 1)
    policy.interrupted(1)

    assert list(policy.recover()) == []
    assert _ending(policy, _tag(1)) == ((), False, 0)


@pytest.mark.parametrize("mode", ["CLIENT", "INDIVIDUAL", "TRANSACTED"])
def test_delivery_that_was_on_its_way_when_the_connection_was_lost_is_stale(mode: str) -> None:
    policy = _new(mode)
    policy.interrupted(1)

    policy.delivered(_tag(1))

    assert _ending(policy, _tag(1)) == ((), True, 1)


def test_individual_session_acknowledges_good_messages_while_others_are_stale() -> None:
    policy = _new("INDIVIDUAL")
    _see(policy, 1)
    policy.interrupted(1)
    policy.delivered(_tag(1, epoch=1))

    assert policy.acknowledge(_tag(1, epoch=1)) == ((Settlement(_tag(1, epoch=1), Outcome.ACCEPTED),), False, 0)
    assert policy.acknowledge(_tag(1)).dirty


def test_individual_message_acknowledged_twice_is_settled_once() -> None:
    policy = _new("INDIVIDUAL")
    _see(policy, 1)

    assert policy.acknowledge(_tag(1)).settlements == tuple(_accepted(1))
    assert policy.acknowledge(_tag(1)) == ((), False, 0)


@pytest.mark.parametrize("mode", list(AcknowledgeMode))
@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.REJECTED])
def test_what_the_application_never_saw_ends_as_the_session_says(mode: AcknowledgeMode, outcome: Outcome) -> None:
    policy = mode.new_policy()

    settlements = list(policy.passed_over([_tag(1), _tag(2)], outcome))

    assert settlements == ([] if policy.presettled else [Settlement(_tag(1), outcome), Settlement(_tag(2), outcome)])
    assert _everything(policy) == []


@pytest.mark.parametrize("mode", ["CLIENT", "INDIVIDUAL"])
def test_a_stale_message_cannot_be_rejected(mode: str) -> None:
    policy = _new(mode)
    _see(policy, 1)
    policy.interrupted(1)

    ending = policy.settle(_tag(1), _REJECTED)

    assert ending == ((), True, 1)
    assert policy.settle(_tag(1), _REJECTED) is None


def test_dups_ok_with_no_delay_accepts_at_once() -> None:
    policy = AcknowledgeMode.DUPS_OK.new_policy(BatchLimits(messages=100, delay_seconds=0.0))

    assert _see(policy, 1) == _accepted(1)


def test_only_one_mode_is_transacted_and_one_presettled() -> None:
    assert [mode.name for mode in AcknowledgeMode if mode.new_policy().transacted] == ["TRANSACTED"]
    assert [mode.name for mode in AcknowledgeMode if mode.new_policy().presettled] == ["NO_ACK"]


def test_mode_shows_its_name() -> None:
    assert repr(AcknowledgeMode.DUPS_OK) == "AcknowledgeMode.DUPS_OK"
    assert AcknowledgeMode.DUPS_OK.label == "dups_ok"


# What a lost connection or link leaves behind.


def _on_link(link: int, number: int) -> DeliveryTag:
    return DeliveryTag(0, link, number)


def test_a_stale_message_does_not_acknowledge_what_came_after_the_connection_was_lost() -> None:
    policy = _new("CLIENT")
    policy.delivered(_tag(1))
    policy.interrupted(1)
    assert policy.acknowledge(_tag(1)).dirty
    policy.delivered(_tag(2, epoch=1))
    assert list(policy.acknowledge(_tag(1)).settlements) == []
    assert list(policy.acknowledge(_tag(2, epoch=1)).settlements) == [Settlement(_tag(2, 1), Outcome.ACCEPTED)]


def test_a_message_of_a_lost_link_does_not_acknowledge_what_came_on_others() -> None:
    policy = _new("CLIENT")
    policy.delivered(_on_link(1, 1))
    policy.link_lost(1)
    assert policy.acknowledge(_on_link(1, 1)).stale_count == 1
    policy.delivered(_on_link(2, 2))
    assert list(policy.acknowledge(_on_link(1, 1)).settlements) == []
    assert len(policy.acknowledge(_on_link(2, 2)).settlements) == 1


@pytest.mark.parametrize("mode", ["CLIENT", "INDIVIDUAL", "TRANSACTED"])
def test_a_lost_link_makes_stale_what_came_on_it_and_nothing_else(mode: str) -> None:
    policy = _new(mode)
    for tag in (_on_link(1, 1), _on_link(2, 2), _on_link(1, 3)):
        policy.delivered(tag)
    policy.link_lost(1)
    if mode == "TRANSACTED":
        ending = policy.commit()
        assert ending.stale_count == 2
    elif mode == "CLIENT":
        ending = policy.acknowledge(_on_link(2, 2))
        assert ending.stale_count == 2
    else:
        ending = policy.acknowledge(_on_link(1, 3))
        assert ending.stale_count == 1
        assert [tag for tag, _ in policy.recover()] == [_on_link(2, 2)]
        return
    assert ending.dirty
    assert list(ending.settlements) == [Settlement(_on_link(2, 2), Outcome.MODIFIED)]


@pytest.mark.parametrize("mode", ["CLIENT", "TRANSACTED"])
def test_a_link_on_which_nothing_is_held_may_be_lost(mode: str) -> None:
    policy = _new(mode)
    policy.delivered(_on_link(2, 2))
    policy.link_lost(1)
    ending = policy.commit() if mode == "TRANSACTED" else policy.acknowledge(_on_link(2, 2))
    assert not ending.dirty
    assert list(ending.settlements) == [Settlement(_on_link(2, 2), Outcome.ACCEPTED)]


def test_a_batch_forgets_what_came_on_a_lost_link() -> None:
    policy = _new("DUPS_OK")
    for tag in (_on_link(1, 1), _on_link(2, 2)):
        policy.delivered(tag)
        policy.consumed(tag, 0.0)
    policy.delivered(_on_link(1, 3))
    policy.link_lost(1)
    assert list(policy.consumed(_on_link(1, 3), 0.0)) == []
    assert list(policy.recover()) == [Settlement(_on_link(2, 2), Outcome.ACCEPTED)]
    policy.delivered(_on_link(2, 4))
    policy.consumed(_on_link(2, 4), 0.0)
    policy.link_lost(2)
    assert policy.due_at is None


def test_the_message_in_hand_is_forgotten_with_its_link() -> None:
    policy = _new("AUTO")
    policy.delivered(_on_link(1, 1))
    policy.link_lost(2)
    assert len(policy.recover()) == 1
    policy.delivered(_on_link(1, 2))
    policy.link_lost(1)
    assert list(policy.consumed(_on_link(1, 2), 0.0)) == []


def test_a_commit_that_was_done_leaves_nothing_of_the_loss_behind() -> None:
    policy = _new("TRANSACTED")
    policy.delivered(_tag(1))
    policy.sent()
    assert len(policy.commit().settlements) == 1
    policy.interrupted(1)  # while the broker was doing it
    assert policy.commit() == ack_modes.Ending(())


@pytest.mark.parametrize("mode", [mode.name for mode in AcknowledgeMode])
def test_only_auto_tells_of_an_acknowledgement_that_was_lost(mode: str) -> None:
    assert _new(mode).tells_lost_acknowledgements is (mode == "AUTO")
    assert _new(mode).raises_lost_acknowledgements is (mode in ("CLIENT", "INDIVIDUAL"))


def test_what_a_transaction_sends_while_the_network_is_away_is_not_lost_with_it() -> None:
    policy = _new("TRANSACTED")
    policy.interrupted(1)
    policy.sent()
    policy.restored(2)
    assert policy.commit() == ((), False, 0)
    policy.delivered(_tag(1, epoch=2))
    assert policy.commit().settlements == (Settlement(_tag(1, epoch=2), Outcome.ACCEPTED),)


@pytest.mark.parametrize("mode", ["AUTO", "DUPS_OK", "CLIENT", "INDIVIDUAL", "TRANSACTED", "NO_ACK"])
def test_what_a_receive_was_interrupted_on_is_delivered_again(mode: str) -> None:
    policy = _new(mode)
    before = _see(policy, 1)
    policy.delivered(_tag(2))
    assert policy.withdrawn(_tag(2))
    settled = before + _see(policy, 2, 3)
    settled += policy.acknowledge(_tag(3)).settlements
    settled += policy.commit().settlements
    settled += _everything(policy)
    assert [each.tag.number for each in settled].count(2) == (mode != "NO_ACK")


@pytest.mark.parametrize(
    ("mode", "again"),
    [("AUTO", False), ("DUPS_OK", True), ("CLIENT", True), ("INDIVIDUAL", True), ("TRANSACTED", True)],
)
def test_what_is_consumed_is_delivered_again_unless_it_is_settled(mode: str, again: bool) -> None:
    policy = _new(mode)
    settled = _see(policy, 1)
    assert not policy.withdrawn(_tag(2))
    assert policy.withdrawn(_tag(1)) is again
    assert bool(settled) is not again
    assert not policy.withdrawn(_tag(1))
    assert [*policy.acknowledge(_tag(1)).settlements, *policy.commit().settlements, *_everything(policy)] == []


@pytest.mark.parametrize("mode", ["AUTO", "DUPS_OK", "CLIENT", "INDIVIDUAL", "TRANSACTED"])
def test_what_the_broker_took_back_meanwhile_is_not_delivered_again_from_here(mode: str) -> None:
    for what in ("connection", "link"):
        policy = _new(mode)
        policy.delivered(_tag(1))
        if what == "connection":
            policy.interrupted(1)
        else:
            policy.link_lost(1)
            assert not policy.withdrawn(_tag(1))


# Limits.


def test_an_individual_session_remembers_no_more_losses_than_its_limit_and_none_counts_as_acknowledged() -> None:
    policy = IndividualPolicy()
    for epoch in range(30):
        for number in range(1000):
            policy.delivered(_tag(number, epoch))
        policy.interrupted(epoch + 1)
        policy.restored(epoch + 1)
    assert len(policy._stale) <= MAX_STALE
    for epoch in (0, 15, 29):
        ending = policy.acknowledge(_tag(7, epoch))
        assert (list(ending.settlements), ending.dirty, ending.stale_count) == ([], True, 1)
    assert policy.acknowledge(_tag(7, 29)) == ((), False, 0)  # once
    policy.delivered(_tag(7, 30))
    assert policy.acknowledge(_tag(7, 30)).settlements == (Settlement(_tag(7, 30), Outcome.ACCEPTED),)
    assert policy.acknowledge(_tag(7, 30)) == ((), False, 0)
    policy.recover()
    assert policy.acknowledge(_tag(8, 0)) == ((), False, 0)


def test_an_individual_session_remembers_lost_links_within_its_limit() -> None:
    policy = IndividualPolicy()
    for number in range(MAX_STALE + 5):
        policy.delivered(_on_link(1, number))
    policy.link_lost(1)
    assert len(policy._stale) == MAX_STALE
    policy.delivered(_on_link(2, 1))
    assert not policy.acknowledge(_on_link(2, 1)).dirty
    assert policy.acknowledge(_on_link(1, 0)).dirty


def test_a_client_session_remembers_lost_links_within_its_limit_and_what_came_on_them_acknowledges_nothing() -> None:
    policy = ClientPolicy()
    policy.delivered(_on_link(5, 1))
    for link in range(10, 100_010):
        policy.delivered(_on_link(link, link))
        policy.link_lost(link)
        ending = policy.acknowledge(_on_link(link, link))
        assert (ending.dirty, ending.stale_count) == (True, 1)
        policy.delivered(_on_link(5, link))
    assert len(policy._lost_links) == MAX_LOST_LINKS
    for link in (10, 50_000, 100_009):
        assert policy.acknowledge(_on_link(link, link)) == ((), False, 0), link
    # What is held on a link that lives is acknowledged, by whichever of it, or by none.
    for tag in (_on_link(5, 100_009), DeliveryTag(-1, -1, -1)):
        assert policy.acknowledge(tag).settlements == (Settlement(_on_link(5, 100_009), Outcome.ACCEPTED),)
        policy.delivered(_on_link(5, 100_009))
    policy.interrupted(1)
    assert not policy._lost_links


@pytest.mark.parametrize("mode", ["CLIENT", "INDIVIDUAL", "TRANSACTED", "AUTO", "DUPS_OK", "NO_ACK"])
def test_links_that_are_lost_for_ever_leave_nothing_beyond_a_limit(mode: str) -> None:
    policy = _new(mode)
    for link in range(2 * MAX_STALE):
        policy.delivered(_on_link(link, link))
        policy.link_lost(link)
    for name in type(policy).__slots__:
        kept = getattr(policy, name)
        assert not hasattr(kept, "__len__") or len(kept) <= MAX_STALE, name
