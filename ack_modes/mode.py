"""The names of the acknowledge modes, and which strategy each stands for."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from ack_modes.auto import AutoPolicy
from ack_modes.client import ClientPolicy
from ack_modes.dups_ok import DupsOkPolicy
from ack_modes.individual import IndividualPolicy
from ack_modes.no_ack import NoAckPolicy
from ack_modes.policy import AckPolicy, BatchLimits
from ack_modes.transacted import TransactedPolicy


class AcknowledgeMode(Enum):
    """How a session ends its deliveries; the table is in the docstring of :mod:`ack_modes`."""

    AUTO = ("auto", AutoPolicy)
    """A message is accepted when ``receive`` returns it, or when its listener has returned."""
    CLIENT = ("client", ClientPolicy)
    """``message.acknowledge()`` accepts everything that the session has received."""
    DUPS_OK = ("dups_ok", DupsOkPolicy)
    """As AUTO, but accepted in batches: cheaper, and a lost connection brings the last ones again."""
    TRANSACTED = ("transacted", TransactedPolicy)
    """``session.commit()`` accepts what was received and sends what was sent, all or nothing."""
    INDIVIDUAL = ("individual", IndividualPolicy)
    """``message.acknowledge()`` accepts that one message."""
    NO_ACK = ("no_ack", NoAckPolicy)
    """The broker forgets messages as it sends them."""

    def __init__(self, label: str, policy: Callable[[BatchLimits], AckPolicy]) -> None:
        self.label = label  #: its name in options and on command lines
        self._policy = policy

    def __repr__(self) -> str:
        return f"AcknowledgeMode.{self.name}"

    def new_policy(self, batch: BatchLimits = BatchLimits()) -> AckPolicy:  # noqa: B008 - an immutable tuple
        """The strategy of this mode for one session.

        Args:
            batch: how long a mode that acknowledges lazily (DUPS_OK) may wait.
        """
        return self._policy(batch)
