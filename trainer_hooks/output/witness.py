"""Tells of a process that trains and is not seen: by a mark in the rank directory and in the recording's folder, and by
one line when the process ends. Nothing here raises.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from laggard.kit.environment import ENV_RECORD_DIR, rank_dir
from laggard.kit.processes import own_identity
from laggard.rankfile.layout import own_directory
from laggard.rankfile.unseen import MAX_TEXT, STARTING, UNSEEN, UnseenMark, has_room, write_mark
from laggard.stacks.sampled import STALLED, SUFFIX, Sampled, collective_of, inner_place_text, place_text, write
from laggard.trainer_hooks.output.hang_folder import hang_base, shared_folder
from laggard.trainer_hooks.output.open_outputs import script_name
from laggard.trainer_hooks.output.recording_folder import Identity, folder_of_run, identify
from laggard.trainer_hooks.output.stack_output import stall_seconds
from laggard.trainer_hooks.record.event_log import PeriodicThread, unread_words
from laggard.trainer_hooks.stacks.sampler import Sampler


class Witness:
    """The witness of one process. starting() may be called once torch is there, then seen() or unseen(), and end() when
    the process ends."""

    def __init__(self) -> None:
        self._marks: list[str] = []
        self._why = ""
        self._told = False

    def starting(self) -> None:
        """The process has torch, and nothing of it has been recorded yet. Nobody takes it for nothing meanwhile: not
        for the want of a job, and so not for the job that ended last."""
        if not self._marks:
            self._mark(STARTING, "", folder=False)

    def stands(self, where: str) -> None:
        """The process has stood still since its start, there and for that long; empty: it goes on."""
        if self._marks and not self._why:
            self._remove()
            self._mark(STARTING, where, folder=False)

    def seen(self) -> None:
        """The process is a rank, with outputs of its own."""
        self._why = ""
        self._remove()

    def unseen(self, why: str) -> None:
        """The process trains and nothing of it is recorded, for this reason. Once is enough."""
        if not self._why:
            self._why = why
            self._remove()
            self._mark(UNSEEN, why, folder=True)

    def forget(self) -> None:
        """This is a forked child: the marks are its parent's."""
        self._marks, self._why, self._told = [], "", False

    def end(self, why: str, what: str, did: str = "trained") -> None:
        """The process ends. `why` nothing of it was recorded although it `did` so, and `what` to do; empty where
        nothing should have been."""
        if not why or self._told:
            return self._remove() if not why else None
        self._told = True
        self._why = ""  # the mark is written anew, so that it is told for as long as the rank file of one that ended
        self.unseen(why)
        with contextlib.suppress(Exception):
            rank = identify(os.environ).rank
            print(f"laggard: this process (rank {rank}) {did} without being seen: {why}; {what}", file=sys.stderr)

    def _mark(self, kind: str, why: str, folder: bool) -> None:
        try:
            identity = identify(os.environ)
            mark = UnseenMark(
                kind,
                _clipped(identity.job_id),
                identity.rank,
                identity.world_size,
                _clipped(identity.node),
                _clipped(script_name() or ""),
                _clipped(why),
                time.time(),
                own_identity(),
            )
        except Exception:
            return
        places: list[tuple[Callable[[], str], str]] = [(lambda: own_directory(rank_dir(os.environ)), str(os.getpid()))]
        recorded = os.environ.get(ENV_RECORD_DIR, "")
        if folder and recorded:
            places.append((lambda: folder_of_run(recorded, identity), f"rank-{identity.rank}-{os.getpid()}"))
        for find, name in places:
            with contextlib.suppress(Exception):  # a full or unwritable directory: the line at the end is left
                directory = find()
                os.makedirs(directory, exist_ok=True)
                if has_room(directory):
                    self._marks.append(write_mark(directory, mark, name))

    def _remove(self) -> None:
        for path in self._marks:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._marks = []


def _clipped(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:MAX_TEXT])


WITNESS: Final = Witness()
"""The witness of this process."""


# Tells where a process stands that has torch and comes to no step: it waits for a lock of torch's extensions, for a
# rendezvous, for a download. Its mark says so, and its stacks lie beside it, in the folder of a recording and in that
# of the standstill. All of them go where the start was only slow.
#
# Nothing here raises, and nothing runs once the process is a rank: its stacks have a watch of their own then.

