"""A prolog's question to the agent, the path of a GET, and the answer, a line (docs/contracts.md)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from laggard.probes.gate_question import PROFILE, SCHEMA
from laggard.probes.runner.job_gpus import parse_gpus

MAX_WAIT_SECONDS: Final = 60.0

_PATH: Final = re.compile(
    rf"/{SCHEMA}/{PROFILE}/"
    r"(?P<fingerprint>[0-9a-f]{32})/(?P<boot>[0-9a-f-]{36})/(?P<newer>[0-9]{1,12})/"
    r"(?P<gpus>-|[0-9,-]{1,128})/(?P<wait>[0-9]{1,6})"
)


class WrongQuestion(ValueError):
    """It is no question of this schema."""


class Question(NamedTuple):
    """`fingerprint`: what the gate would judge (probes/gate_probes.py). `boot`: the kernel's boot id, as the prolog
    sees it. `newer`: the report must be of a round that began a second after this uptime (seconds) or later; 0: any.
    `gpus`: the device minors of the job's GPUs; None: all. `wait_seconds`: how long the answer may take."""

    fingerprint: str
    boot: str
    newer: int
    gpus: frozenset[int] | None
    wait_seconds: float


class Answer(NamedTuple):
    """`passes`: the agent's report, `age_seconds` old, stands for a check. Else `reason`, one word, says why the gate
    has to look itself, and `cure` what the agent could run so that its answer may be another: ROUND, VARIANTS, or
    nothing."""

    passes: bool
    age_seconds: int = 0
    reason: str = ""
    cure: str = ""

    @property
    def line(self) -> str:
        return f"PASS {self.age_seconds}" if self.passes else f"CHECK {self.reason}"


def parse_question(path: str) -> Question:
    """Raises WrongQuestion."""
    found = _PATH.fullmatch(path)
    gpus = None if not found or found["gpus"] == "-" else parse_gpus(found["gpus"])
    if not found or (gpus is None and found["gpus"] != "-"):
        raise WrongQuestion
    wait = min(MAX_WAIT_SECONDS, int(found["wait"]) / 1000)
    return Question(found["fingerprint"], found["boot"], int(found["newer"]), gpus, wait)
