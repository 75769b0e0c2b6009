"""Reads a pickle that holds plain values alone, and executes nothing.

The reader is an interpreter of its own for the 33 opcodes that build None, truth values, numbers, texts, lists, tuples
and dictionaries. It does not know those that import, call or build objects (GLOBAL, REDUCE, BUILD, ...), so that a file
cannot ask for them. Python's own Unpickler with a find_class that refuses everything would not do: a memo index of 2^31
makes it allocate 64 GB (CPython's gh-115952), and a nested tuple as a dictionary's key makes it hash for ever.

Time and memory are bounded by the file's size: each opcode costs at least a byte and makes at most one value. What a
pickle refers to twice is one value here as well, so that references to references do not multiply.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

MAX_OPCODES = 12_000_000
"""The most opcodes of a pickle: so many values of 24 to 64 bytes are half a GiB. A dump of 100,000 records with their
stacks takes 9 million."""

MAX_CONTAINERS = 4_000_000
"""An empty list is a byte in the file and 56 in memory."""


class PickleError(ValueError):
    """The bytes are no pickle, or hold more than plain values; the text says which."""


def read_plain_pickle(data: bytes) -> Any:
    """The value in `data`: texts, numbers, None, lists, tuples, and dictionaries with texts as keys. Raises
    PickleError. Values may be nested to any depth, and may hold themselves: whoever walks them has to bound that."""
    return _Machine(data).run()


class _Machine:
    """The state of pickle's stack machine. `marks` are the places in `stack` at which a container's items begin."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.containers = 0

    def run(self) -> Any:
        try:
            return self._run()
        except (IndexError, struct.error):
            raise PickleError(f"cut off or damaged at byte {self.at:,}") from None
        except KeyError as error:
            index = error.args[0]
            raise PickleError(f"a reference to value {index:,}, which is not there, after byte {self.at:,}") from None

    def _run(self) -> Any:
        """The value at the end. What most of a dump consists of, references to values seen before and small numbers, is
        done here, since a call takes longer than all that they do; the other opcodes have a method each."""
        data, opcodes = self.data, _OPCODES
        stack, memo = self.stack, self.memo
        push = stack.append
        four = _UINT4.unpack_from
        at = 0
        for _ in range(MAX_OPCODES):
            code = data[at]
            if code == _BINGET:
                push(memo[data[at + 1]])
                at += 2
            elif code == _LONG_BINGET:
                push(memo[four(data, at + 1)[0]])
                at += 5
            elif code == _LONG_BINPUT:
                memo[four(data, at + 1)[0]] = stack[-1]
                at += 5
            elif code == _BININT1:
                push(data[at + 1])
                at += 2
            elif code == _BININT2:
                push(data[at + 1] | data[at + 2] << 8)
                at += 3
            elif code == _STOP:
                return self.stack.pop()
            else:
                self.at = at + 1
                opcode = opcodes.get(code)
                if opcode is None:
                    raise PickleError(self._refusal())
                opcode(self)
                at = self.at
        raise PickleError(f"more than {MAX_OPCODES:,} opcodes")

    def _refusal(self) -> str:
        code = self.data[self.at - 1]
        name = _REFUSED.get(code)
        if name:
            return f"it would import or call something ({name} at byte {self.at - 1:,}), which is never done"
        return f"damaged, or no pickle of plain values: opcode {code:#04x} at byte {self.at - 1:,}"

    def take(self, count: int) -> bytes:
        """The next `count` bytes. The count is the file's word: nothing is reserved for it."""
        start, end = self.at, self.at + count
        if end > len(self.data):
            raise PickleError(f"cut off at byte {len(self.data):,}: {count:,} bytes are announced at {start:,}")
        self.at = end
        return self.data[start:end]

    def number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def push_text(self, count: int) -> None:
        self.stack.append(self.take(count).decode("utf-8", "replace"))

    def push_container(self, value: Any) -> None:
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            raise PickleError(f"more than {MAX_CONTAINERS:,} lists and dictionaries")
        self.stack.append(value)

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def since_mark(self) -> list[Any]:
        """Takes what was pushed since the last mark."""
        place = self.marks.pop()
        items = self.stack[place:]
        del self.stack[place:]
        return items

    def push_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.push_container(items)

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise PickleError(f"items for what is no list before byte {self.at:,}")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        keys = items[::2]
        if type(target) is not dict or len(items) % 2:
            raise PickleError(f"items for what is no dictionary before byte {self.at:,}")
        if any(type(key) is not str for key in keys):  # others could take for ever to hash, or all have one hash
            raise PickleError(f"a key that is no text before byte {self.at:,}")
        target.update(zip(keys, items[1::2], strict=True))

    def protocol(self) -> None:
        version = self.number(_UINT1)
        if version > 5:
            raise PickleError(f"pickle protocol {version} is not known")

    def long(self, count: int) -> None:
        if count > 16:
            raise PickleError(f"a number of {count:,} bytes before byte {self.at:,}")
        self.stack.append(int.from_bytes(self.take(count), "little", signed=True))

    def pop_pair(self) -> list[Any]:
        value, key = self.stack.pop(), self.stack.pop()
        return [key, value]


