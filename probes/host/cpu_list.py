"""Parses and formats the kernel's lists of processors and NUMA nodes, such as `0-55,112-167`."""

from __future__ import annotations

from laggard.probes.errors import Unknown

_MAX_NUMBER = 1 << 16  # larger than any machine; a damaged list must not fill the memory


def parse_cpu_list(text: str, where: str) -> frozenset[int]:
    """The numbers in the list `text`. Raises Unknown, with the path `where` in its message."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise Unknown(f"{where} holds no list of processors")
        numbers.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(numbers)


def format_cpu_list(numbers: frozenset[int]) -> str:
    """The list of `numbers`, for people to read: the inverse of parse_cpu_list."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in parts)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < _MAX_NUMBER
