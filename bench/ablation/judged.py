"""What an answer is worth by a case's truth. Pure."""

from typing import Final, NamedTuple

from golden.case import Truth

from laggard.model import Location, Verdict

NOBODY: Final = "uneven_work"
"""The kind of a culprit that says that no machine is at fault."""


class Judged(NamedTuple):
    """Whether an answer is right, and how many ranks it accuses that are at fault of nothing."""

    right: bool
    innocents: int


def judged(truth: Truth, location: Location) -> Judged:
    """Right is who names each culprit that the truth requires, by one of its kinds, and nobody else but those whom it
    tolerates, with one of its verdicts: of a healthy job `ok`, as a rule."""
    accused = [each for each in location.culprits if each.kind != NOBODY]
    allowed = [*truth.culprits, *truth.tolerated]
    at_fault = {rank for each in allowed for rank in each.within}
    false = [each for each in accused if not any(set(each.ranks) <= set(one.within) for one in allowed)]
    found = all(
        any(each.kind in one.kinds and each.ranks and set(each.ranks) <= set(one.within) for each in accused)
        for one in truth.culprits
        if one.required
    )
    verdict = location.verdict
    if location.culprits and not accused and verdict is Verdict.FAIL:
        verdict = Verdict.OK
    innocents = {rank for each in false for rank in each.ranks} - at_fault
    return Judged(found and not false and verdict.value in truth.verdicts, len(innocents))
