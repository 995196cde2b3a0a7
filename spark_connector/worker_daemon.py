"""Spark's daemon of Python workers, with the connector loaded before they are forked.

Each Python worker of Spark loads what its tasks need: of the connector, pyarrow and a client about 0.6 s of CPU.  Those
that this daemon forks have it.  A session uses it by its configuration::

    SparkSession.builder.config("spark.python.daemon.module", "spark_connector.worker_daemon")

Spark runs this module as a program, with the name of the workers' own module as its argument.

Spark's own daemon loads nothing ahead of a fork, since libraries may start threads, which a copy does not have.  Here
there are two, those of NumPy's OpenBLAS and of pyarrow's jemalloc; both libraries are told of a fork, and start theirs
again.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress

from pyspark.daemon import manager

#: What the workers would load otherwise: the connector, and the way to a broker.
PRELOADED = (
    "pyspark.sql.worker.plan_data_source_read",
    "spark_connector",
    "broker_adapter.failover.transport",
    "broker_adapter.amqp.client.transport",
)


def main() -> None:
    """Load what the workers will run, and fork them as Spark asks for them.

    Does not return: as Spark closes the standard input, it ends this process and the workers.
    """
    for name in (*sys.argv[1:2], *PRELOADED):
        with suppress(Exception):  # the code that needs it raises the error again, where it can be reported
            importlib.import_module(name)
    os.register_at_fork(after_in_child=_seed_again)
    manager()


def _seed_again() -> None:
    """Give a worker random numbers of its own: copies of the daemon would all draw the same ones from NumPy."""
    loaded = sys.modules.get("numpy.random")  # NumPy 1 loads it with the package
    if loaded is not None:
        loaded.seed()


if __name__ == "__main__":
    main()
