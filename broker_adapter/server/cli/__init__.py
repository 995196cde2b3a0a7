"""The command ``holdfast``: a server, and tools for people."""

from __future__ import annotations

from broker_adapter.server.cli.program import main

__all__ = ["main"]
