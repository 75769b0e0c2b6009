"""Ranks, hosts, GPUs, rows and columns of a text beside one another, by the test that rings use: the median and robust
deviations of the times, and at least what the active probes call slow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.numbers.quantities import Kind, Quantity, part_of_step
from laggard.diagnose.numbers.rows import Matrix, Row, Who
from laggard.diagnose.rules import Row as Words
from laggard.diagnose.rules import patterns, table
from laggard.kit.words import listed, ranks_text, times_text
from laggard.locate.shares import HALF
from laggard.model import Finding
from laggard.rings.judge import MIN_MEASURED, severity_of_ratio, slow_outliers

_P: Final = patterns("quantities")

_MIN_RATIO_OF_ONE: Final = 1 + HALF
"""How many times as long as its peers' the only time of one has to be: several are judged by their noise."""
_MANY: Final = 100.0
_MOST_RATIO: Final = 1e6
_MAX_NAMED: Final = 8
_IS_WAIT: Final = ("communication", "waiting")


class _Odd(NamedTuple):
    """`ratio`: how many times as slow as the usual. `early`: it waits less than the others, which wait for it."""

    who: Who
    ratio: float
    quantity: Quantity
    usual: Quantity
    row: Row
    peers: int
    early: bool = False


def odd_peers(rows: Iterable[Row]) -> list[Finding]:
    """Returns a finding for each rank, host or GPU that is slower than its peers by any name, by the name that shows it
    most."""
    told: dict[tuple[str, str, Kind], dict[Who, list[tuple[Quantity, Row]]]] = {}
    for row in rows:
        for it in row.quantities if row.who.kind else ():
            told.setdefault((row.who.kind, it.name or _shape(row.text), it.kind), {}).setdefault(row.who, []).append(
                (it, row)
            )
    worst: dict[Who, _Odd] = {}
    for (_, name, kind), of_who in told.items():
        for odd in _odd(name, kind, of_who):
            if odd.who not in worst or odd.ratio > worst[odd.who].ratio:
                worst[odd.who] = odd
    alike: dict[tuple[str, str, bool], list[_Odd]] = {}
    for odd in sorted(worst.values(), key=lambda it: -it.ratio):
        alike.setdefault((odd.who.kind, odd.quantity.name, odd.early), []).append(odd)
    return [_finding(group) for group in alike.values()]


