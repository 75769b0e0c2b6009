"""Opens the watch of a rank's stacks (stacks/watch.py), which writes beside the rank file and into the recording."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from laggard.kit.environment import ENV_STACKS, rank_dir
from laggard.rankfile.layout import SUFFIX as RANK_SUFFIX
from laggard.rankfile.layout import own_directory
from laggard.stacks.ask import ask_folders, trusted_users
from laggard.stacks.fault_text import SUFFIX as FAULT_SUFFIX
from laggard.stacks.fault_text import header
from laggard.stacks.sampled import STALLED, SUFFIX, Sampled, encode
from laggard.trainer_hooks.output.hang_folder import HangFolder
from laggard.trainer_hooks.output.recording import RecordingSink
from laggard.trainer_hooks.output.recording_folder import Identity, rank_file_name
from laggard.trainer_hooks.record.ending import on_error
from laggard.trainer_hooks.record.events import standing
from laggard.trainer_hooks.record.recorder import Recorder, clock
from laggard.trainer_hooks.stacks.fault_file import FaultFile
from laggard.trainer_hooks.stacks.watch import STALL_SECONDS, About, StackWatch

log = logging.getLogger("laggard")

_RECORDING_SUFFIX: Final = ".jsonl"
_MIN_STALL, _MAX_STALL = 3.0, 86_400.0  # seconds


def open_stacks(
    recorder: Recorder,
    identity: Identity,
    rank_file: str | None,
    sink: RecordingSink | None,
    training_thread: Callable[[], int],
) -> StackWatch | None:
    """The watch; None where LAGGARD_STACKS is 0, or where there is neither rank file nor recording. Dumps of
    faulthandler go into the recording's folder, where there is one, since a rank file is gone with the machine's
    memory. Never raises."""
    quiet = stall_seconds()
    if not quiet or (rank_file is None and sink is None):
        return None
    try:
        directory = rank_dir(os.environ)
        own = own_directory(directory) if rank_file is not None else directory
        beside = rank_file.removesuffix(RANK_SUFFIX) if rank_file is not None else None
        recorded = _recorded_base(identity.attempt, sink, identity.rank) if sink is not None else None
        path = (beside or recorded or "") + SUFFIX
        about = About(
            identity.job_id,
            identity.rank,
            identity.node,
            path,
            ask_folders(directory, own),
            trusted_users(directory, os.geteuid()),
        )
        kept = sink.folder if sink is not None else None
        of_rank = partial(_recorded_base, identity.attempt, sink) if sink is not None else None
        hangs = HangFolder(kept, identity.rank, partial(_events, recorder), rank_file, of_rank)
        told = partial(_tell, sink, hangs)
        head = header(identity.job_id, identity.rank, identity.node, os.getpid(), training_thread())
        faults = _fault_file((recorded or beside or "") + FAULT_SUFFIX, head, quiet)
        watch = StackWatch(
            about,
            training_thread,
            lambda: recorder.live.words,
            recorder.lanes,
            faults,
            quiet,
            told,
            always=sink is not None,
        )
    except Exception as error:
        log.warning("laggard: no stacks of this rank: %s", getattr(error, "strerror", None) or error)
        return None
    on_error(watch.failed)
    return watch


def stall_seconds() -> float:
    """The time without progress that counts as a standstill, by LAGGARD_STACKS; 0: no stacks are taken."""
    text = os.environ.get(ENV_STACKS, "")
    if not text:
        return STALL_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if seconds == 0 or _MIN_STALL <= seconds <= _MAX_STALL:
        return seconds
    log.warning("laggard: %s=%r is no number of seconds from %g to %g, nor 0", ENV_STACKS, text, _MIN_STALL, _MAX_STALL)
    return STALL_SECONDS


def _recorded_base(attempt: int, sink: RecordingSink, rank: int) -> str:
    name = rank_file_name(rank, attempt).removesuffix(_RECORDING_SUFFIX)
    return os.path.join(sink.folder, name)


def _fault_file(path: str, head: bytes, stall_seconds: float) -> FaultFile | None:
    try:
        faults = FaultFile(path, head, stall_seconds)
        faults.arm()
    except (OSError, RuntimeError, ValueError, AttributeError) as error:  # a stand-in for faulthandler
        log.warning("laggard: no stack where C code holds the GIL: %s", getattr(error, "strerror", None) or error)
        return None
    return faults


def _tell(sink: RecordingSink | None, hangs: HangFolder, sampled: Sampled) -> None:
    if sink is not None:
        sink.write_at_once({"kind": "stacks", "stacks": json.loads(encode(sampled))})
    if sampled.why == STALLED:
        hangs.keep(sampled)


def _events(recorder: Recorder) -> dict[str, Any]:
    """Where the rank stands: its phase, the collective in flight, and how many of each lane were entered and are
    done."""
    lanes = recorder.lanes()
    place = standing(recorder.live.words, lanes, clock())
    (place["in_flight"] or {}).pop("peer", None)  # the lanes have it
    counts = [
        {"op": lane.op, "group": lane.group, "peer": lane.peer, "entered": entered, "done": done}
        for lane, (entered, done) in zip(lanes, recorder.progress(), strict=False)
    ]
    return {"laggard_events": 1, "step": recorder.step, **place, "lanes": counts}
