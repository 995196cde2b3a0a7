#!/bin/sh
# The Python workers of a PySpark 4.3.0 that pip has installed compile PySpark's own source in each new process.
#
# Guess, written before the run: pip has compiled pyspark as it installed it, and a worker of a local session imports it
# from there, as the driver does.
#
# Spark puts python/lib/pyspark.zip ahead of the installed package in the PYTHONPATH of its workers.  The archive has
# source only, and Python stores no compiled modules beside an archive.  So a process that plans a data source in
# Python, of which there is a new one for each read, spends most of its CPU time on compiling.
. "$(dirname "$0")/common.sh"
cat >run.py <<'EOF'
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession


def seen(_):
    import pyspark.sql.types as found

    yield found.__file__, found.__cached__


spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
installed = Path(pyspark.__file__).parent
print("driver: from", Path(pyspark.__file__).relative_to(installed.parent), end="; ")
print("compiled:", Path(pyspark.__cached__).exists())
(file, cached), = spark.sparkContext.parallelize([0], 1).mapPartitions(seen).collect()
spark.stop()
archive = installed / "python/lib/pyspark.zip"
print("worker: from", Path(file).relative_to(installed.parent), end="; ")
print("compiled:", bool(cached) and Path(cached).exists())
names = zipfile.ZipFile(archive).namelist()
print("archive:", "source only" if not any(name.endswith(".pyc") for name in names) else "compiled modules")


def seconds(path):
    code = f"import sys, time; sys.path[:0] = {path!r}; b = time.process_time(); import pyspark.sql.worker.create_data_source; print(time.process_time() - b)"
    run = lambda: float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    return min(run() for _ in range(3))


py4j = next(archive.parent.glob("py4j-*.zip"))
print("import of a planning worker, archive / installed, CPU: above 1.5:", seconds([str(archive), str(py4j)]) > 1.5 * seconds([]))
EOF
pyspark
expect output <<'EOF'
driver: from pyspark/__init__.py; compiled: True
worker: from pyspark/python/lib/pyspark.zip/pyspark/sql/types.py; compiled: False
archive: source only
import of a planning worker, archive / installed, CPU: above 1.5: True
EOF
