"""Loads the connector in the daemons that fork the Python workers of Spark's planner; Python loads this as it starts.

Spark asks a worker for each step of a plan.  Each loads the connector and pyarrow, which takes longer than most tests.
Users have a setting for the workers of tasks (:mod:`spark_connector.worker_daemon`), and none for these.  A streaming
source has a process that no daemon forks.  Nothing may stand between it and Spark, which ends it by a signal first and
by closing its connection then.
"""

import gc
import importlib
import sys

# Spark puts archives of its modules first, whose source each process would compile anew; they are installed as well.
sys.path[:] = [each for each in sys.path if not each.endswith(".zip")]
if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    from spark_connector.worker_daemon import PRELOADED

    for name in (*sys.orig_argv[3:4], *PRELOADED):
        importlib.import_module(name)
    gc.freeze()
