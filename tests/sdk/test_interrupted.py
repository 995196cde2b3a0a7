"""What a handler of a signal does at the worst of places: programs that raise the signal there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sdk.interrupted_programs import (
    ACKNOWLEDGED,
    BEGIN,
    CLOSE_CONNECTION,
    CLOSE_CONSUMER,
    CLOSE_OTHERS,
    CLOSED_TWICE,
    CLOSED_WITHIN,
    COMMITTED,
    COMPLETIONS,
    CONFIRMED,
    CONFIRMING,
    CREDIT,
    DROPPED,
    ENGINE_FAILS,
    GIVEN_BACK,
    LEFT_IN_BUFFER,
    LEFT_OWNED,
    NESTED,
    OPENING,
    OWN_ERROR,
    REQUESTOR,
    SETTLED,
    STARTED,
    STOPPED,
    STOPPING,
    TAKEN_BACK,
)
from tests.server_process import ServerProcess


def run(program: str, *arguments: str) -> None:
    end = "\nconnection.close()\n"
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program + end, *(arguments or ("embedded:",))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_handler_may_close_the_connection_whose_engine_fails_meanwhile(tmp_path: object) -> None:
    run(ENGINE_FAILS, f"embedded:{tmp_path}?close_timeout_seconds=1")


def test_a_handler_cannot_receive_send_or_commit_in_the_middle_of_a_call_of_that_session() -> None:
    run(NESTED)


@pytest.mark.parametrize("mode", ["CLIENT", "INDIVIDUAL", "TRANSACTED"])
def test_a_message_is_received_next_whatever_the_handler_has_raised(mode: str) -> None:
    run(OWN_ERROR, "embedded:", mode)


def test_the_next_close_of_a_connection_closes_the_sessions_that_are_left() -> None:
    run(CLOSE_CONNECTION)


@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "amqp"])
def test_the_next_close_of_an_exclusive_consumer_gives_its_place_away(
    tmp_path_factory: pytest.TempPathFactory, embedded: bool
) -> None:
    if embedded:
        run(CLOSE_CONSUMER)
        return
    with ServerProcess(tmp_path_factory.mktemp("data")) as server:
        run(CLOSE_CONSUMER, server.url)


@pytest.mark.parametrize("arguments", [(), ("behind",)], ids=["ahead", "behind"])
def test_the_next_close_of_a_producer_a_browser_or_a_context_ends_what_is_left(arguments: tuple[str, ...]) -> None:
    run(CLOSE_OTHERS, "embedded:", *arguments)


def test_completions_are_told_behind_one_whose_send_was_interrupted() -> None:
    run(COMPLETIONS)


@pytest.mark.parametrize("does", ["raises", "closes"])
@pytest.mark.parametrize("place", ["as it tells", "behind the broker"])
def test_completions_say_what_became_of_a_commit_that_was_interrupted(does: str, place: str) -> None:
    run(COMMITTED, "embedded:", does, place)


@pytest.mark.parametrize("program", [STOPPED, DROPPED, REQUESTOR], ids=["stop", "dropped", "requestor"])
def test_what_was_interrupted_is_closed_all_the_same(program: str) -> None:
    run(program, "embedded:?close_timeout_seconds=5")


@pytest.mark.parametrize("timeout", ["0", "5"])
@pytest.mark.parametrize("prefetch", ["0", "10"])
def test_what_waits_is_received_though_credit_for_it_was_interrupted(prefetch: str, timeout: str) -> None:
    run(CREDIT, "embedded:", prefetch, timeout)


@pytest.mark.parametrize("place", ["as it is made", "as it is settled"])
@pytest.mark.parametrize("mode", ["AUTO", "DUPS_OK"])
def test_nothing_stays_in_hand_whose_acknowledgement_was_interrupted(mode: str, place: str) -> None:
    run(SETTLED, "embedded:", mode, place)


def test_an_engine_is_given_back_whose_opening_was_interrupted_twice(tmp_path: object) -> None:
    run(OPENING, "embedded:", str(tmp_path))


def test_what_is_given_back_is_given_back_once() -> None:
    run(GIVEN_BACK)


def test_a_transaction_goes_on_without_the_message_whose_consumer_a_handler_has_closed() -> None:
    run(CLOSED_WITHIN)


def test_a_handler_may_raise_an_error_of_the_type_that_a_lock_raises() -> None:
    run(STOPPING)


def test_a_session_is_free_behind_a_call_that_was_interrupted_as_it_began() -> None:
    run(LEFT_OWNED)


@pytest.mark.parametrize("then", ["again", "ends", "closes", "listener"])
@pytest.mark.parametrize("place", ["drain", "settle", "credit"])
@pytest.mark.parametrize("mode", ["CLIENT", "INDIVIDUAL", "TRANSACTED"])
def test_what_an_interrupted_recover_or_rollback_takes_back_comes_with_the_next_call(
    mode: str, place: str, then: str
) -> None:
    run(TAKEN_BACK, "embedded:", mode, place, then)


@pytest.mark.parametrize("timeout", ["0", "10"])
@pytest.mark.parametrize("mode", ["CLIENT", "INDIVIDUAL", "TRANSACTED"])
def test_what_an_interrupted_recover_has_given_back_is_not_received_from_the_buffer(mode: str, timeout: str) -> None:
    run(LEFT_IN_BUFFER, "embedded:", mode, timeout)


@pytest.mark.parametrize("place", ["ahead", "at the transport", "behind"])
@pytest.mark.parametrize("mode", ["CLIENT", "INDIVIDUAL"])
def test_the_next_acknowledge_acknowledges_what_an_interrupted_one_has_not(mode: str, place: str) -> None:
    run(ACKNOWLEDGED, "embedded:", mode, place)


def test_the_next_acknowledge_waits_for_the_broker_where_one_was_interrupted_as_it_waited() -> None:
    run(CONFIRMED, "embedded:?synchronous_acknowledge=true")


def test_a_close_waits_for_no_confirmation_of_a_receive_that_was_interrupted() -> None:
    run(CONFIRMING, "embedded:?synchronous_acknowledge=true&close_timeout_seconds=20")


@pytest.mark.parametrize("place", ["drain", "settle", "detach", "end_session"])
@pytest.mark.parametrize("what", ["session", "connection"])
def test_what_was_only_prefetched_is_not_counted_though_its_close_was_interrupted(what: str, place: str) -> None:
    run(CLOSED_TWICE, "embedded:", what, place)


def test_messages_come_though_the_start_of_the_connection_was_interrupted() -> None:
    run(STARTED)
