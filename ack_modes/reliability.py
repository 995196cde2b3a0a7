"""Link reliability, as an address of Qpid may ask for it, and which acknowledge modes can give it.

The seed *Client Failover Behaviour*: "Where a Link Reliability option is specified on an Address, it must be in
conformance with the Acknowledge Mode being used by the Session ... The JMS Session Acknowledge Mode set in the code
should take precedence."
"""

from __future__ import annotations

from enum import Enum

from ack_modes.mode import AcknowledgeMode


class LinkReliability(Enum):
    """What a link promises of each message."""

    UNRELIABLE = "unreliable"
    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


#: What the mode with this policy gives: presettled (the broker forgets a message as it sends it), or not.
_GIVEN = {
    True: (LinkReliability.UNRELIABLE, LinkReliability.AT_MOST_ONCE),
    False: (LinkReliability.AT_LEAST_ONCE,),
}


def contradiction(reliability: LinkReliability, mode: AcknowledgeMode) -> str | None:
    """Why a session of this mode cannot give a link this reliability; None where it does.

    No link gives exactly-once: a TRANSACTED session does it by what is sent and received in one commit.
    """
    given = _GIVEN[mode.new_policy().presettled]
    if reliability in given:
        return None
    return (
        f"link reliability {reliability.value!r} contradicts the session's mode, {mode.name}, which gives"
        f" {' or '.join(each.value for each in given)}"
    )
