"""What the benchmarks say: one line for each figure, as a table or as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

import attrs
from rich.console import Console
from rich.table import Table


@attrs.frozen(kw_only=True)
class Figure:
    """One measurement.

    Attributes:
        name: what was measured.
        value: the figure.
        unit: of it.
        yardstick: what it is compared with, measured in the same run; None: nothing.
        ratio: value / yardstick's value.
        goal: what the ratio or the value should be, in words.
        body_bytes, sync, window, producers, consumers: under which conditions.
        note: anything else, such as the CPU time a message cost.
    """

    name: str
    value: float
    unit: str
    yardstick: str | None = None
    ratio: float | None = None
    goal: str | None = None
    body_bytes: int | None = None
    sync: bool = True
    window: int | None = None
    producers: int = 0
    consumers: int = 0
    note: str = ""


def beside(
    name: str, found: Sequence[float], others: Sequence[float], unit: str, other: str, note: str = "", **more: Any
) -> Figure:
    """A figure that was measured in turn with another one: the medians of both, and of their ratios.

    Args:
        name: what was measured.
        found: of each turn.
        others: of the other one in the same turns.
        unit: of both.
        other: what the other one is.
        note: anything else.
        more: further fields of the figure.
    """
    yardstick = statistics.median(others)
    return Figure(
        name=name,
        value=statistics.median(found),
        unit=unit,
        yardstick=f"{other} {yardstick:,.0f}" if yardstick >= 100 else f"{other} {yardstick:.2f}",
        ratio=statistics.median(each / of_other for each, of_other in zip(found, others, strict=True)),
        note=f"{note}medians of {len(found)}",
        **more,
    )


def show(figures: Sequence[Figure], as_json: bool) -> None:
    """Print them."""
    if as_json:
        print(json.dumps([attrs.asdict(figure) for figure in figures], indent=1))
        return
    table = Table(title="Holdfast benchmarks")
    columns = (
        "what",
        "figure",
        "unit",
        "yardstick",
        "ratio",
        "goal",
        "body",
        "sync",
        "window",
        "prod.",
        "cons.",
        "note",
    )
    for column in columns:
        table.add_column(column, justify="right" if column in ("figure", "ratio", "body", "window") else "left")
    for figure in figures:
        table.add_row(
            figure.name,
            f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.3g}",
            figure.unit,
            figure.yardstick or "",
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            figure.goal or "",
            "" if figure.body_bytes is None else str(figure.body_bytes),
            "yes" if figure.sync else "no",
            "" if figure.window is None else str(figure.window),
            str(figure.producers),
            str(figure.consumers),
            figure.note,
        )
    Console(width=200).print(table)