_UINT1, _UINT2, _UINT4, _UINT8 = (struct.Struct(form) for form in ("<B", "<H", "<I", "<Q"))
_INT4, _FLOAT = struct.Struct("<i"), struct.Struct(">d")
_STOP, _BINGET, _LONG_BINGET, _LONG_BINPUT, _BININT1, _BININT2 = b".hjrKM"

_OPCODES: dict[int, Callable[[_Machine], Any]] = {
    0x80: _Machine.protocol,  # PROTO
    0x95: lambda m: m.number(_UINT8),  # FRAME: a length that a reader of files may use; we have all bytes
    ord("("): lambda m: m.marks.append(len(m.stack)),  # MARK
    ord("N"): lambda m: m.stack.append(None),  # NONE
    0x88: lambda m: m.stack.append(True),  # NEWTRUE
    0x89: lambda m: m.stack.append(False),  # NEWFALSE
    ord("J"): lambda m: m.stack.append(m.number(_INT4)),  # BININT
    0x8A: lambda m: m.long(m.number(_UINT1)),  # LONG1
    ord("G"): lambda m: m.stack.append(m.number(_FLOAT)),  # BINFLOAT
    0x8C: lambda m: m.push_text(m.number(_UINT1)),  # SHORT_BINUNICODE
    ord("X"): lambda m: m.push_text(m.number(_UINT4)),  # BINUNICODE
    0x8D: lambda m: m.push_text(m.number(_UINT8)),  # BINUNICODE8
    ord("]"): lambda m: m.push_container([]),  # EMPTY_LIST
    ord("}"): lambda m: m.push_container({}),  # EMPTY_DICT
    ord(")"): lambda m: m.push_container(()),  # EMPTY_TUPLE
    ord("a"): lambda m: m.append([m.stack.pop()]),  # APPEND
    ord("e"): lambda m: m.append(m.since_mark()),  # APPENDS
    ord("s"): lambda m: m.set_items(m.pop_pair()),  # SETITEM
    ord("u"): lambda m: m.set_items(m.since_mark()),  # SETITEMS
    ord("l"): lambda m: m.push_container(m.since_mark()),  # LIST
    ord("t"): lambda m: m.push_container(tuple(m.since_mark())),  # TUPLE
    0x85: lambda m: m.push_tuple(1),  # TUPLE1
    0x86: lambda m: m.push_tuple(2),  # TUPLE2
    0x87: lambda m: m.push_tuple(3),  # TUPLE3
    ord("0"): lambda m: m.stack.pop(),  # POP
    ord("q"): lambda m: m.remember(m.number(_UINT1)),  # BINPUT
    0x94: lambda m: m.remember(len(m.memo)),  # MEMOIZE
}

_REFUSED = {
    ord("c"): "GLOBAL", 0x93: "STACK_GLOBAL", ord("R"): "REDUCE", ord("b"): "BUILD", ord("i"): "INST", ord("o"): "OBJ",
    0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", ord("P"): "PERSID",
    ord("Q"): "BINPERSID",
}  # fmt: skip
"""The opcodes that the error calls by their names: those with which a pickle makes its reader act."""
