"""A thread that keeps a copy: it connects to the server, follows it, and connects again when the connection is lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker_adapter.errors import JMSException, ResourceAllocationException
from broker_adapter.group.copy_files import CopyFiles
from broker_adapter.group.following import Following, NoAnswer
from broker_adapter.limited_log import LimitedLog
from broker_adapter.transport import Credentials, Transport

_log = logging.getLogger(f"holdfast.{__name__}")

#: Pause after a failure, in seconds.
_PAUSE_SECONDS: Final = 1.0
#: Pause between two answers: what changes in this time comes in one.
_BATCH_SECONDS: Final = 0.05
#: Longest wait for an answer, in seconds: requests wait for a commit for less.
_ANSWER_SECONDS: Final = 60.0
#: Longest wait for the thread as it is stopped, in seconds.
_STOP_SECONDS: Final = 10.0


class Follower:
    """Keeps a copy.

    Args:
        files: of the copy; they are closed with the thread.
        node: the name of the copy.
        connect: returns what connects to the server; it is not open yet, and not restored.
        image_rate: bytes of an image a second, at most; None: as fast as it comes.
        ended: called with the error when nothing more is done, since the store of the copy has failed, or is none.
    """

    def __init__(
        self,
        files: CopyFiles,
        node: str,
        connect: Callable[[], Transport],
        image_rate: float | None,
        ended: Callable[[JMSException], None],
    ) -> None:
        self._files = files
        self._node = node
        self._connect = connect
        self._image_rate = image_rate
        self._ended = ended
        self._stopping = threading.Event()
        self._transport: Transport | None = None
        self._log = LimitedLog(_log)
        self._thread = threading.Thread(target=self._run, name="holdfast-copy", daemon=True)

    def __repr__(self) -> str:
        return f"<Follower {self._node!r}>"

    def start(self) -> None:
        """Start to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and close the files.  What was under way is not in the copy; nothing is half there."""
        self._stopping.set()
        transport = self._transport
        if transport is not None:
            transport.close(0)
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._follow()
                except (NoAnswer, ResourceAllocationException) as error:
                    if not self._stopping.is_set():
                        self._log.write("failed", "! the copy is not up to date, and goes on trying: %s", error)
                self._stopping.wait(_PAUSE_SECONDS)
        except JMSException as error:
            self._ended(error)
        except Exception as error:
            _log.exception("! unexpected error")
            self._ended(JMSException(f"unexpected error {error!r}"))
        finally:
            self._files.close()

    def _follow(self) -> None:
        """Follow over one connection."""
        transport = self._transport = self._connect()

        def ask(operation: str, arguments: Mapping[str, Any]) -> Any:
            try:
                return transport.request(operation, arguments, _ANSWER_SECONDS)
            except JMSException as error:
                raise NoAnswer(str(error)) from error

        try:
            try:
                transport.open(Credentials(), lambda _event: None, None)
            except JMSException as error:
                raise NoAnswer(str(error)) from error
            Following(self._files, self._node, ask, self._image_rate, self._stopping, _BATCH_SECONDS).run()
        finally:
            transport.close(0)
