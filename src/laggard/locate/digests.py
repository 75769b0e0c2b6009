"""The digests of a rank's parameters, as its facts and its recording tell of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from laggard.rankfile.fact_names import DIGEST_SKIPPED, DIGEST_SKIPPED_REASONS, DIGESTS

MAX_KEPT: Final = 4096
"""The most digests of one rank that are compared, the newest, beside its first."""

_MAX_STEP: Final = 1 << 31


class RankDigests(NamedTuple):
    """The digests of one rank, by step, ascending; the first is the first that it computed. `every`: a digest is
    computed after each step whose number this divides. `skipped`: why none is, a key of DIGEST_SKIPPED_REASONS."""

    every: int
    by_step: Mapping[int, int]
    skipped: str = ""


def digests(facts: Mapping[str, Any]) -> RankDigests | None:
    """The digests that a rank's facts tell of; None where they tell of none, or what cannot be."""
    reason = facts.get(DIGEST_SKIPPED)
    if isinstance(reason, str) and reason in DIGEST_SKIPPED_REASONS:
        return RankDigests(1, {}, reason)
    told = facts.get(DIGESTS)
    if not isinstance(told, dict):
        return None
    kept = told.get("last")
    pairs = [told.get("first"), *(kept[:MAX_KEPT] if isinstance(kept, (list, tuple)) else ())]
    return collected(told.get("every"), filter(None, map(_pair, pairs)))


def collected(every: object, pairs: Iterable[tuple[int, int]]) -> RankDigests | None:
    """The digests of (step, value), in any order: the first and the newest of them; None where there is none."""
    found = dict(sorted(pairs))
    steps = [*found][:1] + [*found][1:][-MAX_KEPT:]
    usable = isinstance(every, int) and 0 < every < _MAX_STEP
    return RankDigests(int(every) if usable else 1, {step: found[step] for step in steps}) if steps else None  # type: ignore[call-overload]


def digest_value(text: object) -> int | None:
    """The number that 16 hexadecimal digits are; None of anything else."""
    if not isinstance(text, str) or len(text) != 16 or not text.isascii() or not text.isalnum():
        return None
    try:
        return int(text, 16)
    except ValueError:
        return None


def _pair(value: object) -> tuple[int, int] | None:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return None
    step, number = value[0], digest_value(value[1])
    is_step = isinstance(step, int) and not isinstance(step, bool) and 0 <= step < _MAX_STEP
    return (step, number) if is_step and number is not None else None
