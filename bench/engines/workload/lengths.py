"""How much work a rank has in a step: of most cases the same, and of two of them not. Pure but for the plan."""

from workload import plan

LONGER = 3
_TURN = 4


def times_as_long(step: int, of_all: bool = False) -> int:
    """How many times as long as usual this rank's batch is at `step`. `of_all`: the ranks have one batch together, or
    are the stages of one pipeline, so that all of them have longer ones in the same steps."""
    if plan.CASE == "turns":
        return LONGER if (step + (0 if of_all else plan.rank())) % _TURN == 0 else 1
    if plan.CASE == "uneven":
        return LONGER if of_all or plan.is_victim() else 1
    return 1
