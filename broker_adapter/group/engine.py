"""What the listener of a node has in place of the engine: clients wait here until the group has a primary.

Where this node is the primary, all goes to its engine.  Else a client that wants to be admitted waits for a moment, and
is told then which node is the primary, or that there is none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.callbacks import registered, tell
from broker_adapter.engine.commands.selection import Read
from broker_adapter.engine.queues.policies import Policies
from broker_adapter.errors import ConnectionLostException, IllegalStateException, JMSException, Redirect
from broker_adapter.group.follower import NODE_CLIENT
from broker_adapter.settings import EngineSettings

#: How long a client waits for a primary, in seconds; less than ``connect_timeout_seconds``.
HELD_SECONDS: Final = 5.0
#: The engine's number of a client that it does not have.
_NODE: Final = 0
#: Clients that wait at once; one more is refused.
MOST_HELD: Final = 10_000


class GroupEngine:
    """The engine of a node, or what stands for it.

    Args:
        settings: of the engine.
        policies: the settings of queues.

    Attributes:
        settings: as given.
        broker: the engine; None: this node is not the primary.
    """

    def __init__(self, settings: EngineSettings, policies: Policies) -> None:
        self.settings = settings
        self.broker: Broker | None = None
        self._policies = policies
        self._lock = threading.Lock()
        self._held: list[tuple[float, c.Connect]] = []  #: by when each is told
        self._primary: tuple[str, Redirect] | None = None
        self._formats: list[tuple[int, Read, Read | None]] = []
        self._failure_listeners: list[Callable[[JMSException], None]] = []

    def __repr__(self) -> str:
        return f"<GroupEngine {self.broker or self._primary}>"

    # What the listener calls.

    @property
    def unique(self) -> str:
        """What the store is known by; a client is not open where there is none."""
        return "" if self.broker is None else self.broker.unique

    @property
    def run(self) -> str:
        """The start of the engine."""
        return "" if self.broker is None else self.broker.run

    @property
    def policies(self) -> Policies:
        """The settings of queues."""
        return self._policies if self.broker is None else self.broker.policies

    @property
    def is_replaced(self) -> bool:
        """Whether the engine has failed: another node goes on, or this one once it is started again."""
        return self.broker is not None and self.broker.failed is not None

    def use_policies(self, policies: Policies) -> None:
        """Have other settings for the queues."""
        self._policies = policies
        if self.broker is not None:
            self.broker.use_policies(policies)

    def learn_format(self, message_format: int, read: Read, whole: Read | None = None) -> None:
        """See :meth:`Broker.learn_format`."""
        self._formats.append((message_format, read, whole))

    def on_failure(self, listener: Callable[[JMSException], None]) -> Callable[[], None]:
        """See :meth:`Broker.on_failure`."""
        return registered(listener, self._failure_listeners)

    def submit_all(self, commands: Iterable[c.Command]) -> None:
        """Hand over commands, or have those who ask to be admitted wait."""
        broker, commands = self.broker, list(commands)
        if broker is not None and len(commands) == 1 and _admitted_node(commands[0]):
            return
        if broker is None:
            with self._lock:
                broker = self.broker
                if broker is None:
                    commands = self._hold(commands)
        if broker is not None:
            broker.submit_all(commands)
            return
        for each in commands:
            if each.reply is not None:
                tell(each.reply, self._nobody())

    def _hold(self, commands: Iterable[c.Command]) -> list[c.Command]:
        """Keep those who ask to be admitted; returns the others: there is nothing that could carry them out."""
        left: list[c.Command] = []
        for each in commands:
            if isinstance(each, c.Connect) and len(self._held) < MOST_HELD:
                self._held.append((time.monotonic() + HELD_SECONDS, each))
            else:
                left.append(each)
        return left

    @property
    def request(self) -> Callable[..., Any]:
        """See :meth:`Broker.request`; raises IllegalStateException where this node is not the primary."""
        if self.broker is None:
            raise IllegalStateException("this node is not the primary of its group")
        return self.broker.request

    # What the node calls.

    def lead(self, broker: Broker) -> None:
        """This node is the primary: clients go on to its engine."""
        for each in self._formats:
            broker.learn_format(*each)
        broker.on_failure(self._failed)
        with self._lock:
            held, self._held = self._held, []
            self.broker = broker
        broker.submit_all([command for _, command in held if not _admitted_node(command)])

    def follow(self, primary: tuple[str, Redirect] | None) -> None:
        """Another node is the primary, and works; None: it is not known which one."""
        self._primary = primary
        self.tell_held()

    def tell_held(self) -> None:
        """Tell those who wait which node is the primary, or, after a while, that there is none."""
        with self._lock:
            if not self._held:
                return
            primary, now = self._primary, time.monotonic()
            told = [command for until, command in self._held if primary is not None or until <= now]
            if told:
                self._held = [each for each in self._held if each[1] not in told]
        for each in told:
            if each.reply is not None:
                tell(each.reply, self._nobody() if primary is None else _redirected(*primary))

    def _failed(self, error: JMSException) -> None:
        for listener in list(self._failure_listeners):
            tell(listener, error)

    @staticmethod
    def _nobody() -> JMSException:
        return ConnectionLostException(
            "the group of this server has no primary now: too few of its nodes in sync answer, or its coordinator is"
            " away; see: holdfast group status --group NAME"
        )


def _admitted_node(command: c.Command) -> bool:
    """Let a node of the group come or go; returns whether it is one.

    It is no client of the engine, and does not wait for what waits for it.
    """
    if isinstance(command, c.Connect) and command.client_id is not None and command.client_id.startswith(NODE_CLIENT):
        if command.reply is not None:
            tell(command.reply, _NODE)
        return True
    return isinstance(command, c.Disconnect) and command.client == _NODE


def _redirected(name: str, where: Redirect) -> JMSException:
    return ConnectionLostException(
        f"the primary of the group is {name}, {where.network_host}:{where.port}", redirect=where
    )
