"""``holdfast`` whose primary waits for no other node: what its group must not do, so that tests can see that it would.

Run as ``python -m tests.faults.unreleased serve --group ...``.
"""

from __future__ import annotations

import sys

from broker_adapter.group.member import GroupReplication
from broker_adapter.server.cli import main


class Unreleased(GroupReplication):
    """All that is committed here leaves at once."""

    @property  # type: ignore[override]
    def released(self) -> int:
        """The last commit."""
        return self.lsn

    @released.setter
    def released(self, _lsn: int) -> None:
        """What the others have does not matter."""


if __name__ == "__main__":
    from broker_adapter.group import member

    member.GroupReplication = Unreleased  # type: ignore[misc]
    sys.exit(main())
