"""A thread that keeps a copy: it connects to the server, follows it, and connects again when the connection is lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker_adapter.errors import JMSException, ResourceAllocationException
from broker_adapter.group.copy_files import CopyFiles
from broker_adapter.group.following import Following, NoAnswer, Standing
from broker_adapter.limited_log import LimitedLog
from broker_adapter.transport import Credentials, Transport

_log = logging.getLogger(f"holdfast.{__name__}")

#: Pause after a failure, in seconds; it is doubled up to the longest, which is also for how long a connection has to
#: last to begin anew.
_FIRST_PAUSE_SECONDS: Final = 0.02
_LONGEST_PAUSE_SECONDS: Final = 1.0
#: Pause between two answers: what changes in this time comes in one.
_BATCH_SECONDS: Final = 0.05
#: How the client id of a node of a group begins, by which its primary lets it in, whatever else waits.
NODE_CLIENT: Final = "holdfast-node-"
#: Longest wait for an answer, in seconds: requests wait for a commit for less.
_ANSWER_SECONDS: Final = 60.0
#: Longest wait for the end of a question, and for the answer that the server knows of the stop, in seconds.
_LAST_WORD_SECONDS: Final = 1.0
#: Longest wait for the thread as it is stopped, in seconds.
_STOP_SECONDS: Final = 10.0


def unexpected(error: Exception) -> JMSException:
    """Log an error that nothing foresees, and return what to end with; its cause may be a damaged page."""
    _log.exception("! unexpected error")
    failure = JMSException(f"unexpected error {error!r}")
    failure.__cause__ = error
    return failure


class Follower:
    """Keeps a copy.

    Args:
        files: of the copy.
        standing: what the copy is to the server.
        connect: returns what connects to the server; it is not open yet, and not restored.
        image_rate: bytes of an image a second, at most; None: as fast as it comes.
        ended: called with the error when nothing more is done, since the store of the copy has failed, or is none.
        heard: called with True when the server has answered, and with False when it does no longer.
        refused: called when nothing listens where the server was.
    """

    def __init__(
        self,
        files: CopyFiles,
        standing: Standing,
        connect: Callable[[], Transport],
        image_rate: float | None,
        ended: Callable[[JMSException], None],
        heard: Callable[[bool], None] = lambda _is_heard: None,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._files = files
        self._standing = standing
        self._connect = connect
        self._image_rate = image_rate
        self._ended = ended
        self._heard = heard
        self._refused = refused
        self._is_heard = False
        self._stopping = threading.Event()
        self._says_so = False
        self._transport: Transport | None = None
        self._log = LimitedLog(_log, records=1)
        self._thread = threading.Thread(target=self._run, name="holdfast-copy", daemon=True)

    def __repr__(self) -> str:
        return f"<Follower {self._standing.node!r}>"

    def start(self) -> None:
        """Start to follow."""
        self._thread.start()

    def stop(self, *, says_so: bool = False) -> bool:
        """End the thread; returns whether it has ended, so that it writes nothing any more.

        What was under way is not in the copy; nothing is half there.

        Args:
            says_so: tell the server, of whose group this is a node, that it need not be waited for.
        """
        self._says_so = says_so
        self._stopping.set()
        if says_so:
            self._thread.join(_LAST_WORD_SECONDS)  # a question of a node ends by itself soon
        transport = self._transport
        if transport is not None:
            transport.close(0)
        self._thread.join(_STOP_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            pause = _FIRST_PAUSE_SECONDS
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    self._follow()
                except (NoAnswer, ResourceAllocationException) as error:
                    if not self._stopping.is_set():
                        self._tell(error)
                if time.monotonic() - began > _LONGEST_PAUSE_SECONDS:
                    pause = _FIRST_PAUSE_SECONDS
                self._stopping.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except JMSException as error:
            self._ended(error)
        except Exception as error:
            self._ended(unexpected(error))

    def _tell(self, error: Exception) -> None:
        is_copy = self._standing.term is None
        if is_copy or isinstance(error, ResourceAllocationException):
            who = "the copy" if is_copy else "this node"
            self._log.write(type(error).__name__, "! %s is not up to date, and goes on trying: %s", who, error)
        else:
            what, _, _advice = str(error).partition(";")  # the advice is for clients
            self._log.write(type(error).__name__, "! the primary is not there, and is asked again: %s", what)

    def _note_heard(self, is_heard: bool) -> None:
        if is_heard != self._is_heard:
            self._is_heard = is_heard
            self._heard(is_heard)

    def _follow(self) -> None:
        """Follow over one connection."""
        transport = self._transport = self._connect()

        def ask(operation: str, arguments: Mapping[str, Any]) -> Any:
            try:
                answer = transport.request(operation, arguments, _ANSWER_SECONDS)
                self._note_heard(True)
                return answer
            except JMSException as error:
                raise NoAnswer(str(error)) from error

        try:
            try:
                is_node = self._standing.term is not None
                client_id = f"{NODE_CLIENT}{self._standing.node}" if is_node else None
                transport.open(Credentials(client_id=client_id), lambda _event: None, None)
            except JMSException as error:
                if isinstance(error.__cause__, ConnectionRefusedError):
                    self._refused()
                raise NoAnswer(str(error)) from error
            # A node of a group is waited for.
            pause = _BATCH_SECONDS if self._standing.term is None else 0.0
            Following(self._files, self._standing, ask, self._image_rate, self._stopping, pause).run()
            if self._says_so:
                ask("stop_following", {"node": self._standing.node})
        finally:
            transport.close(0)
            self._note_heard(False)
