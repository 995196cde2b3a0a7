"""What is moved and what is trimmed takes turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.cycle import background
from broker_adapter.engine.cycle.background_jobs import MOVES_IN_A_ROW, BackgroundJobs
from broker_adapter.engine.operations.requests import steps_of
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, connect, drained, message, payloads, send


def parts(number: int, count: int) -> Iterator[c.Command]:
    for _ in range(count):
        yield c.Drop(number)


def numbers(jobs: BackgroundJobs, count: int) -> list[int]:
    """Whose parts the next ones are."""
    found = [jobs.next() for _ in range(count)]
    return [each.queue for each in found if isinstance(each, c.Drop)]


def test_moves_go_ahead_of_trims_and_in_their_order() -> None:
    jobs = BackgroundJobs()
    jobs.trim(parts(1, 3))
    jobs.move(parts(2, 2))
    jobs.move(parts(3, 1))
    assert numbers(jobs, 4) == [2, 2, 3, 1]
    assert len(jobs) == 1
    assert numbers(jobs, 9) == [1, 1]
    assert len(jobs) == 0


def test_a_move_is_done_when_what_comes_behind_its_last_part_is_asked_for() -> None:
    jobs = BackgroundJobs()
    jobs.move(parts(1, 2))
    jobs.move(parts(2, 1))
    done = []
    for _ in range(4):
        done.append(jobs.moves_done)
        jobs.next()
    assert done == [0, 0, 0, 1]
    assert (jobs.moves_added, jobs.moves_done) == (2, 2)


def test_a_trim_has_its_turn_however_much_is_moved() -> None:
    jobs = BackgroundJobs()
    jobs.trim(parts(1, 3))
    jobs.move(parts(2, 100))
    assert numbers(jobs, 2 * MOVES_IN_A_ROW + 2) == ([2] * MOVES_IN_A_ROW + [1]) * 2


def test_publishing_waits_for_its_own_messages_and_not_for_deleted_queues(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    try:
        client = connect(broker)
        send(broker, client, "big", *range(50))
        broker.call(c.Stage("g/1/a", queue("out"), 0, [message("x"), message("y")]), WAIT)
        reader = broker._reader()
        chunk, background.CHUNK_ENTRIES = background.CHUNK_ENTRIES, 1
        try:
            with broker._runner:  # no other thread carries out a cycle
                broker.submit(c.Delete(queue("big")))
                broker._cycle()
                answers: list[object] = []
                steps = steps_of("publish", {"group": "g", "number": 1, "transactions": ["g/1/a"]})
                result: object = None
                cycles = 0
                while True:
                    try:
                        step = steps.send(result)
                    except StopIteration as end:
                        answers.append(end.value)
                        break
                    if isinstance(step, tuple):
                        replies: list[object] = []
                        broker.submit(step._replace(reply=replies.append))
                        broker._cycle()
                        cycles += 1
                        result = replies[0]
                    else:
                        result = step(reader)
                assert answers == [True]
                assert cycles < 10
                assert len(broker._jobs) == 1  # the deleted queue is still being trimmed
        finally:
            background.CHUNK_ENTRIES = chunk
        assert payloads(drained(broker, client, "out")) == [b"x", b"y"]
    finally:
        broker.close()
