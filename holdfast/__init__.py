"""Holdfast under its own name: all that :mod:`sdk` exports, and the version.

::

    from holdfast import ConnectionFactory

    ConnectionFactory("embedded:./data").create_connection()

All loggers of the packages are below the logger ``holdfast``.
"""

from typing import Any

import sdk
from sdk import *  # noqa: F403

__all__ = sdk.__all__


def __getattr__(name: str) -> Any:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from broker_adapter.version import own_version

    return own_version()
