"""The command ``holdfast``: a server of durable queues, and commands to use and maintain it."""

from __future__ import annotations

from broker_adapter.server.cli.program import main

__all__ = ["main"]
