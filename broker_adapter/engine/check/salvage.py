"""The records of a damaged LMDB file: all that can be read, each by itself.

Theory of operation
    A page that is sound, and where its tree has it, gives all its records to the tree's table.  Everything else is
    checked record by record: a page with a wrong header, with keys that are not in order, one that no branch leads
    to, one that stands in another's place.  A record says by its checksum that it is one, and of which table.  So a
    damaged field costs the record that it is in, and not its neighbours.

    A record of a message or an entry that is in a damaged page, and fails its checksum, is given all the same: the
    check of the records sets it aside, with what can be read of it.

    A table whose tree is whole has no other records.  Of the other tables, pages that no tree leads to count where they
    are in use, as the list of free pages tells.  Where that is damaged,
    it is not known which of them have records that were deleted.  Then only the messages among them are taken, and only
    where the tree of the messages is damaged: into quarantine, since they may have been consumed.

    Where one of the two roots is lost (it cannot be read, or is older than it must be), the last commit may be lost
    with it.  What stands behind the end of the older file was written by that commit, and is taken as well.  It may
    also have used free pages: of these the messages are taken into quarantine whose numbers are higher than all others,
    since they may have been consumed before.

    Positions of a page: its *number* is where it belongs, its *place* where it stands.  Two pages that were exchanged
    are read where they stand.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from broker_adapter.engine.check.pages import (
    BRANCH,
    FREE_PAGES,
    HEADER,
    LEAF,
    MAX_DEPTH,
    NO_PAGE,
    NODE,
    OVERFLOW,
    Meta,
    PageError,
    Read,
    Step,
    Tree,
    in_order,
    tree_of,
)
from broker_adapter.engine.records.layout import MAX_KEY_BYTES, quarantine_key

#: The tables that a record may be of, by its key and checksum; none where it is of no known kind.
Recognise = Callable[[bytes, bytes], Sequence[str]]

_BIG: Final = 1
_PLACE: Final = struct.Struct("=Q")
#: Tables whose records are given although their checksum is wrong: a message may be read from them.
_KEPT: Final = frozenset(("messages", "entries"))
#: Pages read at once for their headers.
_CHUNK_PAGES: Final = 256


class Salvaged(NamedTuple):
    """A record, and whether it was where its tree has it."""

    table: str
    key: bytes
    value: bytes
    is_regular: bool


class _Node(NamedTuple):
    key: bytes
    value: bytes  #: where it is large: the number of its first page
    size: int
    is_big: bool


class Salvage:
    """Reads a damaged file.

    Args:
        read: of the file.
        meta: the root to begin with.
        size: of the file in bytes.
        recognise: tells what a record is.
        names: of the tables.
        has_lost_root: whether the other root is lost.
        progress: called with the number of pages checked so far and how many there are.

    Attributes:
        free_is_known: whether the list of free pages could be read; meaningful once ``records`` has ended.
    """

    def __init__(
        self,
        read: Read,
        meta: Meta,
        size: int,
        recognise: Recognise,
        names: Sequence[str],
        *,
        has_lost_root: bool = False,
        progress: Callable[[int, int], None] = lambda _done, _of: None,
    ) -> None:
        self._read = read
        self._meta = meta
        self._page_bytes = meta.free.page_bytes
        self._there = -(-size // self._page_bytes)
        self._recognise = recognise
        self._names = names
        self._has_lost_root = has_lost_root
        self._progress = progress
        self._taken = bytearray(self._there // 8 + 1)  #: numbers of pages whose records are given
        self._left: dict[int, str] = {}  #: numbers of pages that a tree leads to, and that are damaged: their table
        self._damaged: set[str] = set()  #: tables whose trees are damaged
        self._highest = 0  #: number of a page that a tree leads to
        self._last_message = b""  #: the highest key of a message that its tree has
        self.free_is_known = False
        self._elsewhere = self._find_misplaced()

    def records(self) -> Iterator[Salvaged]:
        """All that can be read; one record may come twice, the regular one first."""
        free = self._free_pages()
        roots = self._roots()
        for table in self._names:
            if table in roots:
                yield from self._of_tree(table, roots[table])
            else:
                self._damaged.add(table)
        for number, table in self._left.items():
            if not self._is_taken(number) and number not in free:
                yield from self._of_page(number, table)
        yield from self._of_others(free)

    # Pages.

    def _block(self, number: int) -> bytes:
        """Return what belongs at a page's number."""
        return self._read(self._elsewhere.get(number, number) * self._page_bytes, self._page_bytes)

    def _find_misplaced(self) -> dict[int, int]:
        """Number → place of the pages that stand elsewhere than they say, while another stands in their place."""
        claimed: dict[int, int] = {}
        own = bytearray(self._there // 8 + 1)
        for first in range(2, self._there, _CHUNK_PAGES):
            chunk = self._read(first * self._page_bytes, _CHUNK_PAGES * self._page_bytes)
            for at in range(len(chunk) // self._page_bytes):
                number, _, flags, lower, upper = HEADER.unpack_from(chunk, at * self._page_bytes)
                place = first + at
                if number == place:
                    own[place >> 3] |= 1 << (place & 7)
                elif 2 <= number < self._there and (
                    (flags in (BRANCH, LEAF) and 16 <= lower <= upper <= self._page_bytes)
                    or (flags == OVERFLOW and number + (lower | upper << 16) <= self._there)
                ):
                    claimed.setdefault(number, place)
        return {number: place for number, place in claimed.items() if not own[number >> 3] >> (number & 7) & 1}

    def _is_taken(self, number: int) -> bool:
        return bool(self._taken[number >> 3] >> (number & 7) & 1)

    def _take(self, number: int) -> None:
        if number < self._there:
            self._taken[number >> 3] |= 1 << (number & 7)

    # Trees.

    def _free_pages(self) -> set[int]:
        """The list of free pages; notes whether it is whole."""
        free: set[int] = set()
        entries = 0
        for number, is_sound in self._leaves(self._meta.free, FREE_PAGES):
            self._take(number)
            for node in self._nodes(number, is_sound):
                value = self._value(node)
                count = _PLACE.unpack_from(value)[0] if value is not None and len(value) >= 8 else -1
                if value is not None and 0 <= count <= len(value) // 8 - 1:
                    free.update(page for (page,) in _PLACE.iter_unpack(value[8 : 8 * (count + 1)]))
                    entries += 1
                    self._take_large(node)
        self.free_is_known = FREE_PAGES not in self._damaged and entries == self._meta.free.entries
        return free

    def _roots(self) -> dict[str, Tree]:
        """The roots of the tables."""
        found: dict[str, Tree] = {}
        for number, is_sound in self._leaves(self._meta.main, "(main)"):
            self._take(number)
            for node in self._nodes(number, is_sound):
                name, tree = node.key.decode(errors="replace"), tree_of(node.value)
                if tree is not None and name in self._names and not tree.page_bytes and not tree.flags:
                    found.setdefault(name, tree)
        return found

    def _leaves(self, tree: Tree, table: str) -> Iterator[tuple[int, bool]]:
        """The leaf pages that a tree leads to, each with whether it and the way to it are sound."""
        stack = [] if tree.root == NO_PAGE else [Step(tree.root, 1)]
        met: set[int] = set()
        leaves = 0
        while stack:
            step = stack.pop()
            number = step.page
            if not 2 <= number < self._there or number in met or step.depth > MAX_DEPTH:
                self._damaged.add(table)
                continue
            met.add(number)
            self._highest = max(self._highest, number)
            block = self._block(number)
            flags = self._kind_of(block)
            children = [] if flags == LEAF else _children(block)
            below: list[Step] = []
            try:
                keys = [in_order(key, table) for key in self._keys(number, block)]
                if flags == BRANCH:
                    below = step.below(keys, children)
                else:
                    step.check(keys)
                is_sound = True
            except PageError:
                below = [Step(child, step.depth + 1) for child in children if self._says(child)]
                is_sound = False
                self._damaged.add(table)
            if flags != BRANCH:
                leaves += 1
                yield number, is_sound
            stack += reversed(below)
        if leaves != tree.leaf_pages:
            self._damaged.add(table)

    def _of_tree(self, table: str, tree: Tree) -> Iterator[Salvaged]:
        count = 0
        for number, is_sound in self._leaves(tree, table):
            nodes = self._nodes(number, is_sound)
            if self._is_taken(number) or not is_sound or self._is_of_another(table, nodes):
                self._damaged.add(table)
                self._left.setdefault(number, table)
                continue
            self._take(number)
            count += len(nodes)
            if table == "messages" and nodes:
                self._last_message = max(self._last_message, nodes[-1].key)
            for node in nodes:
                value = self._value(node)
                self._take_large(node)
                if value is None:
                    self._damaged.add(table)
                else:
                    yield Salvaged(table, node.key, value, True)
        if count != tree.entries:
            self._damaged.add(table)

    def _is_of_another(self, table: str, nodes: Sequence[_Node]) -> bool:
        """Return whether a sound page has the records of another table: a branch leads to the wrong one."""
        others = 0
        for node in nodes:
            tables = self._tables_of(node)
            if table in tables:
                return False
            others += bool(tables)
        return others > 0

    # Single pages.

    def _says(self, number: int) -> bool:
        """Return whether a page that a damaged branch leads to may be right."""
        block = self._block(number) if 2 <= number < self._there else b""
        return len(block) == self._page_bytes and HEADER.unpack_from(block)[0] == number

    def _value(self, node: _Node) -> bytes | None:
        """The value of a record; None where it is not there.  A large one is read each time: many may be very large."""
        return self._large(node) if node.is_big else node.value

    def _tables_of(self, node: _Node) -> Sequence[str]:
        value = self._value(node)
        return () if value is None else self._recognise(node.key, value)

    def _kind_of(self, block: bytes) -> int:
        return int(HEADER.unpack_from(block)[2]) if len(block) == self._page_bytes else 0

    def _keys(self, number: int, block: bytes) -> list[bytes]:
        """The keys of a page; raises PageError where the page is damaged."""
        if len(block) < self._page_bytes:
            raise PageError("the file ends before it")
        claimed, _, flags, lower, upper = HEADER.unpack_from(block)
        if claimed != number or flags not in (BRANCH, LEAF) or not 16 <= lower <= upper <= len(block) or lower & 1:
            raise PageError("its head is damaged")
        end = upper
        keys: dict[int, bytes] = {}
        while end + NODE.size <= len(block):
            length, key = _length_and_key(block, end, flags)
            if end + length > len(block) or (flags == LEAF and not 0 < len(key) <= MAX_KEY_BYTES):
                raise PageError("a record of it is out of its bounds")
            keys[end] = key
            end += length + (length & 1)
        pointers = struct.unpack_from(f"={(lower - 16) >> 1}H", block, 16)
        if end != len(block) or len(pointers) != len(keys) or not keys.keys() >= set(pointers):
            raise PageError("its records overlap, or have gaps")
        return [keys[pointer] for pointer in pointers]

    def _nodes(self, number: int, is_sound: bool) -> list[_Node]:
        """The records of a leaf page; where it is damaged, those that may be ones."""
        block = self._block(number)
        if len(block) < self._page_bytes:
            block += bytes(self._page_bytes - len(block))
        _, _, _, lower, upper = HEADER.unpack_from(block)
        if is_sound:
            places: Sequence[int] = struct.unpack_from(f"={(lower - 16) >> 1}H", block, 16)
            return [_node_at(block, place) for place in places]
        found: dict[int, _Node] = {}
        for start in _starts(block, lower, upper):
            place = start
            while place not in found and place + NODE.size <= len(block):
                length, _ = _length_and_key(block, place, LEAF)
                if place + length > len(block):
                    break
                found[place] = _node_at(block, place)
                place += length + (length & 1)
        return [node for node in found.values() if 0 < len(node.key) <= MAX_KEY_BYTES]

    def _large(self, node: _Node) -> bytes | None:
        """A value on pages of its own; None where there is nothing of it."""
        pages = self._pages_of(node)
        if not pages:
            return None
        self._highest = max(self._highest, pages[-1])
        rest = self._read((pages[0] + 1) * self._page_bytes, (len(pages) - 1) * self._page_bytes)
        return (self._block(pages[0]) + rest)[16 : 16 + node.size]

    def _take_large(self, node: _Node) -> None:
        for page in self._pages_of(node):
            self._take(page)

    def _pages_of(self, node: _Node) -> range:
        """The pages that a large value has; none where it has none, or its place is impossible."""
        if not node.is_big or len(node.value) != _PLACE.size:
            return range(0)
        (page,) = _PLACE.unpack(node.value)
        count = -(-(16 + node.size) // self._page_bytes)
        return range(page, page + count) if 2 <= page <= self._there - count else range(0)

    def _of_page(
        self, number: int, table: str | None, *, only: str | None = None, of_all: bool = False
    ) -> Iterator[Salvaged]:
        """The records of a damaged page, or of one that no tree leads to.

        Args:
            number: of the page.
            table: whose it is said to be.
            only: the table whose records are wanted.
            of_all: whether those of whole tables are wanted as well.
        """
        of_all = of_all or number > self._meta.last_page
        known = [(node, self._tables_of(node)) for node in self._nodes(number, False)]
        votes = Counter(each for _, tables in known for each in tables)
        if not votes and table is None:
            return
        table = votes.most_common(1)[0][0] if votes else table
        for node, tables in known:
            if tables:
                self._take_large(node)
            value = self._value(node)
            if value is None:
                continue
            for each in tables or ((table,) if table in _KEPT else ()):
                if only in (None, each) and (of_all or each in self._damaged):
                    yield Salvaged(str(each), node.key, value, False)

    def _of_others(self, free: set[int]) -> Iterator[Salvaged]:
        """Yield what no tree leads to."""
        last = self._meta.last_page
        for number in range(2, self._there):
            if not number % 5000:
                self._progress(number, self._there)
            if number in free or number in self._left or self._is_taken(number):
                continue
            if number > last and not self._has_lost_root and self._are_counted():
                continue  # an earlier transaction wrote it, and was never committed
            if not self._may_be_leaf(number):
                continue
            if self.free_is_known:
                yield from self._of_page(number, None)
            elif "messages" in self._damaged:
                yield from map(_set_aside, self._of_page(number, None, only="messages"))
        if self._has_lost_root:
            for number in sorted(free):
                if 2 <= number < self._there and not self._is_taken(number) and self._may_be_leaf(number):
                    found = self._of_page(number, None, only="messages", of_all=True)
                    yield from (_set_aside(each) for each in found if each.key > self._last_message)

    def _are_counted(self) -> bool:
        """Return whether the root's number of pages can be right: nothing that it leads to stands behind."""
        return self._highest <= self._meta.last_page

    def _may_be_leaf(self, number: int) -> bool:
        """Return whether a page is a leaf, or was one before one byte of its head was changed."""
        block = self._block(number)
        if len(block) < self._page_bytes or not block.strip(b"\0"):
            return False
        claimed, _, flags, lower, upper = HEADER.unpack_from(block)
        has_number = any((claimed ^ number) & ~(0xFF << 8 * at) == 0 for at in range(8))
        has_bounds = 16 <= lower <= upper <= len(block)
        return has_number and flags not in (BRANCH, OVERFLOW) and (flags == LEAF or has_bounds)


def _set_aside(message: Salvaged) -> Salvaged:
    """A message, as a record of the quarantine."""
    return Salvaged("quarantine", quarantine_key("messages", message.key), message.value, False)


def _length_and_key(block: bytes, place: int, kind: int) -> tuple[int, bytes]:
    """Return how many bytes a node takes, and its key."""
    low, high, flags, key_bytes = NODE.unpack_from(block, place)
    length = NODE.size + key_bytes
    if kind == LEAF:
        length += _PLACE.size if flags & _BIG else low | high << 16
    start = place + NODE.size
    return length, block[start : start + key_bytes]


def _node_at(block: bytes, place: int) -> _Node:
    low, high, flags, key_bytes = NODE.unpack_from(block, place)
    start = place + NODE.size + key_bytes
    size = low | high << 16
    is_big = bool(flags & _BIG)
    return _Node(
        block[place + NODE.size : start], block[start : start + (_PLACE.size if is_big else size)], size, is_big
    )


def _children(block: bytes) -> list[int]:
    """The numbers of the pages below a branch, as far as they can be read."""
    if len(block) < HEADER.size:
        return []
    _, _, _, lower, upper = HEADER.unpack_from(block)
    if not 16 <= lower <= upper <= len(block) or lower & 1:
        lower, upper = len(block) & ~1, 16
    places = [place for (place,) in struct.iter_unpack("=H", block[16:lower]) if place <= len(block) - NODE.size]
    nodes = [NODE.unpack_from(block, place) for place in places if place >= upper]
    return [low | high << 16 | flags << 32 for low, high, flags, _ in nodes]


def _starts(block: bytes, lower: int, upper: int) -> list[int]:
    """Return where records of a damaged leaf may begin: at its pointers, and where the first one stands.

    The pointers end at ``lower``, and the least of them is ``upper``.  Where these contradict each other, one of them
    was changed, and all that may be a pointer is taken for one.
    """
    places: list[int] = []
    is_whole = 16 <= lower <= upper <= len(block) and not lower & 1
    if is_whole:
        places = [place for (place,) in struct.iter_unpack("=H", block[16:lower])]
        is_whole = bool(places) and min(places) == upper and max(places) <= len(block) - NODE.size
    if not is_whole:
        places = []
        least = len(block)
        for at in range(16, len(block) - 1, 2):
            if at >= least:
                break
            (place,) = struct.unpack_from("=H", block, at)
            if at + 2 <= place <= len(block) - NODE.size and not place & 1:
                places.append(place)
                least = min(least, place)
        if lower <= upper <= len(block) - NODE.size and not upper & 1:
            places.append(upper)
    return sorted({*places})
