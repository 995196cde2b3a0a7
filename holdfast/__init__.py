"""Holdfast under its own name: all that :mod:`sdk` exports, and the version.

::

    from holdfast import ConnectionFactory

    ConnectionFactory("embedded:./data").create_connection()

The SDK is loaded when a name of it is first used: pytest imports :mod:`holdfast.testing` for programs that do without.
All loggers of the packages are below the logger ``holdfast``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sdk
    from sdk import *  # noqa: F403

    __all__ = sdk.__all__


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from broker_adapter.version import own_version

        return own_version()
    if name == "__all__" or not name.startswith("_"):
        import sdk

        globals().update({each: getattr(sdk, each) for each in sdk.__all__}, __all__=sdk.__all__)
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__getattr__("__all__"), "__version__"]
