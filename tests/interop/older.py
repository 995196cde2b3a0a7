"""``holdfast`` of an earlier commit: ``python -m tests.interop.older serve --group ...``."""

from __future__ import annotations

import sys

from tests.interop import install

if __name__ == "__main__":
    sys.path.insert(0, str(install.older()))
    from broker_adapter.server.cli import main

    sys.exit(main())
