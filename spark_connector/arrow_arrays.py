"""Arrow arrays made from numpy and from text, without pandas.  Pure.

``pyarrow.array`` and ``pyarrow.scalar`` import pandas, if it is installed, to see whether they were given something of
it.  That takes a third of a second of CPU, in each of the processes that Spark starts for a query.  What is here makes
arrays from their buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[Any]

#: Arrow's types of numbers, and those of numpy that have the same bytes.
_KINDS: Final = {pa.int64(): np.int64, pa.int32(): np.int32, pa.uint8(): np.uint8}
#: Arrow's offsets have 31 bits.
MOST_BYTES: Final = (1 << 31) - 1


def of_numbers(values: Numbers, kind: pa.DataType, is_null: Numbers | None = None) -> pa.Array:
    """Numbers as an array.

    Args:
        values: integers that fit.
        kind: of the array: int64, int32 or uint8.
        is_null: where the array has null instead; None: nowhere.
    """
    data = pa.py_buffer(np.ascontiguousarray(values, _KINDS[kind]))
    return pa.Array.from_buffers(kind, len(values), [None if is_null is None else bits(~is_null), data])


def of_flags(values: Numbers) -> pa.Array:
    """Booleans as an array."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits(values)])


def of_texts(values: Sequence[str | None]) -> pa.Array:
    """Texts as an array.

    Raises:
        ValueError: a text has no form in UTF-8, or all together are more than an array can have.
    """
    octets = [b"" if value is None else value.encode() for value in values]
    is_null = np.fromiter((value is None for value in values), np.bool_, len(octets))
    offsets = np.zeros(len(octets) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, octets), np.int64, len(octets)), out=offsets[1:])
    if offsets[-1] > MOST_BYTES:
        raise ValueError("more than 2 GiB")
    valid = bits(~is_null) if is_null.any() else None
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(octets))]
    return pa.Array.from_buffers(pa.string(), len(octets), buffers)


def of_one_text(value: str, count: int) -> pa.Array:
    """The same text ``count`` times."""
    return of_texts([value]).take(of_numbers(np.zeros(count, np.int32), pa.int32()))


def bits(values: Numbers) -> pa.Buffer:
    """Booleans as Arrow keeps them: a bit each, the lowest first."""
    return pa.py_buffer(np.packbits(values, bitorder="little"))
