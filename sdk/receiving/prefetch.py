"""What has come for one consumer and was not delivered yet, and the credit by which more comes.

Theory of operation
    The transport pushes deliveries into ``buffer`` as far as it has credit.  With a prefetch of n, credit and buffer
    together are n; when half of it is used up, that half is granted again.  With a prefetch of 0, one credit is granted
    when ``receive`` or a listener asks, and not before.  Where no prefetch is given, n is what
    :class:`~sdk.receiving.window.Window` says; a call of ``receive_many`` that takes more asks for that itself.

    An empty buffer does not mean an empty queue.  A *drain* tells: the broker answers it when it has sent what it can.

    Where something is given back, and the broker does not answer the drain in time, messages may be on their way that
    belong behind it.  Until there is an answer, nothing is given out and no credit is granted; then what has come by
    then is given back as well.

    When the connection or the link is lost, what is in the buffer is stale, and the credit is gone.  Both are put right
    by the thread that receives, once the link is there again: no other thread counts credit.

    =======================================  =================  ==============  ======================================
    state                                    gives out          grants credit   ends with
    =======================================  =================  ==============  ======================================
    attached                                 yes                yes
    ``is_away``: the connection or the link  what is not stale  no              ``restored``, ``link_restored``
    is lost
    ``needs_reset``: attached again          what is not stale  no              ``reset``
    held: something is being given back      yes                no              ``resume_flow``
    ``gives_back``: the drain of that had    no                 no              the answer to a drain, ``reset``, or
    no answer                                                                   its time limit
    ``closing``                              no                 no              nothing
    =======================================  =================  ==============  ======================================

    In each of them the credit may be unknown: ``undrained`` (a drain had no answer) ends with the answer to a drain.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence

from ack_modes import DeliveryTag, Outcome
from broker_adapter import (
    LARGEST_WINDOW,
    ConnectionLostException,
    Delivery,
    IllegalStateException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
)
from sdk.acknowledgements import AckRecord, Source, ack_record_for
from sdk.finalizers import taken_out
from sdk.receiving.window import Window
from sdk.session_state import SessionState, log


class Prefetch:
    """The buffer of one consumer, and its credit.  See the module's theory of operation.

    Attributes:
        size: messages that it may hold which the application has not received; 0: one is asked for at a time.
        most: the most that ``size`` may become.
        buffer: what has come and was not delivered.
        link: the transport's number of the consumer's link; -1 until it is attached.
        stale_link: the last link, in the tags of deliveries, that the broker closed; numbers count up.
        closing: whether the consumer is being closed, or the broker has closed its link for good.
        gives_back: whether what comes before the answer to a drain is given back.
        undrained: whether a drain had no answer in time, so the credit may be gone or not.
    """

    __slots__ = (
        "__weakref__",
        "_arrived",
        "_away",
        "_epoch",
        "_gives_back_until",
        "_granted",
        "_in_doubt",
        "_is_held",
        "_relinked",
        "_state",
        "_step",
        "_used",
        "_waits_since",
        "_waits_until",
        "_window",
        "buffer",
        "closing",
        "gives_back",
        "link",
        "most",
        "name",
        "size",
        "stale_link",
        "undrained",
    )

    def __init__(self, state: SessionState, name: str, size: int | None) -> None:
        """Without a link, and without credit.

        Args:
            state: the session's.
            name: of the consumer, for the log.
            size: messages that it may hold which the application has not received; 0: one is asked for at a time;
                None: as many as fit the pace of the application.
        """
        self._state = state
        self.name = name
        self._window = Window() if size is None else None
        self.size = 1 if size is None else size
        self.most = LARGEST_WINDOW if size is None else size
        self._step = max(1, self.size // 2)  #: used messages for which credit is granted again
        self.buffer: deque[Delivery] = deque()
        self.closing = False
        # Credit: counted up by the thread that grants, and by the transport's thread in its sink.
        self._granted = 0
        self._arrived = 0
        self._used = 0  #: messages taken from the buffer whose credit was not granted again; below 0: it holds too many
        self._waits_since: float | None = None  #: when the consumer began to have nothing to do
        self._waits_until: float | None = None  #: when something came for it then
        self.undrained = False
        self._is_held = False  #: something is being given back: no credit is granted
        self.gives_back = False
        self._gives_back_until = 0.0  #: when to go on without that answer (monotonic seconds)
        self._in_doubt = False  #: credit was granted while the link was lost: it may count for the one after it
        # After a loss.
        self._epoch = state.epoch  #: of the connection that its credit was granted on
        self.stale_link = -1
        self._away = False  #: its link is being attached again, while the connection lives
        self._relinked = False  #: its link was attached again
        self.link = -1

    # The buffer.

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        """Put what has come into the buffer; called by the sink, in the transport's thread."""
        if self._waits_since is not None and self._waits_until is None:
            self._waits_until = time.monotonic()
        self.buffer.extend(deliveries)
        # After the buffer, so that credit is never thought to be smaller than it is.
        self._arrived += len(deliveries)
        self._state.wake()

    def is_stale(self, tag: DeliveryTag) -> bool:
        """Whether a delivery was lost with its connection or its link."""
        return tag.epoch != self._state.epoch or tag.link <= self.stale_link

    def drop(self, delivery: Delivery, index: int = 0) -> None:
        """Take a delivery out of the buffer, at this index, which is not given out."""
        buffer = self.buffer
        with self._state.settling:  # another thread may close it, and take what is there
            if index < len(buffer) and buffer[index] is delivery:
                del buffer[index]

    # The link.

    @property
    def is_away(self) -> bool:
        """Whether there is no link that credit could be granted on."""
        state = self._state
        return state.interrupted or self._away or self._epoch != state.epoch

    @property
    def needs_reset(self) -> bool:
        """Whether the link is there again after a loss, without credit."""
        state = self._state
        return not state.interrupted and not self._away and (self._relinked or self._epoch != state.epoch)

    def reset(self, *, grants: bool = True) -> None:
        """Begin from zero credit on a link that is attached again; nothing on any other.

        Args:
            grants: whether credit is opened at once.
        """
        state = self._state
        epoch = state.epoch
        # Checked in this order, a loss that comes meanwhile is seen here or the next time.
        if state.interrupted or self._away or not (self._relinked or self._epoch != epoch):
            return
        self._relinked, self._epoch = False, epoch
        # The broker redelivers what came before the loss.  Since then there is no credit, but for what was granted as
        # the link was lost.
        with state.settling:  # another thread may close it, and take what is there
            while self.buffer and self.is_stale(self.buffer[0].tag):
                self.buffer.popleft()
        self._granted = self._arrived
        self.undrained, self._in_doubt = self._in_doubt or bool(self.buffer), False
        self.gives_back = False
        if grants and self.size:
            self.open_credit()

    def link_interrupted(self, tag_link: int | None, epoch: int) -> None:
        """The broker closed the link, which is being attached again; for the session.

        Args:
            tag_link: the link in the tags of what has come; None: in none.
            epoch: of the connection: where that was lost meanwhile, this is old.
        """
        state = self._state
        with state.settling:  # so that the connection is not lost in the middle of this
            if epoch == state.epoch:
                self.stale_link = max(self.stale_link, -1 if tag_link is None else tag_link)
                self._away = True

    def restored(self) -> None:
        """The connection works again, and with it the link; for the session, before its state says so."""
        self.stale_link = -1  # each connection numbers its links from the start
        self._away = False

    def link_restored(self, epoch: int) -> None:
        """The link is there again, without credit; for the session.  ``epoch`` as in ``link_interrupted``."""
        state = self._state
        with state.settling:
            if epoch == state.epoch:
                self._relinked = True  # ahead of the next, so that credit granted meanwhile is in doubt
                self._away = False
        state.wake()

    # Credit.

    def open_credit(self) -> None:
        """Let the broker send as far as the prefetch goes; for the session, when nothing else grants.

        Not on a stopped connection, where messages would only be kept from others; its start calls this again.
        """
        if not self._state.running:
            return
        self.reset(grants=False)
        if self.is_away or self.gives_back:
            return
        with self._state.settling:  # another thread may start the connection
            missing = self.size - (self._granted - self._arrived) - len(self.buffer)
            self._used = min(0, missing)
            if missing > 0:
                self._grant(missing)

    def _grant(self, messages: int) -> None:
        """Let the broker send so many more, unless the consumer is being closed, or something is given back."""
        with self._state.settling:  # so none is granted behind the drain of another thread that closes it
            if self.closing or self._is_held:
                return
            self._granted += messages
            try:
                self._state.transport.credit(self.link, messages)
            except JMSException:
                self._granted -= messages
                raise
        if self._relinked or self.is_away:
            # The link was lost, and may have been there again when the credit was granted.
            self._in_doubt = True

    def count_used(self, messages: int = 1) -> None:
        """Count messages taken from the buffer, and grant credit again when half of the prefetch is used."""
        if self._waits_since is not None and self._window is not None:
            self._window.waited((self._waits_until or time.monotonic()) - self._waits_since)
            self._waits_since = None
        self._used = used = self._used + messages
        if used >= self._step and self.size and not self.is_away:
            self._used = 0
            window = self._window
            if window is not None:
                used = window.refill(used, time.monotonic())
                self.size, self._step = window.size, window.step
                if not used:
                    return
            with contextlib.suppress(ConnectionLostException):  # this message was received all the same
                self._grant(used)

    def begin_wait(self) -> None:
        """Note that the consumer has nothing to do until the next message comes."""
        if self._window is not None and self._waits_since is None:
            self._waits_until = None
            self._waits_since = time.monotonic()

    @property
    def has_credit(self) -> bool:
        """Whether the broker may send something."""
        return self._granted > self._arrived

    @property
    def needs_pull(self) -> bool:
        """Whether nothing comes, without prefetch, unless it is asked for."""
        if self.size or self.buffer or self.has_credit or self._is_held or self.closing:
            return False
        return self._state.running and not (self.is_away or self.needs_reset or self.gives_back)

    def pull(self) -> None:
        """Ask for one message, without prefetch and where none is asked for yet."""
        if self.needs_pull:
            self._granted = self._arrived
            self._grant(1)

    def falls_short(self, messages: int) -> bool:
        """Whether one call takes more than is there and than was asked for, by a window that is still small."""
        wanted = min(messages, self.most)
        return self._window is not None and wanted > self.size and wanted > len(self.buffer) and self._state.running

    def ask_for(self, messages: int, seconds: float) -> None:
        """Have the broker send what one call takes, as far as it has that, beyond the window.

        Args:
            messages: the most that the call takes.
            seconds: how long to wait for the broker.
        """
        self.reset()
        if self.is_away or self.gives_back:
            return
        missing = min(messages, self.most) - (self._granted - self._arrived) - len(self.buffer)
        if missing > 0:
            with contextlib.suppress(ConnectionLostException):
                self._grant(missing)
                self._used -= missing
        self.drain_if_there(seconds)

    def drain_if_there(self, seconds: float) -> bool:
        """Drain, unless there is nothing to drain because the network is away; returns whether that was done."""
        self.reset()
        if self.is_away:
            return False
        try:
            self._drain(seconds)
        except ConnectionLostException:
            return False
        except IllegalStateException:
            if not self.closing:
                raise
            return False
        return True

    def _drain(self, seconds: float) -> None:
        """Have the broker send what it can, then open the credit again."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(OperationTimedOutException):
            if self.gives_back:
                self._end_flow(seconds)
            if self.size:
                if self._granted <= self._arrived and not self.buffer:
                    self.open_credit()
            else:
                self.pull()
            if self._end_flow(max(0.0, deadline - time.monotonic())):
                self.open_credit()

    def _end_flow(self, seconds: float) -> bool:
        """Drain.

        Returns:
            Whether no credit is left and nothing is on its way; False: the broker cannot say.

        Raises:
            ConnectionLostException: the link is away.
            OperationTimedOutException: the broker has not answered.
        """
        if self._granted <= self._arrived and not self.undrained:
            return True
        self.undrained = True
        try:
            answers = self._state.transport.drain(self.link, seconds)
        except OperationTimedOutException as error:
            if self.gives_back and time.monotonic() >= self._gives_back_until:
                log.warning("! %s goes on, though what was given back may come late: %s", self.name, error)
                self.gives_back = False
            raise
        self.undrained = False
        if not answers:
            self.gives_back = False  # it never says, so that nothing is waited for
            return False
        self._granted = self._arrived
        if self.gives_back:
            self.release_all()
            self.gives_back = False
        return True

    # Giving back.

    def stop_flow(self, deadline: float) -> None:
        """Have nothing on its way, if the broker answers in time."""
        self.reset(grants=False)
        if self.is_away:
            return
        try:
            self._end_flow(max(0.0, deadline - time.monotonic()))
        except OperationTimedOutException as error:
            log.debug("! %s may have something on its way: %s", self.name, error)
        except ConnectionLostException as error:
            log.debug("! %s has lost what was on its way: %s", self.name, error)
        except IllegalStateException:  # the link has ended, and with it what was on its way
            if not self.closing:
                raise

    def hold_flow(self, deadline: float) -> None:
        """Have nothing on its way, and nothing asked for, until ``resume_flow``; for the session's recover."""
        with self._state.settling:
            self._is_held = True
        self.stop_flow(deadline)
        if self.undrained and not self.gives_back:
            self.gives_back = True
            self._gives_back_until = time.monotonic() + self._state.settings.request_timeout_seconds

    def resume_flow(self) -> None:
        """Grant credit again: what was given back is on its way ahead of it; for the session."""
        with self._state.settling:
            self._is_held = False
        with contextlib.suppress(JMSException):
            self.open_credit()

    def take_all(self) -> list[DeliveryTag]:
        """Take out all that is in the buffer, under ``settling``; returns what of it can be settled."""
        return [each.tag for each in taken_out(self.buffer) if not self.is_stale(each.tag)]

    def release_all(self) -> None:
        """Release everything in the buffer, and take it out."""
        with self._state.settling:
            self._state.pass_over(self.take_all(), Outcome.RELEASED)

    def never_delivered(self, source: Source) -> list[tuple[AckRecord, int]]:
        """What was prefetched on the connection lost last, where it can be named, and how often it had failed before.

        What was prefetched ahead of an earlier loss may have been delivered to another consumer since.

        For the session, from any thread.

        Args:
            source: the queue or subscription of the consumer.
        """
        found = []
        epoch, stale_link = self._state.lost_epoch, self.stale_link
        for delivery in self.buffer.copy():
            if delivery.tag.epoch == epoch and delivery.tag.link > stale_link:
                with contextlib.suppress(MessageFormatException):
                    record = ack_record_for(source, delivery.envelope, delivery)
                    if record is not None:
                        found.append((record, delivery.delivery_count))
        return found
