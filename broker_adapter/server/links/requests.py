"""Operations beyond messaging that the client of one connection asks for: links to the management node, answers.

A request is carried out elsewhere (``run_request``), and its answer is sent on the link that the client receives
answers on, as that link's credit and the socket allow.  A client that takes no answers may ask no more.

What a request holds may take many times its bytes once it is unpacked, and long to unpack.  So it is refused or taken
by its outline, waits as bytes, which the budget counts, and is unpacked when it is its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from broker_adapter.amqp.conditions import error_for
from broker_adapter.amqp.events import ACCEPTED_STATE, LinkRemoteOpen, Transfers
from broker_adapter.amqp.management import (
    ManagementAnswer,
    Outline,
    error_fields,
    outline_of,
    pack_answer,
    unpack_request,
)
from broker_adapter.amqp.proton_engine.peer import Peer
from broker_adapter.amqp.wire import ANNOUNCED, MAX_SERVERS, WATCH
from broker_adapter.destination import Destination
from broker_adapter.engine.operations.request import Request, argument, check_outline, request, type_of
from broker_adapter.errors import JMSException, MessageFormatException, ResourceAllocationException
from broker_adapter.server.access.permissions import asked_of_request
from broker_adapter.server.announcements import ANNOUNCE, Announcement
from broker_adapter.server.links.budget import Budget
from broker_adapter.server.links.client import Client
from broker_adapter.server.links.engine_calls import EngineCalls
from broker_adapter.server.links.output import Output

#: Most requests on their way to the management node.
_CREDIT: Final = 100

#: Unpacks the arguments of a request, once; raises MessageFormatException.
Unpack = Callable[[], dict[str, Any]]
#: Runs an operation elsewhere: (operation, arguments, done); done gets the result or a JMSException, in any thread.
RunRequest = Callable[[str, Unpack, Callable[[Any], None]], None]

#: The requests that the server itself carries out.
_OWN: Final[dict[str, type[Request]]] = {}


@request(operation=WATCH, table=_OWN)
class WatchRequest(Request):
    """What clients are told of the server, now and whenever it changes."""


@request(operation=ANNOUNCE, table=_OWN)
class AnnounceServersRequest(Request):
    """How many clients are told to connect elsewhere."""

    servers: Sequence[str] = argument(most_values=MAX_SERVERS)


class Requests:
    """The links to and from the management node, and the answers that were not sent yet.

    Args:
        peer: the connection's AMQP.
        calls: to the engine.
        client: the client of the connection.
        budget: counts requests and answers.
        output: says what waits for the client.
        most_output_bytes: bytes that may wait for the client when an answer is sent.
        run_request: carries operations out.
        announced: what clients are told of the server.
        authorize: see :class:`broker_adapter.server.protocol.ServerProtocol`.
        dead_letter_queue: its name.

    Attributes:
        answers: the link that the request came on (None: an announcement), and the answer.
    """

    def __init__(
        self,
        peer: Peer,
        calls: EngineCalls,
        client: Client,
        budget: Budget,
        output: Output,
        most_output_bytes: int,
        run_request: RunRequest,
        announced: Callable[[], Announcement],
        authorize: Callable[[str, Destination | None], None],
        dead_letter_queue: str,
    ) -> None:
        self._peer = peer
        self._calls = calls
        self._client = client
        self._budget = budget
        self._output = output
        self._most_output_bytes = most_output_bytes
        self._run_request = run_request
        self._announced = announced
        self._authorize = authorize
        self._dead_letter_queue = dead_letter_queue
        self._requesters: set[int] = set()
        self._answerers: list[int] = []
        self._watcher: int | None = None  #: the link on which the client asked to be told of changes of the server
        #: Answers that were packed, and that the budget does not count yet: link and bytes of the request, the answer.
        self._packed: deque[tuple[int, int, bytes]] = deque()
        self.answers: deque[tuple[int | None, bytes]] = deque()

    def __repr__(self) -> str:
        return f"<Requests requesters={len(self._requesters)} answers={len(self.answers)}>"

    # Links.

    def attach_requester(self, event: LinkRemoteOpen, max_message_bytes: int) -> None:
        """The client attached a link that it sends requests on, of at most so many bytes."""
        self._requesters.add(event.link)
        self._peer.accept_link(event.link, event.source, event.target, max_message_bytes=max_message_bytes)
        self._peer.credit(event.link, _CREDIT)

    def attach_answerer(self, event: LinkRemoteOpen) -> None:
        """The client attached a link that it receives answers on; the last one gets them."""
        self._answerers.append(event.link)
        self._peer.accept_link(event.link, event.source, event.target)

    def has_requester(self, link: int) -> bool:
        """Return whether requests come on a link."""
        return link in self._requesters

    def has_answerer(self, link: int) -> bool:
        """Return whether answers are sent on a link."""
        return link in self._answerers

    def remove(self, link: int) -> None:
        """A link is gone, whichever it was."""
        if link in self._requesters:
            self._requesters.discard(link)
            self._drop_answers(link)
        if link in self._answerers:
            self._answerers.remove(link)

    def clear(self) -> None:
        """Drop everything."""
        self._requesters.clear()
        self._answerers.clear()
        self.answers.clear()

    # Requests.

    def on_transfers(self, event: Transfers) -> None:
        """Requests came."""
        self._calls.submit()  # a worker may be fast: the request comes after what the client said before it
        for number, payload, _ in event.deliveries:
            self._peer.settle(event.link, (number,), ACCEPTED_STATE)
            try:
                request = outline_of(payload)
            except MessageFormatException as error:
                self._peer.close_link(event.link, error_for(error))
                return
            try:
                most_members = _most_members(request)
                for asked in asked_of_request(request.operation, request.arguments, self._dead_letter_queue):
                    self._authorize(*asked)
            except JMSException as error:
                self._answer(event.link, request.number, error)
                continue
            if request.operation == WATCH:
                self._watcher = event.link
                self._answer(event.link, request.number, self._announced().as_answer())
                continue
            refusal = self.refusal()
            if refusal is not None:
                self._answer(event.link, request.number, refusal)
                continue
            self._budget.requests += len(payload)
            done = partial(self._carried_out, event.link, request.number, len(payload))
            self._run_request(request.operation, _Packed(payload, most_members).unpack, done)

    def refusal(self) -> JMSException | None:
        """Why no request may begin now: the client has not taken its answers; None: one may.  In any thread."""
        uncounted = sum(len(answer) for _, _, answer in list(self._packed))
        if self._budget.allows_requests(uncounted):
            return None
        return ResourceAllocationException(
            f"the answers that the client has not taken are larger than {self._budget.most_bytes} bytes (option"
            " max_connection_bytes); take them before asking more"
        )

    def _carried_out(self, link: int, number: int, size: int, result: Any) -> None:
        """A request of so many bytes has this result; called in any thread, which packs the answer."""
        self._packed.append((link, size, _packed(number, result)))
        self._calls.add_callback(self._take_packed)

    def _take_packed(self) -> None:
        link, size, answer = self._packed.popleft()
        self._budget.requests -= size
        self._give_answer(link, answer)

    # Answers.

    def _answer(self, link: int, number: int, result: Any) -> None:
        self._give_answer(link, _packed(number, result))

    def _give_answer(self, link: int, answer: bytes) -> None:
        """Answer, unless the link that the request came on is gone."""
        if not self._client.has_ended and link in self._requesters:
            self._queue_answer(link, answer)

    def announce(self) -> None:
        """What is announced has changed: tell a client that asked for it."""
        if self._watcher in self._requesters and not self._client.has_ended:
            # An answer that was not sent yet is as old as what it says.
            self._drop_answers(None)
            self._queue_answer(None, pack_answer(ManagementAnswer(ANNOUNCED, None, self._announced().as_answer())))

    def _queue_answer(self, link: int | None, answer: bytes) -> None:
        """Have an answer sent when the client takes it; a link of None is that of the watcher."""
        self.answers.append((link, answer))
        self._budget.answers += len(answer)
        self.send_answers()

    def _drop_answers(self, asker: int | None) -> None:
        """These answers, which were not sent yet, are of no use any more."""
        dropped = [answer for link, answer in self.answers if link == asker]
        if dropped:
            self.answers = deque(each for each in self.answers if each[0] != asker)
            self._budget.answers -= sum(map(len, dropped))

    def send_answers(self) -> None:
        """Send what there is credit and room for; a client that takes no answers gets no credit for more requests."""
        if not self._answerers:
            return
        link, most, output = self._answerers[-1], self._most_output_bytes, self._output
        while self.answers and not output.is_paused and output.waiting_bytes < most:
            if self._peer.remaining_credit(link) <= 0:
                break
            asker, answer = self.answers.popleft()
            self._budget.answers -= len(answer)
            self._peer.send(link, answer, settled=True)
            if asker is not None:
                self._peer.credit(asker, 1)


def _most_members(outline: Outline) -> int:
    """Members that all lists and maps of a request have at most; raises MessageFormatException where it is refused."""
    return check_outline(_OWN.get(outline.operation) or type_of(outline.operation), outline.arguments)


class _Packed:
    """A request that waits as bytes; they are freed when they are unpacked."""

    def __init__(self, payload: bytes, most_members: int) -> None:
        self._payload = payload
        self._most_members = most_members

    def unpack(self) -> dict[str, Any]:
        """The arguments; called once."""
        payload, self._payload = self._payload, b""
        return unpack_request(payload, self._most_members).arguments


def _packed(number: int, result: Any) -> bytes:
    """The answer to a request, packed: an error if the result is one, or cannot be packed."""
    try:
        if isinstance(result, JMSException):
            return pack_answer(ManagementAnswer(number, error_fields(result), None))
        return pack_answer(ManagementAnswer(number, None, result))
    except MessageFormatException as error:
        return pack_answer(ManagementAnswer(number, error_fields(error), None))