_LOOKS: Final = 6  # while a standstill would last
_AGAIN_RATIO: Final = 2.0
_LAUNCHERS: Final = (
    "torch/distributed/elastic/",
    "torch/distributed/launcher/",
    "deepspeed/launcher/",
    "accelerate/commands/",
    "/subprocess.py",
    "multiprocessing/process.py",
    "multiprocessing/popen_",
)
"""Parts of the paths of code in which a process waits for those that it has started: that is its work."""


class StartWatch(PeriodicThread):
    """The watch of one process, from start() until stop()."""

    def __init__(self) -> None:
        super().__init__(self._look)
        self._stall_seconds = stall_seconds()
        self._place: object = None
        self._since = time.monotonic()
        self._due = self._stall_seconds
        self._paths: list[str] = []
        self._hang_folder: str | None = None

    def begin(self) -> None:
        """Starts it, unless stacks are switched off or no thread can be had."""
        if self._stall_seconds:
            with contextlib.suppress(RuntimeError):
                self.start()
                self.pause_around_forks()

    def end(self) -> None:
        """The process is a rank now, or ends. What is kept for a person stays where an exception ends it, such as that
        of a rendezvous for which it waited too long: Python keeps that as the last."""
        self.stop()
        self._take_back(all_of_it=getattr(sys, "last_value", None) is None)

    def _take_back(self, all_of_it: bool = True) -> None:
        """Removes what was written; else what the agent reads alone."""
        for path in self._paths if all_of_it else self._paths[:1]:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self._hang_folder is not None:
            with contextlib.suppress(OSError):  # another process's stacks lie in it
                os.rmdir(self._hang_folder)
        self._paths, self._hang_folder = [], None

    def _interval_seconds(self) -> float:
        return self._stall_seconds / _LOOKS

    def _act_last(self) -> None:
        """Nothing: the process goes on."""

    def _look(self) -> None:
        with contextlib.suppress(Exception):  # no stack is worth a fault in a process that starts
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            place = None
            while frame is not None:  # the innermost code that is no library's, by its line
                place = frame.f_code.co_filename, frame.f_lineno
                if "site-packages" not in place[0] and "/lib/python3" not in place[0]:
                    break
                frame = frame.f_back
            del frame
            now = time.monotonic()
            if place != self._place:
                self._place, self._since, self._due = place, now, self._stall_seconds
                if self._paths:  # what was told is over
                    self._take_back()
                    WITNESS.stands("")
            elif now - self._since >= self._due:
                self._due = _AGAIN_RATIO * (now - self._since)
                self._tell(now - self._since)

    def _tell(self, seconds: float) -> None:
        sampler = Sampler(lambda: threading.main_thread().ident or 0, unread_words, tuple)
        at = time.time()
        sampler.take(all_threads=True)
        threads = sampler.threads()
        if not threads:
            return
        frames = threads[0].stacks[0].frames
        if any(part in frame.file for frame in frames for part in _LAUNCHERS):
            return
        who = identify(os.environ)
        sampled = Sampled(who.job_id, who.rank, who.node, os.getpid(), STALLED, at, 0.0, threads, seconds)
        self._write(os.path.join(own_directory(rank_dir(os.environ)), f"{os.getpid()}{SUFFIX}"), sampled)
        place = place_text(frames) if collective_of(frames) else inner_place_text(frames)
        WITNESS.stands(f"for {seconds:.0f} s in {place}")
        self._keep(f"rank-{who.rank}-{os.getpid()}{SUFFIX}", sampled, who)

    def _keep(self, name: str, sampled: Sampled, who: Identity) -> None:
        """Writes what outlives the machine's memory, where the user wants that."""
        base = hang_base(os.environ, who.job_id)
        if os.environ.get(ENV_RECORD_DIR):
            recording = folder_of_run(os.environ[ENV_RECORD_DIR], who)
            os.makedirs(recording, exist_ok=True)
            self._write(os.path.join(recording, name), sampled)
            base = base or recording
        if base and self._hang_folder is None:
            self._hang_folder = shared_folder(base, sampled.at)[0]
        if self._hang_folder is not None:
            os.makedirs(self._hang_folder, mode=0o700, exist_ok=True)  # another process took it away while it was empty
            self._write(os.path.join(self._hang_folder, name), sampled)

    def _write(self, path: str, sampled: Sampled) -> None:
        write(path, sampled)
        if path not in self._paths:
            self._paths.append(path)
