"""The pages of an LMDB file, read without LMDB: which ones are damaged, and the records of the others.

LMDB does not verify its pages.  One that is zeroed, or was written to the wrong place, makes it end the process or
leave out records without an error.  So a check reads every page before LMDB does.  A repair takes the records out
(:mod:`salvage`).

Theory of operation
    A file is a sequence of pages.  Pages 0 and 1 are *meta* pages, each the root of one of the last two transactions;
    the one with the higher transaction number counts.  It leads to two trees: the free pages, by the transaction that
    freed them, and the main tree, whose records are the roots of the named tables.  Each tree has branch pages (key →
    page) and leaf pages (key → value); a large value stands in consecutive overflow pages.  Every page carries its own
    number, so a page in the wrong place is noticed.

    The keys of a branch are bounds: those of a page below stand between two of them.  A key that does not was changed,
    or the branch leads to the wrong page, and LMDB would not find the key.

    A sound file uses each page once, or has it among the free ones.  What is neither belongs to a tree whose branch is
    damaged.

    Of the two transactions of the roots one follows the other.  Where the numbers say otherwise, one of the roots is
    lost: its number was changed, or the disk has lost a write, and an older root is still in its place.  LMDB might
    begin with the older one.  The pages that a transaction frees are listed under its number, which tells.  The pages
    of an old root are used again, so its list counts only where what it leads to is sound.

All numbers are in the machine's byte order.  The layout is that of LMDB 0.9 on a machine of 64 bits.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import attrs

from broker_adapter.engine.records.layout import MAX_KEY_BYTES, TABLES

#: Reads so many bytes at an offset of the file; fewer where it ends.
Read = Callable[[int, int], bytes]

MAGIC: Final = 0xBEEFC0DE
HEADER: Final = struct.Struct("=QHHHH")
_META: Final = struct.Struct("=IIQQ")
_TREE: Final = struct.Struct("=IHHQQQQQ")
NODE: Final = struct.Struct("=HHHH")
_NUMBER: Final = struct.Struct("=Q")
BRANCH, LEAF, OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG, _SUBTREE = 1, 2
_INTEGER_KEYS: Final = 8
NO_PAGE: Final = (1 << 64) - 1
#: What damages call the list of free pages.
FREE_PAGES: Final = "(free pages)"
#: Deepest tree that is followed; LMDB's own limit is 32.
MAX_DEPTH: Final = 32
_LEAST_PAGE, _MOST_PAGE = 512, 65536


class Tree(NamedTuple):
    """The root of a tree."""

    page_bytes: int  #: of the tree of free pages: the file's page size
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


class Meta(NamedTuple):
    """One of the two roots of a file."""

    page: int
    free: Tree
    main: Tree
    last_page: int
    transaction: int


@attrs.frozen
class Damage:
    """A page that cannot be used.

    Attributes:
        page: its number.
        table: whose it is; empty where that is not known.
        text: what is wrong with it.
    """

    page: int
    table: str
    text: str


class _Node(NamedTuple):
    """A record of a leaf page."""

    key: bytes
    value: bytes  #: where it is large: the number of its first page
    size: int  #: of the value
    flags: int


@attrs.define
class _Counted:
    """What a tree was found to have; its root says the same."""

    depth: int = 0
    branch_pages: int = 0
    leaf_pages: int = 0
    overflow_pages: int = 0
    entries: int = 0


class PageError(Exception):
    """A page is damaged."""


#: What a key is compared by.
_Key = bytes | int


class Step(NamedTuple):
    """A page that a tree leads to, with the bounds of its keys."""

    page: int
    depth: int
    least: _Key | None = None  #: inclusive; None: there is none
    end: _Key | None = None  #: exclusive; None: there is none

    def check(self, keys: Sequence[Any]) -> None:
        """Raise PageError where the keys of a leaf are not as they must be."""
        if any(low >= high for low, high in pairwise(keys)):
            raise PageError("its keys are not in order")
        if keys and (
            (self.least is not None and keys[0] < self.least) or (self.end is not None and keys[-1] >= self.end)
        ):
            raise PageError("it has keys that the branch above it does not lead to")

    def below(self, keys: Sequence[Any], children: Sequence[int]) -> list[Step]:
        """The pages below a branch; the key of its first one says nothing.  Raises as ``check``."""
        self.check(keys[1:])
        bounds = [self.least, *keys[1:], self.end]
        return [Step(child, self.depth + 1, bounds[at], bounds[at + 1]) for at, child in enumerate(children)]


def in_order(key: bytes, table: str) -> _Key:
    """Return what a key is compared by: those of the free pages are numbers."""
    return int.from_bytes(key, sys.byteorder) if table == FREE_PAGES else key


def metas(read: Read) -> list[Meta]:
    """The meta pages that can be read, the newest first, by what they say."""
    found = []
    for page_bytes in (4096, 8192, 16384, 32768, 65536):
        for page in (0, 1):
            meta = _meta(read(page * page_bytes, page_bytes), page)
            if meta is not None and meta.free.page_bytes == page_bytes:
                found.append(meta)
        if found:
            break
    return sorted(found, key=lambda meta: -meta.transaction)


def contradiction(found: Sequence[Meta]) -> str | None:
    """Why the transactions of the two roots cannot be right; None where they can."""
    numbers = [meta.transaction for meta in found]
    if len(found) == 2 and numbers != [0, 0] and numbers[0] - numbers[1] != 1:
        return f"the roots are of the transactions {numbers[0]} and {numbers[1]}, which do not follow each other"
    return None


def newest(read: Read, found: Sequence[Meta], size: int) -> Meta:
    """The root of the last transaction that the file has, also where the number of one is wrong.

    Args:
        read: of the file.
        found: what :func:`metas` has found.
        size: of the file in bytes.
    """
    if contradiction(found) is None:
        return found[0]
    numbered = []
    for meta in found:
        file = File(read, meta, size)
        file.tables()
        numbered.append((meta.transaction if file.damages else file.last_freed, meta.transaction, meta))
    return max(numbered, key=lambda each: each[:2])[2]


def tree_of(value: bytes) -> Tree | None:
    """The root of a table; None where it is none."""
    return Tree(*_TREE.unpack(value)) if len(value) == _TREE.size else None


def _meta(data: bytes, page: int) -> Meta | None:
    if len(data) < 16 + _META.size + 2 * _TREE.size + 16:
        return None
    number, _, flags, _, _ = HEADER.unpack_from(data)
    magic, version, _, _ = _META.unpack_from(data, 16)
    if magic != MAGIC or number != page or not flags & _META_PAGE or version != 1:
        return None
    place = 16 + _META.size
    free = Tree(*_TREE.unpack_from(data, place))
    main = Tree(*_TREE.unpack_from(data, place + _TREE.size))
    last_page, transaction = struct.unpack_from("=QQ", data, place + 2 * _TREE.size)
    if not _LEAST_PAGE <= free.page_bytes <= _MOST_PAGE:
        return None
    return Meta(page, free, main, last_page, transaction)


class File:
    """An LMDB file, as of one of its meta pages.

    Args:
        read: of the file.
        meta: where to begin.
        size: of the file in bytes.
        progress: called with the number of pages checked so far and how many there are.
        names: of the tables that there may be.

    Attributes:
        damages: what was found so far.
        free_is_known: whether the list of free pages could be read.
        last_freed: the highest number of a transaction in that list; -1: there is none.
    """

    def __init__(
        self,
        read: Read,
        meta: Meta,
        size: int,
        progress: Callable[[int, int], None] = lambda _done, _of: None,
        names: Container[str] = TABLES,
    ) -> None:
        self._read = read
        self._names = names
        self._meta = meta
        self._size = meta.free.page_bytes
        self._progress = progress
        #: The number of the last page may be damaged: pages behind it are read where a branch leads to them, and it may
        #: be far behind the end of the file.
        self._there = size // meta.free.page_bytes
        self._used = bytearray(self._there // 8 + 1)
        self._used_behind: set[int] = set()  #: pages behind the end of the file, which were never written
        self._done = 0
        self.damages: list[Damage] = []
        self.free_is_known = False
        self.last_freed = -1
        self._overflow_pages = 0  #: that were read so far

    def tables(self) -> dict[str, Tree]:
        """The named tables.  Marks the pages of the free tree and of the main one as used."""
        for page in (0, 1):
            self._use(page)
        meta = self._meta
        if (meta.main.page_bytes, meta.main.flags, meta.free.flags) != (0, 0, _INTEGER_KEYS):
            self.damages.append(Damage(meta.page, "", "it is one of the two roots of the file, with impossible flags"))
        self.free_is_known = self._mark_free()
        if self._there < self.pages and not self._are_used_behind():
            self._miscounts(f"the file ends after {self._there}")
        found: dict[str, Tree] = {}
        for key, value, flags in self._nodes(self._meta.main, "(main)"):
            name = key.decode(errors="replace")
            tree = tree_of(value)
            if tree is not None and flags == _SUBTREE and name in self._names and not (tree.page_bytes or tree.flags):
                found[name] = tree
            else:  # its pages are found without it
                self.damages.append(Damage(self._meta.main.root, "(main)", f"the root of a table {key!r} is damaged"))
        return found

    def _mark_free(self) -> bool:
        before = len(self.damages)
        for key, value, _ in self._nodes(self._meta.free, FREE_PAGES):
            self.last_freed = max(self.last_freed, int.from_bytes(key, sys.byteorder))
            count = _NUMBER.unpack_from(value)[0] if len(value) >= 8 else -1
            if len(value) < 8 * (count + 1):
                self.damages.append(Damage(0, FREE_PAGES, "a list of free pages is cut off"))
                continue
            for (page,) in _NUMBER.iter_unpack(value[8 : 8 * (count + 1)]):
                if page >= self.pages:
                    self._miscounts(f"page {page} is in the list of free ones")
                elif not self._use(page):
                    self.damages.append(Damage(page, FREE_PAGES, "it is free, and is used as well"))
        return len(self.damages) == before

    def ends_with_free(self) -> bool:
        """Return whether all pages from the end of the file to the last are free.  Only the list of free pages is read.

        LMDB does not write such a page that it has used and freed in one transaction: the file may end before it.
        """
        if not self._mark_free():
            return False
        return self._are_used_behind()

    def _are_used_behind(self) -> bool:
        """Return whether all pages between the end of the file and the last page are used: they are free ones, then."""
        return len(self._used_behind) >= self.pages - self._there

    def _miscounts(self, why: str) -> None:
        """The root's number of pages cannot be right."""
        if not any(each.page == self._meta.page for each in self.damages):
            self.damages.append(
                Damage(
                    self._meta.page,
                    "",
                    f"it is one of the two roots of the file, and says that there are {self.pages} pages; {why}",
                )
            )

    def records(self, table: str, tree: Tree) -> Iterator[tuple[bytes, bytes]]:
        """The records of a table that can be read, in the order of their keys; ``damages`` says what is missing."""
        for key, value, _ in self._nodes(tree, table):
            yield key, value

    @property
    def pages(self) -> int:
        """How many pages the file has."""
        return self._meta.last_page + 1

    def _use(self, page: int) -> bool:
        """Mark a page as used; returns False where it was already."""
        if page >= self._there:
            if page in self._used_behind:
                return False
            self._used_behind.add(page)
            return True
        byte, bit = page >> 3, 1 << (page & 7)
        if self._used[byte] & bit:
            return False
        self._used[byte] |= bit
        self._done += 1
        if not self._done % 5000:
            self._progress(self._done, self.pages)
        return True

    def _nodes(self, tree: Tree, table: str) -> Iterator[tuple[bytes, bytes, int]]:
        """(key, value, flags) of all leaves that can be reached."""
        before = len(self.damages)
        counted = _Counted()
        yield from self._walk(tree, table, counted)
        said = tree.depth, tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries
        if len(self.damages) == before and attrs.astuple(counted) != said:
            self.damages.append(
                Damage(
                    tree.root if tree.root != NO_PAGE else 0,
                    table,
                    f"it has {counted.entries} records, and its root says {tree.entries}, or its pages are other ones",
                )
            )

    def _walk(self, tree: Tree, table: str, counted: _Counted) -> Iterator[tuple[bytes, bytes, int]]:
        if tree.root == NO_PAGE:
            return
        stack = [Step(tree.root, 1)]
        while stack:
            step = stack.pop()
            page = step.page
            try:
                data, flags, lower, upper = self._page(page, step.depth)
                counted.depth = max(counted.depth, step.depth)
                if flags & BRANCH:
                    counted.branch_pages += 1
                    children = self._children(page, data, lower, upper, table)
                    keys = [in_order(key, table) for _, key in children]
                    stack += reversed(step.below(keys, [child for child, _ in children]))
                    continue
                counted.leaf_pages += 1
                nodes = self._leaf(page, data, lower, upper, table)
                counted.entries += len(nodes)
                step.check([in_order(node.key, table) for node in nodes])
            except PageError as error:
                self.damages.append(Damage(page, table, str(error)))
                continue
            overflow = self._overflow_pages
            yield from self._with_values(page, nodes, table)
            counted.overflow_pages += self._overflow_pages - overflow

    def _page(self, page: int, depth: int) -> tuple[bytes, int, int, int]:
        if page < 2:
            raise PageError("a branch leads to it")
        self._check_last(page)
        if depth > MAX_DEPTH:
            raise PageError("the tree is too deep")
        if not self._use(page):
            raise PageError("two branches lead to it")
        data = self._read(page * self._size, self._size)
        if len(data) < self._size:
            raise PageError("the file ends before it")
        number, _, flags, lower, upper = HEADER.unpack_from(data)
        if number != page:
            raise PageError("it is zeroed" if not data.strip(b"\0") else f"it says that it is page {number}")
        if flags not in (BRANCH, LEAF):
            raise PageError(f"it is of kind 0x{flags:x}, neither branch nor leaf")
        if not 16 <= lower <= upper <= self._size or lower & 1:
            raise PageError("its bounds are impossible")
        return data, flags, lower, upper

    def _check_last(self, page: int) -> None:
        """Note that another page leads to this page."""
        if page >= self._there:
            raise PageError("the file ends before it")
        if page >= self.pages:
            self._miscounts(f"page {page} is in use")

    def _pointers(self, data: bytes, lower: int, upper: int) -> tuple[int, ...]:
        count = (lower - 16) >> 1
        pointers = struct.unpack_from(f"={count}H", data, 16)
        if any(pointer < upper or pointer + NODE.size > self._size for pointer in pointers):
            raise PageError("a record of it is out of its bounds")
        return pointers

    def _check_layout(self, page: int, upper: int, sizes: Mapping[int, int], table: str) -> None:
        """The records of a page stand one behind another up to its end; LMDB counts on that where one is deleted."""
        end = upper
        for pointer, size in sorted(sizes.items()):
            if pointer != end:
                break
            end += size + (size & 1)
        if end != self._size:
            self.damages.append(Damage(page, table, "its records overlap, or have gaps"))

    def _children(self, page: int, data: bytes, lower: int, upper: int, table: str) -> list[tuple[int, bytes]]:
        """(page, key) of each."""
        children = []
        sizes: dict[int, int] = {}
        for pointer in self._pointers(data, lower, upper):
            low, high, flags, key_bytes = NODE.unpack_from(data, pointer)
            start = pointer + NODE.size
            children.append((low | high << 16 | flags << 32, data[start : start + key_bytes]))
            sizes[pointer] = NODE.size + key_bytes
        self._check_layout(page, upper, sizes, table)
        if not children:
            raise PageError("a branch without children")
        return children

    def _leaf(self, page: int, data: bytes, lower: int, upper: int, table: str) -> list[_Node]:
        if not 16 <= lower <= upper <= self._size:
            raise PageError("its bounds are impossible")
        nodes = []
        sizes: dict[int, int] = {}
        for pointer in self._pointers(data, lower, upper):
            low, high, flags, key_bytes = NODE.unpack_from(data, pointer)
            size = low | high << 16
            start = pointer + NODE.size + key_bytes
            sizes[pointer] = NODE.size + key_bytes + (_NUMBER.size if flags & _BIG else size)
            if start > self._size or not 0 < key_bytes <= MAX_KEY_BYTES:
                raise PageError("a key of it is out of its bounds")
            key = data[pointer + NODE.size : start]
            if flags & ~_BIG and not (table == "(main)" and flags == _SUBTREE):
                self.damages.append(Damage(page, table, f"the record {key.hex()} has the flags 0x{flags:x}"))
            value = data[start : start + (_NUMBER.size if flags & _BIG else size)]
            if not flags & _BIG and len(value) != size:
                raise PageError("a value of it is out of its bounds")
            nodes.append(_Node(key, value, size, flags))
        self._check_layout(page, upper, sizes, table)
        return nodes

    def _with_values(self, page: int, nodes: Sequence[_Node], table: str) -> Iterator[tuple[bytes, bytes, int]]:
        """(key, value, flags) of a leaf; values on pages of their own are read one at a time, as they may be large."""
        for key, value, size, flags in nodes:
            if not flags & _BIG:
                yield key, value, flags
                continue
            try:
                large = self._overflow(value, size, table)
            except PageError as error:
                number = _NUMBER.unpack(value)[0] if len(value) == _NUMBER.size else page
                self.damages.append(Damage(number, table, f"the value of {key.hex()}: {error}"))
                continue
            yield key, large, flags

    def _overflow(self, first: bytes, size: int, table: str) -> bytes:
        if len(first) != 8:
            raise PageError("its place is cut off")
        (page,) = _NUMBER.unpack(first)
        count = -(-(16 + size) // self._size)
        if page < 2:
            raise PageError(f"it is said to begin at page {page}")
        self._check_last(page + count - 1)
        for each in range(page, page + count):
            if not self._use(each):
                raise PageError("its pages are used twice")
        data = self._read(page * self._size, count * self._size)
        if len(data) < 16 + size:
            raise PageError("the file ends before it")
        self._overflow_pages += count
        number, _, flags, low, high = HEADER.unpack_from(data)
        if number != page or flags != OVERFLOW or low | high << 16 != count:
            # LMDB would free as many pages as it says.  Whether what it holds is right, its checksum tells.
            self.damages.append(Damage(page, table, "it is the first page of a long value, and does not say so"))
        return data[16 : 16 + size]
