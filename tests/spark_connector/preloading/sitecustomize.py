"""Has Spark's Python processes forked from one that has loaded the connector; Python loads this module as it starts.

Spark asks a process of its own for each source, and workers for each step of a plan.  Each loads the connector and
pyarrow, which takes longer than most tests.  Users have a setting for the workers of tasks
(:mod:`spark_connector.worker_daemon`), and none for these.
"""

import gc
import importlib
import os
import socket
import sys

#: Variable with the name of a socket, in the abstract name space, that gives out the socket of a fork server.
FORKS = "HOLDFAST_TESTS_FORKS"
#: The program that is a process for each streaming source.
SOURCE = "pyspark.sql.streaming.python_streaming_source_runner"

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    from spark_connector.worker_daemon import PRELOADED

    for name in (*sys.orig_argv[3:4], *PRELOADED):
        importlib.import_module(name)
    gc.freeze()
elif sys.orig_argv[1:] == ["-m", SOURCE] and FORKS in os.environ:
    from tests.fork_server import stand_in

    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(f"\0{os.environ[FORKS]}")
        server = socket.socket(fileno=socket.recv_fds(asked, 1, 1)[1][0])
    stand_in(server, sys.orig_argv[1:])
