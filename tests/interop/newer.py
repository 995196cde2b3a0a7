"""``holdfast`` with another version of stores, which differs in its number only."""

from __future__ import annotations

import sys

from broker_adapter.engine.records import layout

if __name__ == "__main__":
    known = layout.STORE_VERSION
    layout.STORE_VERSION = known + 1  # before others take it from there
    from broker_adapter.engine.store import versions
    from broker_adapter.server.cli import main

    versions.CONVERSIONS[known] = lambda _txn, _tables: None
    sys.exit(main())
