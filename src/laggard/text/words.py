"""Numbers, ranks and other machines' text, as people read them."""

from __future__ import annotations

from collections.abc import Sequence


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 0-3 and 7`, `ranks 0, 2, 4, 6 and 27 more`."""
    runs = _runs(sorted(set(ranks)))
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:4]]
    rest = sum(last - first + 1 for first, last in runs[4:])
    if rest:
        words.append(f"{rest} more")
    joined = " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "none"
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {joined}"


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def seconds_text(value: float) -> str:
    """Two significant digits, in the unit that a reader would choose."""
    if value >= 0.0995:
        return f"{value:.2f} s" if value < 9.95 else f"{value:.0f} s"
    return f"{value * 1e3:.2g} ms" if value * 1e3 < 99.5 else f"{value * 1e3:.0f} ms"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def one_line(text: str) -> str:
    """Names come from other machines: whatever would break the line or hide text becomes a space."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