def _odd(name: str, kind: Kind, of_who: Mapping[Who, list[tuple[Quantity, Row]]]) -> list[_Odd]:
    if len(of_who) < MIN_MEASURED:
        return []
    middle = {who: sorted(its, key=lambda it: it[0].value)[(len(its) - 1) // 2] for who, its in of_who.items()}
    values = {who: it.value for who, (it, _) in middle.items() if it.value > 0}
    repeated = min(map(len, of_who.values())) >= MIN_MEASURED
    if not values or (not repeated and kind is Kind.TIME and not _P["of_a_step"].search(name)):
        return []
    early = part_of_step(name) in _IS_WAIT and kind is Kind.TIME
    slow = slow_outliers({who: 1 / it if early or kind is Kind.RATE else it for who, it in values.items()})
    ordered = sorted(values, key=lambda who: values[who])
    usual = middle[ordered[(len(ordered) - 1) // 2]][0]
    least = 1.0 if repeated else _MIN_RATIO_OF_ONE
    count = len(of_who)
    return [
        _Odd(who, ratio, middle[who][0], usual, middle[who][1], count, early)
        for who, ratio in slow.items()
        if ratio >= least
    ]


def _shape(text: str) -> str:
    return re.sub(r"\d+(?:\.\d+)?", "", text)[:60]


def _finding(alike: Sequence[_Odd]) -> Finding:
    """`alike`: those of one kind by one name, the slowest first."""
    odd = alike[0]
    is_link = odd.quantity.kind is Kind.RATE and bool(_P["rated"].search(f"{odd.quantity.name} {odd.quantity.shown}"))
    name = f" ({odd.quantity.name})" if odd.quantity.name else ""
    own, others = odd.quantity.shown, f"the median of {odd.peers} is {odd.usual.shown}{name}"
    at_most = "" if len(alike) == 1 else f"stand out: {odd.who} "
    much = times_text(odd.ratio) if odd.ratio < _MANY else "many times"
    if odd.early:
        says = f"{at_most}waits {own} for the others, {others}: they wait for it"
    elif odd.quantity.kind is Kind.RATE:
        says = f"{at_most}reaches {own}, {others}: {much} as slow"
    else:
        says = f"{at_most}takes {own}, {others}: {much} as long"
    host = {"host": odd.row.host} if odd.row.host else {}
    return _words(odd.who.kind, is_link).found(
        {"line": odd.row.text[:300], **host, "ratio": round(min(odd.ratio, _MOST_RATIO), 2)},
        severity_of_ratio(1 / odd.ratio),
        who=_named([it.who for it in alike]),
        says=says,
    )


def _named(of: Sequence[Who]) -> str:
    numbers = [int(who.name) for who in of if who.name.isdecimal()]
    if of[0].kind == "rank" and len(numbers) == len(of):
        return ranks_text(numbers)
    return str(of[0]) if len(of) == 1 else listed([str(who) for who in of], _MAX_NAMED)


def _words(kind: str, is_link: bool) -> Words:
    """The words for what is slow: a GPU, a host or a rank, or its link."""
    name = {(True, True): "slow_link_of_gpu", (True, False): "slow_gpu", (False, True): "slow_link"}
    return table("numbers").sections[name.get((kind == "GPU", is_link), "slow_rank")]


def odd_in_matrices(matrices: Iterable[Matrix]) -> list[Finding]:
    """Returns a finding for each row or column whose best value is slow beside the others': what is slow with everybody
    is slow itself. Pairs may differ by design: by the switches and sockets between them. Of several tables with the
    same GPUs the one counts that shows it most."""
    worst: dict[Who, tuple[float, Finding]] = {}
    for matrix in matrices:
        for who, ratio, found in _odd_in(matrix):
            if ratio > worst.get(who, (0.0, None))[0]:
                worst[who] = ratio, found
    return [found for _, found in worst.values()]


def _odd_in(matrix: Matrix) -> Iterator[tuple[Who, float, Finding]]:
    if not (is_time := bool(_P["timed"].search(matrix.title))) and not _P["rated"].search(matrix.title):
        return
    kind = "GPU" if re.search(r"GPU|P2P|D\\D|device", matrix.title) else "rank"
    for of_columns in (False, True):
        best = _bests(matrix, is_time, of_columns)
        for label, ratio in slow_outliers(best).items():
            who = Who(kind, label)
            yield who, ratio, _of_matrix(who, matrix, is_time, ratio, best[label], best[label] / ratio)


def _bests(matrix: Matrix, is_time: bool, of_columns: bool) -> dict[str, float]:
    """The best time of each row or column with any other, or the inverse of its best rate."""
    best: dict[str, float] = {}
    for row, cells in zip(matrix.rows, matrix.cells, strict=True):
        for column, value in zip(matrix.columns, cells, strict=True):
            if value and (row != column or len(matrix.rows) == 1):
                label = column if of_columns else row
                best[label] = min(best.get(label, float("inf")), value if is_time else 1 / value)
    return best


def _of_matrix(who: Who, matrix: Matrix, is_time: bool, ratio: float, own: float, usual: float) -> Finding:
    unit = found[1] if (found := re.search(r"\(([\w/]{1,8})\)", matrix.title)) else ""
    shown = [f"{value if is_time else 1 / value:.4g} {unit}".strip() for value in (own, usual)]
    says = (
        f"has {shown[0]} at best with any other, the usual is {shown[1]}: {times_text(ratio)} as slow with all of them"
    )
    shown_as = {"line": matrix.title, "ratio": round(ratio, 2)}
    return _words(who.kind, True).found(shown_as, severity_of_ratio(1 / ratio), who=who, says=says)
