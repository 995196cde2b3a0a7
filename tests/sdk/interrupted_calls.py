"""Calls of a session in which the handler of a signal raises, at each place where one can, and what is checked then.

The long run: ``python -m tests.sdk.interrupted_calls --handlers 10000 --seed 1``, embedded and over AMQP.
"""

from __future__ import annotations

import argparse
import dis
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import attrs

from broker_adapter import queue
from sdk import AcknowledgeMode, Connection, ConnectionFactory, DeliveryMode, IllegalStateException, Message, Session
from tests.server_process import ServerProcess

#: Messages that wait in the queue before each call.
WAITING = 5
#: How long a session that was interrupted may take to end, in seconds.
END_SECONDS = 5.0
WAIT = 10.0


class Alarm(Exception):
    """What the handler raises."""


def with_handler(call: Callable[[], None], at: int, file: str | None = None) -> int:
    """Raise Alarm at the n-th place where Python runs handlers.

    These are the begin of a function, and what is behind one of C, or behind any that is called with ``*arguments``.

    Args:
        call: is interrupted.
        at: which place.
        file: of this file and of what it calls only; None: of any.

    Returns:
        How many places the call went through.
    """
    places = 0

    def place(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal places
        files = [each.f_code.co_filename for each in (frame, frame.f_back) if each is not None]
        if (file is None or file in files) and (
            event in ("call", "c_return") or (event == "return" and _is_called_with_all(frame.f_back))
        ):
            places += 1
            if places == at:
                raise Alarm

    try:
        sys.setprofile(place)
        call()
    except Alarm:
        pass
    finally:
        sys.setprofile(None)
    return places


def _is_called_with_all(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_code[frame.f_lasti] == dis.opmap["CALL_FUNCTION_EX"]


@attrs.define
class Case:
    """One call, what is made for it, and what may be in the queue once its session has ended.

    Attributes:
        mode: of the session.
        prepare: makes what the call needs, and returns the call.
        left: the numbers of the messages that may be left, whatever happened.
        done: what of these are left where the call has returned; None: any of them.
        of_connection: whether ``prepare`` makes what the connection's stop and start concern, which is the call.
    """

    mode: AcknowledgeMode
    prepare: Callable[[Session], Callable[[], object]]
    left: list[list[int]]
    done: list[list[int]] | None = None
    of_connection: bool = False


ALL = list(range(WAITING))
NEW = WAITING  #: the number of the message that a call sends


def _producer(session: Session) -> Any:
    return session.create_producer(session.create_queue("q"))


def _consumer(session: Session, received: int = 0, **options: Any) -> tuple[Any, list[Message]]:
    consumer = session.create_consumer(session.create_queue("q"), **options)
    messages = []
    for _ in range(received):
        message = consumer.receive(WAIT)
        assert message is not None
        messages.append(message)
    return consumer, messages


def _send(session: Session) -> Callable[[], object]:
    producer = _producer(session)
    return lambda: producer.send(str(NEW))


def _send_non_persistent(session: Session) -> Callable[[], object]:
    producer = _producer(session)
    return lambda: producer.send(str(NEW), delivery_mode=DeliveryMode.NON_PERSISTENT)


def _send_with_completion(session: Session) -> Callable[[], object]:
    producer = _producer(session)
    return lambda: producer.send(str(NEW), on_completion=lambda *_: None)


def _send_all(session: Session) -> Callable[[], object]:
    producer = _producer(session)
    return lambda: producer.send_all([str(NEW), str(NEW + 1)])


def _receive(session: Session) -> Callable[[], object]:
    consumer, _ = _consumer(session)
    return lambda: consumer.receive(WAIT)


def _receive_without_prefetch(session: Session) -> Callable[[], object]:
    consumer, _ = _consumer(session, prefetch=0)
    return lambda: consumer.receive(WAIT)


def _receive_nothing(session: Session) -> Callable[[], object]:
    consumer = session.create_consumer(session.create_queue("empty"))
    return consumer.receive_nowait


def _receive_many(session: Session) -> Callable[[], object]:
    consumer, _ = _consumer(session, received=1)
    return lambda: consumer.receive_many(2, WAIT)


def _acknowledge(session: Session) -> Callable[[], object]:
    _, messages = _consumer(session, received=2)
    return messages[-1].acknowledge


def _recover(session: Session) -> Callable[[], object]:
    _consumer(session, received=2)
    return session.recover


def _work(session: Session) -> None:
    _consumer(session, received=2)
    _producer(session).send(str(NEW))


def _commit(session: Session) -> Callable[[], object]:
    _work(session)
    return session.commit


def _rollback(session: Session) -> Callable[[], object]:
    _work(session)
    return session.rollback


def _send_in_transaction(session: Session) -> Callable[[], object]:
    _consumer(session, received=1)
    return _send(session)


def _browse(session: Session) -> Callable[[], object]:
    browser = session.create_browser(session.create_queue("q"))
    return lambda: list(browser)


def _create_producer(session: Session) -> Callable[[], object]:
    _consumer(session, received=1)
    return lambda: session.create_producer(session.create_queue("q"))


def _create_consumer(session: Session) -> Callable[[], object]:
    _consumer(session, received=1)
    return lambda: session.create_consumer(session.create_queue("q"))


def _create_temporary(session: Session) -> Callable[[], object]:
    return lambda: session.delete_temporary(session.create_temporary_queue())


def _listen(session: Session) -> Callable[[], object]:
    consumer = session.create_consumer(session.create_queue("empty"))

    def listen() -> None:
        consumer.listener = print
        consumer.listener = None

    return listen


def _close_consumer(session: Session) -> Callable[[], object]:
    consumer, _ = _consumer(session, received=2)
    return consumer.close


def _close_producer(session: Session) -> Callable[[], object]:
    return _producer(session).close


def _close_browser(session: Session) -> Callable[[], object]:
    browser = session.create_browser(session.create_queue("q"))
    copies = iter(browser)
    next(copies)
    return lambda: (browser.close(), copies)


def _create_region(session: Session) -> Callable[[], object]:
    return lambda: session.create_region("r")


def _register_interest(session: Session) -> Callable[[], object]:
    region = session.create_region("r")
    return lambda: region.register_interest(["key"])


def _put(session: Session) -> Callable[[], object]:
    region = session.create_region("r")
    region.register_interest(["key"])
    return lambda: region.put("key", "value")


def _close_session(session: Session) -> Callable[[], object]:
    _consumer(session, received=2)
    return session.close


AUTO, DUPS_OK, CLIENT = AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK, AcknowledgeMode.CLIENT
INDIVIDUAL, TRANSACTED = AcknowledgeMode.INDIVIDUAL, AcknowledgeMode.TRANSACTED

#: By name.
CASES: dict[str, Case] = {
    "send": Case(AUTO, _send, [ALL, [*ALL, NEW]], [[*ALL, NEW]]),
    "send, non-persistent": Case(AUTO, _send_non_persistent, [ALL, [*ALL, NEW]], [[*ALL, NEW]]),
    "send, with a completion": Case(AUTO, _send_with_completion, [ALL, [*ALL, NEW]], [[*ALL, NEW]]),
    "send_all": Case(AUTO, _send_all, [ALL, [*ALL, NEW], [*ALL, NEW, NEW + 1]], [[*ALL, NEW, NEW + 1]]),
    "send in a transaction": Case(TRANSACTED, _send_in_transaction, [ALL]),
    "receive, AUTO": Case(AUTO, _receive, [ALL, ALL[1:]], [ALL[1:]]),
    "receive, DUPS_OK": Case(DUPS_OK, _receive, [ALL, ALL[1:]], [ALL[1:]]),
    "receive, CLIENT": Case(CLIENT, _receive, [ALL]),
    "receive, INDIVIDUAL": Case(INDIVIDUAL, _receive, [ALL]),
    "receive, TRANSACTED": Case(TRANSACTED, _receive, [ALL]),
    "receive without prefetch": Case(CLIENT, _receive_without_prefetch, [ALL]),
    "receive nothing": Case(CLIENT, _receive_nothing, [ALL]),
    "receive_many, AUTO": Case(AUTO, _receive_many, [ALL[1:], ALL[2:], ALL[3:]], [ALL[2:], ALL[3:]]),
    "receive_many, CLIENT": Case(CLIENT, _receive_many, [ALL]),
    "acknowledge, CLIENT": Case(CLIENT, _acknowledge, [ALL, ALL[2:]], [ALL[2:]]),
    "acknowledge, INDIVIDUAL": Case(INDIVIDUAL, _acknowledge, [ALL, [0, 2, 3, 4]], [[0, 2, 3, 4]]),
    "recover": Case(CLIENT, _recover, [ALL]),
    "commit": Case(TRANSACTED, _commit, [ALL, [*ALL[2:], NEW]], [[*ALL[2:], NEW]]),
    "rollback": Case(TRANSACTED, _rollback, [ALL]),
    "browse": Case(CLIENT, _browse, [ALL]),
    "create_producer": Case(CLIENT, _create_producer, [ALL]),
    "create_consumer": Case(CLIENT, _create_consumer, [ALL]),
    "a temporary queue": Case(CLIENT, _create_temporary, [ALL]),
    "listener": Case(AUTO, _listen, [ALL]),
    "create_region": Case(CLIENT, _create_region, [ALL]),
    "register_interest": Case(CLIENT, _register_interest, [ALL]),
    "put": Case(CLIENT, _put, [ALL]),
    "stop and start": Case(CLIENT, _register_interest, [ALL], of_connection=True),
    "close of a consumer": Case(CLIENT, _close_consumer, [ALL]),
    "close of a producer": Case(CLIENT, _close_producer, [ALL]),
    "close of a browser": Case(CLIENT, _close_browser, [ALL]),
    "close of a session": Case(CLIENT, _close_session, [ALL]),
}


@attrs.define
class Sweep:
    """Interrupts calls over one connection, and counts.

    Attributes:
        connection: started; every session is one of its.
        handlers: that have raised.
        ended: sessions that they have ended.
    """

    connection: Connection
    handlers: int = 0
    ended: int = 0

    def run(self, case: Case, at: int) -> int:
        """Interrupt one call at a place, and check what has come of it; returns how many places it went through."""
        feeding = self.connection.create_session()
        feeding.create_producer(feeding.create_queue("q")).send_all([str(number) for number in range(WAITING)])
        feeding.close()
        session = self.connection.create_session(case.mode)
        call = case.prepare(session)
        if case.of_connection:
            call()
            call = self._stop_and_start
        results: list[object] = []
        places = with_handler(lambda: results.append(call()), at)
        is_done = bool(results)
        self.connection.start()
        self.handlers += not is_done
        self._check_session(session)
        results.clear()
        call = print  # the case's objects are dropped
        began = time.monotonic()
        session.close()
        assert time.monotonic() - began < END_SECONDS, "the close took too long"
        left = self._left()
        expected = case.done if is_done and case.done is not None else case.left
        assert left in expected, f"{left} are left, not one of {expected}, {'done' if is_done else 'interrupted'}"
        return places

    def _stop_and_start(self) -> None:
        self.connection.stop()
        self.connection.start()

    def _check_session(self, session: Session) -> None:
        state = session._state
        assert not state.owner._is_owned(), "the session is still owned"  # type: ignore[attr-defined]
        for lock in (state.settling, state.lock, self.connection._lock, self.connection._events._lock):
            assert not lock._is_owned(), "a lock is still held"  # type: ignore[attr-defined]
        if state.lifecycle.error is None:  # the handler ran ahead of the call or behind it, or in its close
            return
        self.ended += 1
        for later in (lambda: session.create_queue("q"), lambda: session.create_browser(_QUEUE), self._ends(session)):
            try:
                later()
            except IllegalStateException as error:
                assert "Alarm()" in str(error), error  # noqa: PT017 - it is no test
            else:
                raise AssertionError("the session is used after it was interrupted")

    @staticmethod
    def _ends(session: Session) -> Callable[[], object]:
        return session.commit if session.transacted else session.recover

    def _left(self) -> list[int]:
        """Take all that is in the queue, in order."""
        session = self.connection.create_session()
        consumer = session.create_consumer(session.create_queue("q"))
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append(int(message.body))
        session.close()
        return found

    def check_end(self) -> None:
        """The connection works, and no thread of a session or lock of a session is left."""
        assert self._left() == []
        end = time.monotonic() + WAIT
        while any(each.name.startswith("holdfast-session") for each in threading.enumerate()):
            assert time.monotonic() < end, [each.name for each in threading.enumerate()]
            time.sleep(0.01)
        assert not self.connection._sessions.values()


_QUEUE = queue("q")


def sweep(connection: Connection, name: str, handlers: int, chance: random.Random) -> Sweep:
    """Have so many handlers raise in one call, at places that are spread over it."""
    made = Sweep(connection)
    places = made.run(CASES[name], 0)
    step = max(1.0, places / handlers)
    while made.handlers < handlers:
        for turn in range(int(places / step)):
            at = int((turn + chance.random()) * step) + 1
            try:
                made.run(CASES[name], at)
            except BaseException as error:
                error.add_note(f"{name}: the handler raised at place {at} of {places}")
                raise
            if made.handlers >= handlers:
                break
    made.check_end()
    return made


def main() -> None:
    """Run them all."""
    parser = argparse.ArgumentParser(prog="interrupted_calls", description=__doc__)
    parser.add_argument("--handlers", type=int, default=10_000, help="how many raise, all in all")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    each = -(-arguments.handlers // (2 * len(CASES)))
    print(f"seed {arguments.seed}: {each} handlers a case")
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder)) as server:
        for url in ("embedded:", server.url):
            for name in CASES:
                began = time.monotonic()
                with ConnectionFactory(url).create_connection() as connection:
                    connection.start()
                    made = sweep(connection, name, each, chance)
                took = time.monotonic() - began
                print(
                    f"{url[:8]} {name}: {made.handlers} raised, {made.ended} sessions ended, {took:.1f} s", flush=True
                )


if __name__ == "__main__":
    main()
