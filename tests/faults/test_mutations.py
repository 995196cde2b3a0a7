"""A real client and a real server, with frames between them changed at random: nothing worse than an error."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.client.protocol import ClientOptions, ClientProtocol, Phase
from broker_adapter.amqp.messages.amqp_message import decode_ahead
from broker_adapter.amqp.proton_engine.peer import PeerLimits
from broker_adapter.destination import DestinationKind, queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import AMQP_FORMAT, BodyKind, Envelope, pack
from broker_adapter.errors import JMSException
from broker_adapter.server.access.permissions import authorize
from broker_adapter.server.protocol import ServerProtocol
from broker_adapter.settings import EngineSettings, ServerSettings
from broker_adapter.transport import Delivery, ReceiverSpec, SenderSpec, Subscription
from sdk import Connection
from tests.broker_adapter.amqp.frames import split
from tests.broker_adapter.engine.driving import WAIT
from tests.faults.mutations import Mutations
from tests.faults.proxy import Proxy
from tests.faults.scenarios import wait_for
from tests.faults.victim import LIFETIME, Victim
from tests.server_process import ServerProcess

#: Runs, each of which changes some frames.
RUNS = 300
#: Turns after which what still goes back and forth counts as never ending.
_TURNS = 2_000
_LIMITS = PeerLimits(max_frame_bytes=4096, max_message_bytes=100_000, max_sessions=16, max_links=32)


class Answer:
    """A callback that may be called once, with a result or an error of ours."""

    def __init__(self, answers: Counter[str]) -> None:
        self.result: Any = None
        self._answers = answers
        self._called = False

    def __call__(self, result: Any, error: JMSException | None) -> bool:
        assert not self._called, "called twice"
        self._called = True
        assert error is None or isinstance(error, JMSException)
        self._answers["done" if error is None else type(error).__name__] += 1
        self.result = result
        return True


class Run:
    """A client at work over a wire that changes frames, in one thread.

    Args:
        broker: the engine; others are served by it meanwhile.
        mutations: changes frames in both directions; None: in none.
        envelope: whether client and server speak our own format.
    """

    def __init__(self, broker: Broker, mutations: Mutations | None, *, envelope: bool = True) -> None:
        self.answers: Counter[str] = Counter()
        self.got: list[Delivery] = []
        self._broker = broker
        self._mutations = mutations
        self._now_ms = 1_000
        settings = ServerSettings(max_frame_bytes=4096)
        self.server = ServerProtocol(
            broker, settings, None, lambda: None, self._request, authorize=partial(authorize, None)
        )
        options = ClientOptions(
            container_id="fuzzed",
            hostname="host",
            version="1",
            has_client_id=False,
            commit_prefix="fuzzed",
            envelope=envelope,
            limits=_LIMITS,
        )
        self.client = ClientProtocol(options, None, lambda _event: None, lambda _count: None)

    def _request(self, operation: str, unpack: Callable[[], dict[str, Any]], done: Callable[[Any], None]) -> None:
        try:
            done(self._broker.request(operation, unpack(), WAIT))
        except JMSException as error:
            done(error)

    def answer(self) -> Answer:
        return Answer(self.answers)

    def _changed(self, data: bytes) -> list[bytes]:
        if self._mutations is None or not data:
            return [data] if data else []
        return [each for frame in split(data) for each in self._mutations.change(frame)]

    def rest(self) -> None:
        """Carry bytes until nothing moves, and the engine has nothing more to say."""
        quiet = 0
        for _ in range(_TURNS):
            moved = False
            for data in self._changed(self.client.pending_output()):
                moved = True
                self.server.receive(data, self._now_ms)
            for data in self._changed(self.server.pending_output()):
                moved = True
                self.client.receive(data)
            if moved:
                quiet = 0
            else:
                quiet += 1
                if quiet == 3:
                    return
                self._broker.call(c.Statistics(), WAIT)
        raise AssertionError("bytes go back and forth without end")

    @property
    def is_open(self) -> bool:
        return self.client.phase is Phase.OPEN

    def ask(self, call: Callable[..., None], *arguments: Any) -> Any:
        """Call with an answer, carry bytes, return the result; None where there is none."""
        if not self.is_open:
            return None
        answer = self.answer()
        try:
            call(*arguments, answer)
        except JMSException as error:
            answer(None, error)
        self.rest()
        return answer.result

    def work(self) -> None:
        """All that a client does, once; what has failed is left out."""
        client = self.client
        client.open(self.answer())
        self.rest()
        linked = self.ask(client.attach_sender, SenderSpec(1, queue("fuzzed")))
        receiver = self.ask(client.attach_receiver, ReceiverSpec(1, queue("fuzzed")), self.got.extend)
        other = self.ask(
            client.attach_receiver,
            ReceiverSpec(2, topic("news"), subscription=Subscription("s", True, True)),
            self.got.extend,
        )
        temporary = self.ask(client.declare_temporary, DestinationKind.TEMPORARY_QUEUE)
        for size in (10, 20, 9_000):
            if self.is_open and linked is not None:
                client.send_all([(linked[0], self._message(size), lambda error: self._settled(error))])
                self.rest()
        for link in (receiver, other):
            if self.is_open and link is not None:
                client.credit(link, 10)
                self.rest()
        for outcome in (Outcome.ACCEPTED, Outcome.MODIFIED):
            if self.is_open and self.got:
                client.settle([Settlement(self.got.pop().tag, outcome)])
                self.rest()
        if linked is not None:
            self.ask(client.commit, 1, 1, [(linked[0], self._message(5))], self._held())
        self.ask(client.request, "statistics", {})
        if receiver is not None:
            self.ask(client.drain, receiver)
            self.ask(client.detach, receiver)
        if temporary is not None:
            self.ask(client.delete_temporary, temporary)
        self.ask(client.end_session, 1)
        if self.is_open:
            client.tick(self._now_ms)
            self.server.tick(self._now_ms)
            self.rest()
        self.ask(client.close)
        client.fail(JMSException("the run is over"))
        self.server.receive_end()
        self.server.pending_output()

    def _held(self) -> list[Settlement]:
        return [Settlement(self.got.pop().tag, Outcome.ACCEPTED)] if self.got else []

    def _settled(self, error: JMSException | None) -> None:
        assert error is None or isinstance(error, JMSException)

    @staticmethod
    def _message(size: int) -> bytes:
        return pack(Envelope(queue("fuzzed"), BodyKind.TEXT, "x" * size))


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker(EngineSettings())
    made.learn_format(AMQP_FORMAT, decode_ahead)
    yield made
    made.close()


def test_a_run_without_changes_does_all_of_its_work(broker: Broker) -> None:
    run = Run(broker, None)
    run.work()
    assert run.answers.keys() == {"done"}
    assert run.answers["done"] == 12


@pytest.mark.parametrize("envelope", [True, False], ids=["our format", "standard"])
def test_changed_frames_end_their_connection_and_no_other_one(broker: Broker, envelope: bool) -> None:
    seed = random.randrange(1 << 32)
    kinds: Counter[str] = Counter()
    other = Run(broker, None)
    other.client.open(other.answer())
    other.rest()
    link, _ = other.ask(other.client.attach_sender, SenderSpec(1, queue("other")))
    for number in range(RUNS // 2):
        chance = random.Random(seed + number)
        mutations = Mutations(chance, chance.choice((0.02, 0.1, 0.5)))
        try:
            Run(broker, mutations, envelope=envelope).work()
        except Exception as error:
            error.add_note(f"seed {seed} + {number}: {dict(mutations.counts)}")
            raise
        kinds += mutations.counts
        answer = other.answer()
        message = pack(Envelope(queue("other"), BodyKind.TEXT, "x"))
        other.client.send_all([(link, message, lambda e, a=answer: a(None, e))])
        other.rest()
        assert other.answers["done"] == number + 3, f"seed {seed} + {number}"
    assert len(kinds) == 12


def test_a_proxy_that_changes_frames_harms_its_client_only(server: ServerProcess, direct: Connection) -> None:
    with Proxy(server.port) as proxy:
        mutations = Mutations(random.Random(), 0.03)
        proxy.mutate(mutations)
        victim = Victim(proxy)
        victim.start()
        assert wait_for(lambda: victim.lives > 5, LIFETIME)
        with direct.create_session() as session:
            queue = session.create_queue("beside the victim")
            session.create_producer(queue).send("x")
            message = session.create_consumer(queue).receive(WAIT)
            assert message is not None
        victim.stop()
    assert victim.broken == []
    assert mutations.counts.total() > 0
    assert server.is_running
