"""How the tests of a run are divided among the workers of pytest-xdist, and in which order they begin.

They are divided by files, of which those with a Spark session are two parts (:data:`SHARED`): each worker that needs a
session starts one, which takes half a minute of CPU until it is warm; all of them in one part would take as long as
everything else.  The files that take longest are begun first: one that is begun last keeps one worker busy while the
others have nothing to do.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

#: Files, by their path below this directory; those that take longest first.
LONG: Final = (
    "spark_connector/test_checkpoints.py",
    "spark_connector/test_stream.py",
    "spark_connector/test_batch.py",
    "spark_connector/test_values.py",
    "spark_connector/test_killed_query.py",
    "spark_connector/test_samples.py",
    "spark_connector/test_regions.py",
    "samples/test_demo.py",
    "faults/test_sweep.py",
    "faults/test_group_life.py",
    "faults/test_kills.py",
    "faults/test_durable_clients.py",
    "contracts/test_transport_regions.py",
    "sdk/test_order.py",
    "sdk/test_many_threads.py",
    "samples/test_samples.py",
    "spark_connector/test_histories.py",
    "spark_connector/test_row_properties.py",
    "broker_adapter/amqp/test_hostile_peers.py",
    "sdk/test_finalizers.py",
    "sdk/test_closed_by_handlers.py",
    "contracts/test_transport.py",
    "faults/test_gateways.py",
    "faults/test_aio.py",
    "sdk/test_clean_ends.py",
    "sdk/test_interrupted.py",
    "sdk/test_signals.py",
    "broker_adapter/server/cli/test_store_commands.py",
    "broker_adapter/server/cli/test_message_commands.py",
    "broker_adapter/server/cli/test_server_commands.py",
    "broker_adapter/server/cli/test_copy_commands.py",
    "broker_adapter/server/cli/test_program.py",
    "broker_adapter/server/test_memory.py",
    "broker_adapter/server/test_event_memory.py",
    "faults/test_groups.py",
    "faults/test_many_threads.py",
    "faults/test_batches.py",
    "broker_adapter/engine/test_administered_histories.py",
    "broker_adapter/engine/test_event_histories.py",
    "broker_adapter/engine/test_strange_values.py",
    "broker_adapter/engine/test_full_disk.py",
    "broker_adapter/engine/test_damaged_pages.py",
    "crash/test_kill_server.py",
    "crash/test_kill_copies.py",
)
#: Files that one worker runs, for they share a session of Spark: for each file a name of the worker's part.
SHARED: Final = {
    "tests/spark_connector/test_checkpoints.py": "spark",
    "tests/spark_connector/test_batch.py": "spark",
    "tests/spark_connector/test_killed_query.py": "spark",
    "tests/spark_connector/test_routing.py": "spark",
    "tests/spark_connector/test_stream.py": "spark too",
    "tests/spark_connector/test_values.py": "spark too",
    "tests/spark_connector/test_samples.py": "spark too",
    "tests/spark_connector/test_regions.py": "spark too",
    "tests/spark_connector/test_sql.py": "spark too",
    "tests/spark_connector/driver/test_worker_python.py": "spark too",
}
_TESTS: Final = Path(__file__).parent
_RANKS: Final = {_TESTS / file: rank for rank, file in enumerate(LONG)}


def put_long_ones_first(items: list[pytest.Item]) -> None:
    """Put the tests in order, as soon as they are shuffled.

    Args:
        items: the tests; those of a file, and files that are not in ``LONG``, keep their order.
    """
    items.sort(key=lambda item: _RANKS.get(item.path, len(LONG)))


def load_share(directories: list[Path], number: int, count: int) -> None:
    """Load a share of the tests' modules, before pytest loads all of them.

    pytest rewrites the assertions of a module that is loaded for the first time, and keeps what it has written.  All
    workers load the modules at the same time, and so each would rewrite most of them.

    Args:
        directories: that the tests are in.
        number: of this worker, from 0.
        count: of workers.
    """
    files = sorted(file for directory in directories for file in directory.rglob("test_*.py"))
    for file in files[number::count]:
        with suppress(Exception, pytest.skip.Exception):  # pytest says it, which loads it again
            importlib.import_module(".".join(file.relative_to(_TESTS.parent).with_suffix("").parts))


class ByFile(LoadScopeScheduling):
    """Gives each worker whole files, and all files of a part of :data:`SHARED`.

    ``--dist loadgroup`` is for that, and has no effect with this version of pytest, which does not read the names any
    more that it gives the tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SHARED.get(file, file)
