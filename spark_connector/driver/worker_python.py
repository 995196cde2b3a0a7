"""Whether the Python that Spark starts its workers with has the connector; said before the first job fails.

PySpark takes the program from ``PYSPARK_PYTHON`` when the session is made, else ``python3`` of the PATH.  The
configuration ``spark.pyspark.python`` becomes that variable in ``spark-submit`` only.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark import SparkFiles

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_log = logging.getLogger(f"holdfast.{__name__}")
#: Longest wait for another interpreter to load the connector, in seconds.
_IMPORT_SECONDS = 60.0
_VARIABLE, _SETTING = "PYSPARK_PYTHON", "spark.pyspark.python"


def check_worker_python(spark: SparkSession) -> None:
    """Raise where the workers of a local session cannot import the connector; on a cluster, log it.

    Starts a process, for about a second, only if the workers have another interpreter than this program.

    Args:
        spark: the session.

    Raises:
        RuntimeError: they cannot; says what to set.
    """
    context = getattr(spark, "sparkContext", None)
    if context is None:  # Spark Connect: its server starts the workers
        return
    program = context.pythonExec
    found = shutil.which(program)
    if found is not None and is_this_python(found):
        return
    is_local = context.master.startswith("local")
    if found is None:
        if not is_local:  # there may be one on the executors' machines
            return
        reason = "there is no such program"
    else:
        failure = import_failure(found, _environment(context))
        if failure is None:
            return
        reason = f"{found} cannot import spark_connector ({failure})"
    text = _sentence(program, reason, context.getConf().get(_SETTING))
    if is_local:
        raise RuntimeError(text)
    _log.warning("%s. On a cluster it is the path of a Python on all machines", text)


def is_this_python(program: str) -> bool:
    """Return whether a program is the interpreter of this process, in the same environment."""
    own = sys.executable
    if not own:
        return False
    # The links in the folders of two virtual environments may lead to one interpreter.
    folders = (os.path.realpath(os.path.dirname(os.path.abspath(each))) for each in (program, own))
    return len(set(folders)) == 1 and os.path.realpath(program) == os.path.realpath(own)


def import_failure(program: str, environment: Mapping[str, str]) -> str | None:
    """Why an interpreter cannot import the connector, as its error says; None: it can, or it does not say."""
    try:
        done = subprocess.run(
            [program, "-c", "import spark_connector"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_IMPORT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else f"it ends with status {done.returncode}"


def _environment(context: SparkContext) -> dict[str, str]:
    """The environment of the workers, as far as imports are concerned."""
    environment = {**os.environ, **context.environment}
    assert context._jvm is not None
    root = SparkFiles.getRootDirectory()
    includes = [os.path.join(root, name) for name in context._python_includes or ()]
    path = [context._jvm.PythonUtils.sparkPythonPath(), *includes, root, environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(each for each in path if each)
    return environment


def _sentence(program: str, reason: str, setting: str | None) -> str:
    origin = f"as {_VARIABLE} said" if program != "python3" else f"the default, as {_VARIABLE} was not set"
    text = f"Spark starts its Python workers with {program!r} ({origin} when the session was made), and {reason}"
    if setting is not None and setting != program:
        text += f"; {_SETTING}={setting!r} has an effect in spark-submit only"
    return (
        f'{text}. Set {_VARIABLE} to the Python of this program before the session is made, os.environ["{_VARIABLE}"] ='
        f" sys.executable, here {sys.executable!r}; spark.stop() ends this session"
    )
