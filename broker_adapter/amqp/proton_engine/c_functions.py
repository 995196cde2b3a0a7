"""The C functions of proton that are called for each message: whether the installed version has them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

import proton
from cproton_ffi import lib

#: The version of python-qpid-proton whose C functions this package was written against.
PROTON_VERSION: Final = "0.40.0"

_HOT_FUNCTIONS: Final = (
    "pn_collector_peek",
    "pn_collector_pop",
    "pn_event_type",
    "pn_event_delivery",
    "pn_event_link",
    "pn_event_session",
    "pn_delivery",
    "pn_delivery_link",
    "pn_delivery_readable",
    "pn_delivery_partial",
    "pn_delivery_aborted",
    "pn_delivery_pending",
    "pn_delivery_settled",
    "pn_delivery_remote_state",
    "pn_delivery_update",
    "pn_delivery_settle",
    "pn_delivery_local",
    "pn_delivery_remote",
    "pn_link_recv",
    "pn_link_send",
    "pn_link_advance",
    "pn_link_credit",
    "pn_link_queued",
    "pn_link_flow",
    "pn_link_drain",
    "pn_link_get_drain",
    "pn_link_drained",
    "pn_transport_push",
    "pn_transport_pending",
    "pn_transport_peek",
    "pn_transport_pop",
    "pn_transport_tick",
    "pn_data_decode",
    "pn_data_encode",
    "pn_data_encoded_size",
    "pn_disposition_data",
)


def check_engine(engine: Any = lib) -> None:
    """Raise ImportError where proton lacks a function that the hot path calls."""
    missing = [name for name in _HOT_FUNCTIONS if not hasattr(engine, name)]
    if missing:
        raise ImportError(
            f"python-qpid-proton {version('python-qpid-proton')} lacks {', '.join(missing)}; "
            f"install python-qpid-proton=={PROTON_VERSION}"
        )


check_engine()


wrap_session: Any = proton.Session.wrap
wrap_link: Any = proton.Link.wrap
