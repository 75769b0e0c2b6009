"""What an answer of laggard is worth in a case: right, wrong or unsure. Pure functions on `laggard.location/1`."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

RIGHT: Final = "right"
WRONG: Final = "wrong"
UNSURE: Final = "unsure"
SILENT: Final = "silent"
NOT_TRIED: Final = "not tried"

RANK_ZERO: Final = ("checkpoint", "logging", "evaluation")
"""Innocents in which rank 0 has work of its own."""
_MISUSED: Final = ("mismatch", "not_arrived", "launches_differ", "deadlock")
"""Notes that tell of a collective that ranks did not make alike."""
_SHORT: Final = ("too_few_steps", "no_steps", "brief", "too_few_ranks")
"""Notes of an answer that is open because a job was short, or has one rank."""

Location = Mapping[str, Any]


class Expected(NamedTuple):
    """How a culprit may be called. Without `phases` each phase will do; `or_phase` makes up for another kind."""

    kinds: tuple[str, ...]
    phases: tuple[str, ...] = ()
    or_phase: tuple[str, ...] = ()


EXPECTED: Final = {
    "forward": Expected(("slow_compute", "slow_host"), ("forward",)),
    "input": Expected(("slow_input",), or_phase=("input", "between_steps")),
    "sigstop": Expected(("hung",)),
    "sigkill": Expected(("dead",)),
    "exception": Expected(("dead",)),
    "exit": Expected(("dead",)),
    "collective": Expected(("dead", "hung")),
}


class Judged(NamedTuple):
    """`why` is empty where it is right."""

    worth: str
    why: str = ""


def judge(case: str, location: Location | None, victim: int, uneven: bool = True) -> Judged:
    """Judges one answer. None, an error or a verdict on no rank: laggard said nothing of the job. `victim` is whom the
    case befalls, `uneven` whether it alone has more work in the case `uneven`."""
    if not location or "error" in location:
        error = str((location or {}).get("error", "no answer"))
        return Judged(SILENT, error.partition(" at /")[0])  # the place is a folder of the bench
    if not location["ranks_seen"]:
        return Judged(SILENT, "no rank was seen")
    if case in EXPECTED:
        return _of_fault(case, location, victim)
    return _of_innocent(location, _has_more_work(case, victim, uneven))


def judge_unseen(location: Location | None) -> Judged:
    """Judges an answer about processes that no hook can see: right is that they trained without being seen, and why."""
    notes = (location or {}).get("notes", ())
    said = any(note["kind"] == "unseen" and ": " in note["text"] for note in notes)
    if not location or not said:
        return Judged(SILENT, "it does not say that processes are not seen")
    named = location["culprits"] or location["verdict"] != "unknown"
    return Judged(WRONG, f"says {location['verdict']}") if named else Judged(RIGHT)


def _has_more_work(case: str, victim: int, uneven: bool) -> int | None:
    """The rank that the answer may say has more work than the others."""
    if case in RANK_ZERO:
        return 0
    return victim if case == "uneven" and uneven else None


def _of_fault(case: str, location: Location, victim: int) -> Judged:
    culprits = location["culprits"]
    accused = [culprit for culprit in culprits if list(culprit["ranks"]) != [victim] or culprit["kind"] == "slow_link"]
    if accused:
        return Judged(WRONG, f"accuses {_names(accused)}")
    if case == "collective" and _tells_of_collective(location, victim):
        return Judged(RIGHT)
    if case == "sigstop" and location["ranks_seen"] == 1 and any(it["kind"] == "suspended" for it in location["notes"]):
        return Judged(RIGHT)
    if not culprits:
        return Judged(UNSURE if location["verdict"] == "unknown" else WRONG, "names nobody")
    return _of_first(culprits[0], EXPECTED[case])


def _of_first(culprit: Mapping[str, Any], expected: Expected) -> Judged:
    kind, phase = culprit["kind"], culprit["phase"]
    if expected.or_phase and phase in expected.or_phase:
        return Judged(RIGHT)
    if kind not in expected.kinds:
        return Judged(WRONG, f"the right rank, as {kind}{f' in {phase}' if phase else ''}")
    if expected.phases and phase not in expected.phases:
        return Judged(WRONG, f"the right rank, in {phase}")
    return Judged(RIGHT)


def _tells_of_collective(location: Location, victim: int) -> bool:
    """Whether it says that the calls of ranks, of which the victim is one, do not match. Of two ranks each may be the
    one that calls too much or too little."""
    named = [list(culprit["ranks"]) for culprit in location["culprits"]]
    noted = [note.get("ranks", ()) for note in location["notes"] if note["kind"] in _MISUSED]
    alike = location["ranks_seen"] == 2 and location["verdict"] == "fail" and any(noted)
    return [victim] in named or any(victim in ranks for ranks in noted) or alike


def _of_innocent(location: Location, worker: int | None) -> Judged:
    culprits = location["culprits"]
    accused = [it for it in culprits if it["kind"] != "uneven_work" or list(it["ranks"]) != [worker]]
    if accused:
        return Judged(WRONG, f"accuses {_names(accused)}")
    if location["verdict"] == "unknown" and not any(note["kind"] in _SHORT for note in location["notes"]):
        return Judged(UNSURE, "cannot tell")
    if location["verdict"] == "fail" and not culprits:
        return Judged(WRONG, "says that something is wrong")
    return Judged(RIGHT)


def _names(culprits: list[Mapping[str, Any]]) -> str:
    return ", ".join(
        f"rank {'-'.join(str(rank) for rank in it['ranks'])} ({it['kind']}{', ' + it['phase'] if it['phase'] else ''})"
        for it in culprits
    )
