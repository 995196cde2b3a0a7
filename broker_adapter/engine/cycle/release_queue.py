"""The way out of an engine whose store has copies: what a cycle has made leaves once its commit is released.

Theory of operation
    A cycle makes its effects right after its commit, and ends: the next one decides while these wait.  They leave in
    the thread that releases the commit, or at the end of a cycle whose commit is released already.

    *Order.*  One thread at a time lets effects go, the one that has the *turn*.  Another one that comes meanwhile does
    not wait for it: the first one looks again for what is released before it goes.  So a cycle never waits for
    callbacks that a release has called, no commit's effects leave ahead of those of the one before, and no two threads
    call callbacks at once.  A cycle and a callback may run at once.

    *No waiting.*  A callback runs in a thread that carries out a cycle, or that the copies need for their next
    answer; a call that waits for the engine is refused there, by ``callback_threads``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from broker_adapter.answers import Answer
from broker_adapter.engine.commands.callbacks import tell
from broker_adapter.engine.cycle.releases import Effect, Releases
from broker_adapter.engine.store.replication import Replication
from broker_adapter.errors import JMSException, OperationTimedOutException, copied
from broker_adapter.wording import in_seconds

#: How long what was read waits for its release, where no other limit is given; in seconds.
RELEASE_SECONDS: Final = 30.0


class ReleaseQueue:
    """The effects of an engine that wait.

    Args:
        replication: says which commits are released.
        callback_threads: of the engine; has a thread that lets effects go, meanwhile.
        resume: is called once the queue is no longer full.
    """

    def __init__(self, replication: Replication, callback_threads: set[int], resume: Callable[[], None]) -> None:
        self._replication = replication
        self._callback_threads = callback_threads
        self._resume = resume
        self._made: list[Effect] = []  #: in the cycle under way
        self._releases = Releases()
        self._lock = threading.Lock()  #: of them; for moments
        self._turn = threading.Lock()  #: of the thread that lets effects go
        self._error: JMSException | None = None
        self._unregister = replication.on_release(self.let_go)

    @property
    def is_full(self) -> bool:
        """Whether no further commit may be made until something is released, or at all for now."""
        return self._releases.is_full or not self._replication.serves

    @property
    def waits(self) -> bool:
        """Whether something waits."""
        return self._releases.size > 0

    # In a cycle.

    def hand_out(self, sink: Callable[[Any], None], handouts: Any) -> None:
        """Have messages or events leave with the cycle."""
        self._made.append(Effect(sink, handouts, is_answer=False))

    def answer(self, reply: Callable[[Any], None], result: Any) -> None:
        """Have an answer leave with the cycle."""
        self._made.append(Effect(reply, result, is_answer=True))

    def end_cycle(self) -> None:
        """Have all that was made wait for the last commit, and let go what is released."""
        made, self._made = self._made, []
        if made:
            with self._lock:
                self._releases.add(self._replication.lsn, made)
        self.let_go()

    # In any thread.

    def let_go(self) -> None:
        """Let go what is released, unless another thread does so: that one looks again before it ends."""
        while self._has_released() and self._turn.acquire(blocking=False):
            try:
                self._tell_released()
            finally:
                self._turn.release()

    def _has_released(self) -> bool:
        with self._lock:
            return self._releases.has(self._replication.released)

    def _tell_released(self) -> None:
        with self._lock:
            was_full = self._releases.is_full
            effects = self._releases.release(self._replication.released)
            resumes = was_full and not self._releases.is_full
        if resumes:
            self._resume()
        with called_back(self._callback_threads):
            for callback, value, _ in effects:
                tell(callback, value)

    @contextmanager
    def shown(self, timeout: float | None) -> Iterator[None]:
        """Wait, at the end, until all is released that was committed when it was read; errors tell of it, too."""
        try:
            yield
        except JMSException:
            self.wait(timeout)
            raise
        self.wait(timeout)

    def wait(self, timeout: float | None) -> None:
        """Wait until the last commit is released, and what depends on it and those before has left.

        Args:
            timeout: longest wait in seconds; None: no limit.

        Raises:
            OperationTimedOutException: it was not released in time.
            JMSException: the engine has stopped.
        """
        if not self._replication.serves:
            raise OperationTimedOutException(
                "this node does not serve now: another one may be the primary of the group, or its coordinator is away"
            )
        answer = Answer()
        with self._lock:
            if self._error is not None:
                raise copied(self._error)
            lsn = self._replication.lsn
            if lsn <= self._replication.released and not self._releases.has(lsn):
                return
            self._releases.add(lsn, [Effect(answer.reply, None, is_answer=True)])
        self.let_go()
        if not answer.arrives(timeout):
            raise OperationTimedOutException(
                f"the other nodes of the group did not confirm commit {lsn} within {in_seconds(timeout or 0.0)}"
            )
        if answer.error is not None:
            raise copied(answer.error)

    # At the end.

    def has_left(self, runner: threading.Lock, timeout: float) -> bool:
        """Wait for what is not released yet; returns whether it has left.

        Args:
            runner: which the caller holds; not held meanwhile, since what copies ask for may need it.
            timeout: longest wait in seconds.
        """
        runner.release()
        try:
            self.wait(timeout)
        except JMSException:
            return False
        finally:
            runner.acquire()
        return True

    def fail(self, error: JMSException) -> None:
        """Let go what is released; all others that wait for an answer get the error, and nothing else is delivered."""
        self._unregister()
        with self._turn:
            self._tell_released()
            with self._lock:
                self._error = error
                left = self._releases.clear() + self._made
                self._made = []
            for callback, _, is_answer in left:
                if is_answer:
                    tell(callback, error)


@contextmanager
def called_back(callback_threads: set[int]) -> Iterator[None]:
    """Have this thread be one in which callbacks are called, meanwhile."""
    thread = threading.get_ident()
    is_new = thread not in callback_threads
    callback_threads.add(thread)
    try:
        yield
    finally:
        if is_new:
            callback_threads.discard(thread)
