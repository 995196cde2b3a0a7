"""The SDK for ``asyncio`` under the name of the project: all that :mod:`sdk.aio` exports."""

import sdk.aio
from sdk.aio import *  # noqa: F403

__all__ = sdk.aio.__all__
