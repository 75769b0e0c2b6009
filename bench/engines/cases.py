"""The thirteen cases that each engine is tried in: seven faults of one rank, and six innocents. Pure."""

from typing import Final, NamedTuple

LIMIT_SECONDS: Final = 180.0
"""Of a job."""


class Case(NamedTuple):
    """`title` heads its column, `what` tells what is done. `stands`: for so many seconds after the fault
    the job may stand still, then it is ended."""

    name: str
    title: str
    what: str
    fault: bool
    stands: float = LIMIT_SECONDS


CASES: Final = (
    Case("forward", "slow forward", "its forward pass takes 40 ms more", True),
    Case("input", "slow input", "its data set takes 40 ms more a step", True),
    Case("sigstop", "SIGSTOP", "it is stopped in a forward pass", True, stands=14.0),
    Case("sigkill", "SIGKILL", "it is killed in a forward pass", True, stands=20.0),
    Case("exception", "exception", "it raises an error in a forward pass", True, stands=20.0),
    Case("collective", "odd collective", "it makes an all_reduce too many, or leaves one out", True, stands=8.0),
    Case("exit", "early exit", "it leaves its training loop, and ends with status 0", True, stands=20.0),
    Case("checkpoint", "checkpoint", "rank 0 saves a checkpoint at each 20th step, which takes 150 ms", False),
    Case("logging", "logging", "rank 0 logs each step, which takes 12 ms", False),
    Case("evaluation", "evaluation", "rank 0 evaluates the model at each 20th step", False),
    Case("turns", "longer by turns", "one rank after another has a batch that is three times as long", False),
    Case("warm_up", "warm-up", "the first five steps of one rank take 0.2 s more", False),
    Case("uneven", "uneven work", "one rank's batches, or layers, are always three times as long", False),
)

BY_NAME: Final = {case.name: case for case in CASES}
REFERENCE: Final = "logging"
"""The case whose results are compared with those of a run without the hooks: nothing in it changes what is computed."""
