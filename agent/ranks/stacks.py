"""The newest stacks of ranks, from the files beside their rank files: read by this process where it may, else by
laggard's reader. Nothing in these files is trusted."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Final

from laggard.agent.ranks.row import RankSnapshot
from laggard.agent.ranks.stack_files import (
    NO_FOLDER,
    Content,
    KernelReader,
    StackFile,
    changed_at,
    is_stack_file,
    read_stack_file,
)
from laggard.probes.host.reader import NoReader, ask
from laggard.rankfile.layout import SUFFIX as RANK_SUFFIX
from laggard.stacks.fault_text import SUFFIX as FAULT_SUFFIX
from laggard.stacks.fault_text import faults_of
from laggard.stacks.kernel_side import text_of_side
from laggard.stacks.sampled import SUFFIX as STACKS_SUFFIX
from laggard.stacks.sampled import Sampled, SampledError, decode, text_of
from laggard.wire import encode
from laggard.wire.ranks import RankRow
from laggard.wire.stacks import MissingStacks, RankStacks, rank_stacks

MAX_ANSWER_BYTES: Final = 8 << 20
"""The most bytes of JSON of all ranks of one answer; each rank's stacks are shortened to its share."""

_REFUSED: Final = (errno.EACCES, errno.EPERM)


class NoStacks(Exception):
    """There are none. The text says why, for the end of a sentence."""


class StackReader:
    """Reads the stacks of one answer's ranks: a reader that does not answer is asked once, not for each of them."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._no_reader = ""
        self._kernel = KernelReader()

    def documents(self, snapshots: Iterable[RankSnapshot]) -> tuple[tuple[RankStacks, ...], tuple[MissingStacks, ...]]:
        """Those of the ranks that have some, of MAX_ANSWER_BYTES together, and why the others have none."""
        wanted = list(snapshots)
        found: list[RankStacks] = []
        missing: list[MissingStacks] = []
        left = MAX_ANSWER_BYTES
        for snapshot in wanted:
            try:
                stacks = rank_stacks(self.newest(snapshot), MAX_ANSWER_BYTES // len(wanted))
                left -= len(encode(stacks))
                if left < 0:
                    raise NoStacks("the answer would be too long: ask for fewer ranks")
                found.append(stacks)
            except NoStacks as error:
                missing.append(MissingStacks(snapshot.row.rank, str(error), self.kernel_text(snapshot.row)))
        return tuple(found), tuple(missing)

    def newest(self, snapshot: RankSnapshot) -> Sampled:
        """The newest stacks of the rank; where it has stood still since, with its place in the kernel. Raises
        NoStacks."""
        found = self._newest(snapshot)
        if found.kernel or not found.is_still or found.at < snapshot.row.last_progress_timestamp_seconds:
            return found
        return found._replace(kernel=self.kernel_text(snapshot.row))

    def kernel_text(self, row: RankRow) -> str:
        """The place in the kernel of the main thread of a rank that runs, in words; empty: it is not known."""
        side = self._kernel.side(row.owner, row.pid) if row.state == "running" else None
        return "" if side is None else text_of_side(side)

    def _newest(self, snapshot: RankSnapshot) -> Sampled:
        """Raises NoStacks."""
        reason = ""
        for file, suffix in self._files(snapshot):
            try:
                content = self._content(file, snapshot.row.owner)
                sampled = decode(content.text) if suffix == STACKS_SUFFIX else faults_of(content.text, content.changed)
            except OSError as error:
                reason = reason or f"its stacks cannot be read: {error.strerror}"
                continue
            except SampledError as error:
                reason = reason or str(error)
                continue
            if sampled is not None and _is_of(sampled, snapshot):
                return sampled
            reason = reason or ("another rank's file lies in the place of its stacks" if sampled else "")
        raise NoStacks(reason or _why_none(snapshot))

    def _files(self, snapshot: RankSnapshot) -> list[tuple[StackFile, str]]:
        """The files that are there, the newest first."""
        folder, name = os.path.split(os.path.relpath(snapshot.path, self._directory))
        found = []
        for suffix in (STACKS_SUFFIX, FAULT_SUFFIX):
            file = StackFile(folder or NO_FOLDER, name.removesuffix(RANK_SUFFIX) + suffix)
            changed = changed_at(self._directory, file) if is_stack_file(file) else None
            if changed is not None:
                found.append((changed, file, suffix))
        return [(file, suffix) for _, file, suffix in sorted(found, reverse=True)]

    def _content(self, file: StackFile, owner: int) -> Content:
        try:
            return read_stack_file(self._directory, file, owner)
        except OSError as error:
            if error.errno not in _REFUSED or os.geteuid() == 0:
                raise
            return self._ask_reader(file, owner, error)

    def _ask_reader(self, file: StackFile, owner: int, error: OSError) -> Content:
        """Raises OSError with both reasons."""
        if self._no_reader:
            raise OSError(error.errno, self._no_reader)
        try:
            changed, _, text = ask(f"rank_stacks {owner} {file.folder} {file.name}").partition(b"\n")
            return Content(float(changed), text)
        except NoReader as reason:
            text_of_both = f"{error.strerror}; {reason.strerror}"
            if reason.errno != errno.EACCES:  # it says no itself: of the next file it may say yes
                self._no_reader = text_of_both
            raise OSError(error.errno, text_of_both) from None
        except ValueError:
            raise OSError(errno.EPROTO, "laggard's reader answers something else") from None


def _is_of(sampled: Sampled, snapshot: RankSnapshot) -> bool:
    """Whether the rank's process wrote it: by its own name and number, which in a container is that of the file's
    name."""
    pid = os.path.basename(snapshot.path).partition("-")[0]
    row = snapshot.row
    return (sampled.job_id, sampled.rank, str(sampled.pid)) == (text_of(row.job_id), row.rank, pid)


def _why_none(snapshot: RankSnapshot) -> str:
    row = snapshot.row
    if row.state != "running":
        return "it has ended, and left none"
    if row.stopped:
        return "its process is stopped, by a signal or a debugger"
    return "it has taken none: nobody has asked it, or LAGGARD_STACKS is 0 there"
