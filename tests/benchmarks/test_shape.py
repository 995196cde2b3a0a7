"""The figures of classes are counted as they are written."""

from __future__ import annotations

from benchmarks import shape

TEXT = """
class One:
    def __init__(self, a, *, b=1):
        self.a = a
        self._b: int = b

    def change(self, other):
        self.a = other._b
        other.c = 1
"""


def test_attributes_and_arguments_of_a_class_are_counted() -> None:
    assert list(shape.classes(TEXT, "x.py")) == [shape.Class("x.py: One", 2, 2)]


def test_underscores_of_other_objects_are_counted() -> None:
    assert shape.foreign_underscores(TEXT) == 1
