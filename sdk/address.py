"""Names of destinations that carry options, in the form of Qpid: ``orders; {link: {reliability: at-least-once}}``."""

from __future__ import annotations

import re

from ack_modes import LinkReliability
from broker_adapter import Destination, InvalidDestinationException

_OPTIONS = re.compile(r"^(?P<name>.*?)\s*;\s*(?P<options>\{.*\})\s*$", re.DOTALL)
_RELIABILITY = re.compile(
    r"""^\{\s*link\s*:\s*\{\s*reliability\s*:\s*(?P<quote>['"]?)(?P<value>[\w-]+)(?P=quote)\s*\}\s*\}$"""
)


class AddressedDestination(Destination):
    """A destination whose address asked for a link reliability.  Equal to any of its name and kind."""

    reliability: LinkReliability


def split_address(text: str) -> tuple[str, LinkReliability | None]:
    """The name in an address, and the link reliability that it asks for.

    Raises:
        InvalidDestinationException: its options are not understood.
    """
    found = _OPTIONS.match(text) if isinstance(text, str) else None
    if found is None:
        return text, None
    option = _RELIABILITY.match(found["options"])
    known = ", ".join(each.value for each in LinkReliability)
    if option is None:
        raise InvalidDestinationException(
            f"options {found['options']!r} of address {found['name']!r} are not understood; the one that is known is"
            f" {{link: {{reliability: VALUE}}}}, with one of {known}"
        )
    try:
        return found["name"], LinkReliability(option["value"])
    except ValueError:
        raise InvalidDestinationException(f"link reliability {option['value']!r} is none of {known}") from None


def addressed(destination: Destination, reliability: LinkReliability | None) -> Destination:
    """The destination, with what its address asked for."""
    if reliability is None:
        return destination
    made = AddressedDestination(*destination)
    made.reliability = reliability
    return made
