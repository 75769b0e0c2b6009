"""What an answer is worth, given a run's truth. Pure: it knows no tool."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

RIGHT: Final = "right"
PARTLY: Final = "partly"
MISSED: Final = "missed"
WRONG: Final = "wrong"
WORTHS: Final = (RIGHT, PARTLY, MISSED, WRONG)


def judge(truth: Mapping[str, Any], named: Sequence[Mapping[str, Any]]) -> str:
    """One of WORTHS. `named`: each culprit's `kind` and `ranks`.

    Right: the victim is named, by a kind that it has, and nobody else is; where nobody is at fault, nobody is named.
    Partly: the victim alone is named, by another kind, or a link that it is an end of. Wrong: anybody else is named.
    Missed: nobody is, though somebody is at fault; where nobody can know, that is right."""
    victims = set(truth["victims"])
    if not named:
        return MISSED if victims and truth["required"] else RIGHT
    if not victims:
        return WRONG
    alone = [set(one["ranks"]) == victims for one in named]
    if all(alone):
        return RIGHT if any(one["kind"] in truth["kinds"] for one in named) else PARTLY
    if all(is_end(one, victims) for one in named):
        return RIGHT if "slow_link" in truth["kinds"] else PARTLY
    return WRONG


def is_end(one: Mapping[str, Any], victims: set[int]) -> bool:
    """Whether it is a link between a victim and one other rank."""
    return one["kind"] == "slow_link" and len(one["ranks"]) == 2 and bool(victims & set(one["ranks"]))
