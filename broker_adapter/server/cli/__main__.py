"""``python -m broker_adapter.server.cli``: the command ``holdfast``."""

from __future__ import annotations

import sys

from broker_adapter.server.cli import main

sys.exit(main())
