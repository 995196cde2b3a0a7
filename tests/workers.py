"""In which order the tests of a run begin, which the workers of pytest-xdist divide by files.

The files that take longest are begun first: one that is begun last keeps one worker busy while the others have nothing
to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

#: Files, by their path below this directory; those that take longest first.
LONG: Final = (
    "spark_connector/test_batch.py",
    "spark_connector/test_killed_query.py",
    "spark_connector/test_values.py",
    "spark_connector/test_stream.py",
    "spark_connector/test_checkpoints.py",
    "samples/test_demo.py",
    "faults/test_sweep.py",
    "faults/test_kills.py",
    "samples/test_samples.py",
    "spark_connector/test_histories.py",
    "spark_connector/test_row_properties.py",
    "broker_adapter/amqp/test_hostile_peers.py",
    "sdk/test_dropped.py",
    "sdk/test_clean_ends.py",
    "sdk/test_interrupted.py",
    "sdk/test_signals.py",
    "broker_adapter/server/cli/test_store_commands.py",
    "broker_adapter/server/cli/test_message_commands.py",
    "broker_adapter/server/cli/test_server_commands.py",
    "broker_adapter/server/cli/test_program.py",
    "broker_adapter/server/test_memory.py",
    "broker_adapter/engine/test_full_disk.py",
    "broker_adapter/engine/test_damaged_pages.py",
    "crash/test_kill_server.py",
)
_TESTS: Final = Path(__file__).parent
_RANKS: Final = {_TESTS / file: rank for rank, file in enumerate(LONG)}


def put_long_ones_first(items: list[pytest.Item]) -> None:
    """Put the tests in order, as soon as they are shuffled.

    Args:
        items: the tests; those of a file, and files that are not in ``LONG``, keep their order.
    """
    items.sort(key=lambda item: _RANKS.get(item.path, len(LONG)))
