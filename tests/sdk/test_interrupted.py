"""What a handler of a signal does at the worst of places: programs that raise the signal there."""

from __future__ import annotations

import pytest

from tests import forked_command
from tests.sdk.interrupted_programs import (
    BEGIN,
    CLOSE_CONNECTION,
    CLOSE_CONSUMER,
    CLOSED_TWICE,
    CLOSED_WITHIN,
    COMMITTED,
    CONFIRMING,
    ENGINE_FAILS,
    NESTED,
    OPENING,
    STARTED,
    STOPPED,
)
from tests.server_process import ServerProcess


def run(program: str, *arguments: str) -> None:
    end = "\nconnection.close()\n"
    done = forked_command.run_python(["-c", BEGIN + program + end, *(arguments or ("embedded:",))])
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_handler_may_close_the_connection_whose_engine_fails_meanwhile(tmp_path: object) -> None:
    run(ENGINE_FAILS, f"embedded:{tmp_path}?close_timeout_seconds=1")


def test_a_handler_cannot_receive_send_or_commit_in_the_middle_of_a_call_of_that_session() -> None:
    run(NESTED)


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


@pytest.mark.parametrize("place", ["as it tells", "behind the broker"])
def test_completions_say_what_became_of_a_commit_in_which_a_handler_closes(place: str) -> None:
    run(COMMITTED, "embedded:", place)


def test_a_handler_may_close_the_connection_that_another_thread_stops() -> None:
    run(STOPPED, "embedded:?close_timeout_seconds=5")


def test_an_engine_is_given_back_whose_opening_was_interrupted_twice(tmp_path: object) -> None:
    run(OPENING, "embedded:", str(tmp_path))


def test_a_transaction_goes_on_without_the_message_whose_consumer_a_handler_has_closed() -> None:
    run(CLOSED_WITHIN)


def test_a_close_waits_for_no_confirmation_of_a_receive_that_was_interrupted() -> None:
    run(CONFIRMING, "embedded:?synchronous_acknowledge=true&close_timeout_seconds=20")


@pytest.mark.parametrize("place", ["drain", "detach", "end_session"])
@pytest.mark.parametrize("what", ["session", "connection"])
def test_what_was_only_prefetched_is_not_counted_though_its_close_was_interrupted(what: str, place: str) -> None:
    run(CLOSED_TWICE, "embedded:", what, place)


def test_the_start_of_a_connection_that_was_interrupted_is_done_again_without_the_session_that_it_was_at() -> None:
    run(STARTED)
