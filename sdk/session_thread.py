"""The thread of a session: runs its listeners and completion callbacks one after the other.

It exists only while a listener, a completion callback or a late acknowledgement needs it, and a moment longer: it
would keep a session that is not referenced any more.
"""

from __future__ import annotations

import itertools
import threading
import time

from broker_adapter import JMSException
from sdk.receiving.consumer import Redeliver
from sdk.session_state import UNSTARTED_SECONDS, SessionState

#: Messages that one consumer's listener gets before the next consumer has its turn.
_TURN_MESSAGES = 32
#: How long it waits to be needed again, in seconds.
_LINGER = 1.0
#: How long a listener is paused whose next message could not be taken, in seconds.
_AFTER_AN_ERROR = 1.0


class SessionThread:
    """Runs until the session says stop, or nothing needs it."""

    def __init__(self, state: SessionState, redeliver: Redeliver) -> None:
        """A thread that does not run yet.

        Args:
            state: the session's.
            redeliver: gives back what a consumer's listener raised on, in the thread that owns the session.
        """
        self._state = state
        self._redeliver = redeliver
        self._stopping = False
        self._unneeded_since: float | None = None  #: monotonic seconds
        self._began = time.monotonic()
        self.thread = threading.Thread(target=self._run, name=f"holdfast-session-{state.number}", daemon=True)

    def stop(self) -> None:
        """End after what runs now; ``thread.join`` waits for that."""
        with self._state.lock:
            self._stopping = True
            self._state.wake()

    def _run(self) -> None:
        state = self._state
        owned = False
        while True:
            serving = state.running and bool(state.listening) and not self._stopping
            # The session belongs to this thread for as long as it serves listeners, also while it waits.
            if serving and not owned:
                state.served = True  # ahead, so that no thread finds it taken and this not set
                state.served = owned = state.owner.acquire(timeout=0.05)
            elif owned and not serving:
                owned = self._leave()
            state.complete()
            if owned:
                self._listen()
            self._settle_due()
            if not self._wait(owned):
                break
        if owned:
            self._leave()
        while self._stopping:  # otherwise another thread may tell by now
            state.complete()
            with state.making_thread:
                if state.thread not in (self.thread, None):
                    break  # one that was started meanwhile
                state.thread = None
                if not self._may_tell():
                    break
                state.thread = self.thread  # whoever needs it may have seen that it was there
        del self._redeliver  # the session refers to this

    def _leave(self) -> bool:
        """The session is free for other threads; returns False."""
        self._state.owner.release()
        self._state.served = False  # afterwards, so that a thread that sees this finds it free
        return False

    def _listen(self) -> None:
        state = self._state
        for consumer in list(state.listening.values()):
            for _ in itertools.repeat(None, _TURN_MESSAGES):
                if not consumer._has_work:
                    break
                with state.lock:
                    if not state.running or self._stopping:
                        return
                    state.dispatching = consumer
                try:
                    consumer._dispatch(self._redeliver)
                except JMSException as error:  # of the broker, which could not take note of the delivery
                    state.report(error)
                    consumer._resumes_at = time.monotonic() + _AFTER_AN_ERROR
                    return
                finally:
                    state.dispatching = None
                    state.wake()
            try:
                consumer._ask_for_work()
            except JMSException as error:
                state.report(error)

    def _settle_due(self) -> None:
        state = self._state
        due_at = state.policy.due_at
        if due_at is None or time.monotonic() < due_at:
            return
        try:
            with state.settling:
                state.settle(state.policy.due(time.monotonic()))
        except JMSException as error:
            state.report(error)

    def _may_tell(self) -> bool:
        completions = self._state.completions
        return bool(completions) and completions[0].done

    def _is_needed(self) -> bool:
        state = self._state
        if len(state.completions) > len(state.send_completions):  # the others end with the transaction
            return True
        return state.lifecycle.usable and (bool(state.listening) or state.policy.due_at is not None)

    def _wait(self, owned: bool) -> bool:
        """Wait for work; returns False when it is time to stop."""
        state = self._state
        due_at = state.policy.due_at
        end_at = None
        needed = self._is_needed()
        if needed:
            self._unneeded_since = None
        else:
            self._unneeded_since = self._unneeded_since or time.monotonic()
            end_at = self._unneeded_since + _LINGER

        def something() -> bool:
            if state.policy.due_at != due_at or self._is_needed() != needed:
                return True  # there is another instant to wait for
            if self._stopping or self._may_tell():
                return True
            serving = state.running and bool(state.listening)
            if serving != owned:
                return True
            return owned and any(consumer._has_work for consumer in list(state.listening.values()))

        unstarted = next(iter(list(state.listening.values())), None) if state.is_unstarted else None
        warn_at = None if unstarted is None else self._began + UNSTARTED_SECONDS
        instants = [due_at, end_at, warn_at]
        if owned:
            instants += [consumer._resumes_at for consumer in list(state.listening.values())]
        state.wait_until(something, min((each for each in instants if each is not None), default=None))
        if unstarted is not None and time.monotonic() >= self._began + UNSTARTED_SECONDS:
            state.warn_unstarted(unstarted._lifecycle.name)
        with state.making_thread:
            if end_at is not None and time.monotonic() >= end_at and not self._is_needed():
                state.thread = None  # a call that needs one from here on starts another one
                if not self._is_needed():  # else a call that needs it may have seen that it was there
                    return False
                state.thread = self.thread
            return not self._stopping
