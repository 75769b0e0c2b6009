"""Tells of a process that trains and is not seen: by a mark in the rank directory and in the recording's folder, and by
one line when the process ends. Nothing here raises.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Final

from laggard.environment import ENV_RECORD_DIR, rank_dir
from laggard.processes.identity import own_identity
from laggard.rankfile.directory import own_directory
from laggard.rankfile.unseen import MAX_TEXT, STARTING, UNSEEN, UnseenMark, has_room, write_mark
from laggard.trainer_hooks.output.identity import identify
from laggard.trainer_hooks.output.open_outputs import script_name
from laggard.trainer_hooks.output.recording_folder import folder_of_run


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
        with contextlib.suppress(Exception):  # a full or unwritable directory: the line at the end is left
            directory = own_directory(rank_dir(os.environ))
            if has_room(directory):
                self._marks.append(write_mark(directory, mark, str(os.getpid())))
        if folder and os.environ.get(ENV_RECORD_DIR):
            with contextlib.suppress(Exception):
                directory = folder_of_run(os.environ[ENV_RECORD_DIR], identity)
                os.makedirs(directory, exist_ok=True)
                if has_room(directory):
                    self._marks.append(write_mark(directory, mark, f"rank-{identity.rank}-{os.getpid()}"))

    def _remove(self) -> None:
        for path in self._marks:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._marks = []


def _clipped(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:MAX_TEXT])


WITNESS: Final = Witness()
"""The witness of this process."""
