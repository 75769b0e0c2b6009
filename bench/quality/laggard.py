"""laggard, by the functions behind `laggard locate --trace`: a process for each answer would take most of the time."""

from pathlib import Path

from laggard.locate import verdict
from laggard.recording.reader import read_recording
from quality.answer import Named


def locate(trace: Path) -> list[Named]:
    return [
        Named(
            culprit.kind,
            culprit.ranks,
            tuple(end["node"] for end in culprit.link) if culprit.link else (culprit.node or "",),
            culprit.phase,
            culprit.recoverable_ratio,
        )
        for culprit in verdict.locate(read_recording([trace]).timings).culprits
    ]
