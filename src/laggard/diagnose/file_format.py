"""The interface of a file format in `laggard diagnose`: it says how files are recognised and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.job.reader import JobEvidence
from laggard.model import Finding

ACCUSED: Final = "accused_ranks"
"""The evidence of findings whose source names ranks of the job: a recording, RAS' report."""


class KnownHardware(NamedTuple):
    """The facts that all files together show of the machine. None: no file shows it."""

    gpus: int | None = None
    rdma: bool | None = None


class FileJudgement(NamedTuple):
    findings: tuple[Finding, ...] = ()
    facts: dict[str, Any] = {}
    unknown: str = ""
    """The parts that could not be judged, and why; empty: everything was judged."""
    job: JobEvidence | None = None
    """What the output of a job shows, for those who join it with other files."""
    of_job: tuple[Finding, ...] = ()
    """The findings that are made of that alone."""


class FileFormat(NamedTuple):
    name: str
    recognise: Callable[[FileContent], bool]
    """Returns whether a file is of this format."""
    judge: Callable[[FileContent, KnownHardware], FileJudgement]
    read_hardware: Callable[[FileContent], KnownHardware] = lambda content: KnownHardware()
    judge_together: Callable[[Iterable[FileContent], KnownHardware], FileJudgement] | None = None
    """Judges all files of this format at once, where they are parts of one whole."""
    whole: str = ""
    """Files of formats with the same word are judged together; empty: those of this format alone."""
    end_matters: bool = False
    """True: a file is judged by its end too, as logs are; False: by its beginning alone."""
    holds_others: bool = False
    """True: a file of it may hold prompts of terminals and heads of machines, and is a whole all the same."""
    shares: bool = False
    """True: a text may hold other things beside this, as a paste of several tools does, and is judged as each."""
    fallback: bool = False
    """True: a text is of this format only where it is of no other one: its lines are everyday ones."""
