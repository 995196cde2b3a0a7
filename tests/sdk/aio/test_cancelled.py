"""Tasks that are cancelled at any await, in all modes: a few; ``make cancellations``: thousands."""

from __future__ import annotations

from collections import Counter

import pytest

from sdk import AcknowledgeMode
from tests.sdk.aio.cancellations import MODES, Account, sweep
from tests.sdk.aio.conftest import Run

#: Tasks that are cancelled.
CANCELLATIONS = 150


def test_nothing_is_lost_or_comes_twice(run: Run, url: str) -> None:
    async def main() -> None:
        counts = await sweep(url, CANCELLATIONS, 1)
        assert counts.keys() == {mode.name for mode in MODES}  # and the account of each was right

    run(main)


@pytest.mark.parametrize(
    "mode", [mode for mode in MODES if mode is not AcknowledgeMode.NO_ACK], ids=lambda mode: mode.name
)
def test_the_account_notices_what_is_lost(mode: AcknowledgeMode) -> None:
    with pytest.raises(AssertionError, match="lost"):
        Account(mode, begun={"1"}, sent={"1"}).check(Counter())
    with pytest.raises(AssertionError, match="there again"):
        Account(mode, begun={"1"}, sent={"1"}, seen=Counter("1"), ended=Counter("1")).check(Counter("1"))
