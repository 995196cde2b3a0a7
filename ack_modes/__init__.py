"""How a delivery ends: outcomes, and one strategy for each acknowledge mode.  Pure; standard library only.

A session passes events to its :class:`AckPolicy`; it never asks which mode it is in.

| | delivered | consumed | listener raised | `acknowledge()` | `reject()`, `retry()` | commit | rollback, recover, close | interrupted |
|---|---|---|---|---|---|---|---|---|
| AUTO | - | accept it | fail it | - | end it so, if it is in hand | - | fail the one in hand | forget |
| DUPS_OK | - | accept when a batch is full or a short time has passed | fail it | - | end it so, if it is in hand | - | accept the rest, fail the one in hand | forget |
| CLIENT | hold | - | hold | accept all held | end it so | - | modify all held | forget; dirty if any was held |
| INDIVIDUAL | hold | - | hold | accept it | end it so | - | fail all held | forget; dirty if any was held |
| TRANSACTED | hold | - | hold | - | note it for the commit | accept all held | modify all held | forget; dirty if anything was sent or received |
| NO_ACK | - | - | - | - | refuse | - | - | - |

*consumed*: ``receive`` is about to return the message, or its listener has returned.  *modify*: the outcome
``MODIFIED``, so that it is redelivered with its delivery count raised, and nothing later passes it.  *fail*: the outcome
``FAILED``, so that it is redelivered as well, next, and each time that it fails again later (Jakarta Messaging 8.7):
messages that fail one by one do not depend on each other.  *hold*: it stays unsettled.  *end it so*: ``REJECTED`` with
the reason, or ``FAILED`` with the delay; a message that is settled already is refused, and one *in hand* is not consumed
yet.  *interrupted*: the connection was lost; what was held can no longer be settled, and a *dirty* session says so at
the next ``acknowledge()`` or ``commit()``, once.  Where the broker closes one link of a connection that lives, the same
holds for what came on that link.

One law for all: each delivery is settled exactly once, none before it was delivered, none left after the session ends
(NO_ACK settles none).  The tests of this package are parametrised from this table.
"""  # noqa: E501 - the rows of a table are not wrapped

from ack_modes.mode import AcknowledgeMode
from ack_modes.outcome import DeliveryTag, Failure, Outcome, Settlement, shortened_reason
from ack_modes.policy import AckPolicy, BatchLimits, Ending
from ack_modes.reliability import LinkReliability, contradiction

__all__ = [
    "AckPolicy",
    "AcknowledgeMode",
    "BatchLimits",
    "DeliveryTag",
    "Ending",
    "Failure",
    "LinkReliability",
    "Outcome",
    "Settlement",
    "contradiction",
    "shortened_reason",
]
