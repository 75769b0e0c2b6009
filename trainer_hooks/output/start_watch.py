"""Tells where a process stands that has torch and comes to no step: it waits for a lock of torch's extensions, for a
rendezvous, for a download. Its mark says so, and its stacks lie beside it, in the folder of a recording and in that of
the standstill. All of them go where the start was only slow.

Nothing here raises, and nothing runs once the process is a rank: its stacks have a watch of their own then.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Final

from laggard.environment import ENV_HANG_DIR, ENV_RECORD_DIR, rank_dir
from laggard.rankfile.directory import own_directory
from laggard.stacks.frames import collective_of, inner_place_text, place_text
from laggard.stacks.sampled import STALLED, SUFFIX, Sampled, write
from laggard.trainer_hooks.output.hang_folder import shared_folder
from laggard.trainer_hooks.output.identity import Identity, identify
from laggard.trainer_hooks.output.recording_folder import folder_of_run
from laggard.trainer_hooks.output.stack_output import stall_seconds
from laggard.trainer_hooks.output.witness import WITNESS
from laggard.trainer_hooks.record.hot_path_state import unread_words
from laggard.trainer_hooks.record.periodic_thread import PeriodicThread
from laggard.trainer_hooks.stacks.sampler import Sampler

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
        base = os.environ.get(ENV_HANG_DIR)
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
