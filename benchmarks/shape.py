"""What the largest classes and folders of the packages are: figures to look at, not limits.

A figure that grows is a reason to look, and none to split what belongs together.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rich.table import Table

_NAMED: Final = 3


class Class(NamedTuple):
    """One class of a package."""

    name: str
    attributes: int  #: that its methods set on the object
    arguments: int  #: of its constructor


def classes(text: str, file: str) -> Iterator[Class]:
    """Return the classes of a source text with their figures."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            made = [each for each in functions if each.name == "__init__"]
            arguments = made[0].args if made else None
            taken = [] if arguments is None else [*arguments.posonlyargs, *arguments.args[1:], *arguments.kwonlyargs]
            yield Class(f"{file}: {node.name}", len(_attributes(functions)), len(taken))


def _attributes(functions: list[ast.FunctionDef]) -> set[str]:
    return {
        node.attr
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


#: What named tuples have, which is public all the same.
_OF_TUPLES: Final = frozenset({"_asdict", "_fields", "_make", "_replace"})


def foreign_underscores(text: str) -> int:
    """Count the uses of names with an underscore that are another object's."""
    return sum(
        isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in _OF_TUPLES
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        for node in ast.walk(ast.parse(text))
    )


def table(root: Path, packages: tuple[str, ...]) -> Table:
    """Return a table of the largest of each kind.

    Args:
        root: of the project.
        packages: below it.
    """
    files = [path for package in packages for path in sorted((root / package).rglob("*.py"))]
    texts = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in files}
    found = [each for file, text in texts.items() for each in classes(text, file)]
    folders = Counter(path.rpartition("/")[0] for path in texts)
    made = Table(title="The largest classes and folders")
    for column in ("figure", "the largest"):
        made.add_column(column)
    by_attributes = sorted(found, key=lambda each: -each.attributes)[:_NAMED]
    by_arguments = sorted(found, key=lambda each: -each.arguments)[:_NAMED]
    made.add_row("attributes of a class", "; ".join(f"{each.attributes} {each.name}" for each in by_attributes))
    made.add_row("arguments of a constructor", "; ".join(f"{each.arguments} {each.name}" for each in by_arguments))
    made.add_row("files of a folder", "; ".join(f"{count} {name}" for name, count in folders.most_common(_NAMED)))
    made.add_row("uses of another object's underscores", str(sum(map(foreign_underscores, texts.values()))))
    made.add_row("lines", f"{sum(text.count(chr(10)) for text in texts.values()):,} in {len(texts)} files")
    return made
