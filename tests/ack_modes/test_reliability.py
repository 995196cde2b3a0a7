"""Which mode gives which link reliability."""

from __future__ import annotations

import pytest

from ack_modes import AcknowledgeMode, LinkReliability, contradiction

#: What agrees; all else contradicts.
AGREES = {
    (LinkReliability.UNRELIABLE, AcknowledgeMode.NO_ACK),
    (LinkReliability.AT_MOST_ONCE, AcknowledgeMode.NO_ACK),
} | {(LinkReliability.AT_LEAST_ONCE, mode) for mode in AcknowledgeMode if mode is not AcknowledgeMode.NO_ACK}


@pytest.mark.parametrize("mode", AcknowledgeMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("reliability", LinkReliability, ids=lambda reliability: reliability.value)
def test_every_mode_agrees_with_what_it_gives_and_with_nothing_else(
    reliability: LinkReliability, mode: AcknowledgeMode
) -> None:
    reason = contradiction(reliability, mode)
    assert (reason is None) is ((reliability, mode) in AGREES)
    assert reason is None or (reliability.value in reason and mode.name in reason)
