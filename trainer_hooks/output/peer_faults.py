"""The lines at which a silent rank stands, which faulthandler has written for it: while C code holds Python's lock, the
rank itself can bring them nowhere. The file lies in the rank's recording, where one is made, and else beside its rank
file; the agent reads the second place alone, and who is handed a hang folder has neither."""

from __future__ import annotations

import contextlib
import os

from laggard.rankfile.layout import SUFFIX as RANK_SUFFIX
from laggard.stacks.fault_text import MAX_TEXT, faults_of
from laggard.stacks.fault_text import SUFFIX as FAULT_SUFFIX
from laggard.stacks.sampled import SampledError, read_small_file, write_private
from laggard.trainer_hooks.output.silent_peers import SilentPeer


def keep_faults(peer: SilentPeer, recorded: str | None, kept: str) -> None:
    """Copies the rank's dumps, where there are any, to `kept`, and beside its rank file. `recorded`: where its
    recording has its files; both are paths without their end. A copy that fails is left out: it must not cost what else
    is kept of the standstill."""
    beside = peer.rank_file.removesuffix(RANK_SUFFIX)
    for base in (recorded, beside):
        found = _dumps(base + FAULT_SUFFIX, peer) if base else None
        if found is None:
            continue
        text, changed = found
        for target in (kept, beside):
            if target != base:
                with contextlib.suppress(OSError):
                    write_private(target + FAULT_SUFFIX, text)
                    os.utime(target + FAULT_SUFFIX, (changed, changed))  # that of the dump
        return


def _dumps(path: str, peer: SilentPeer) -> tuple[bytes, float] | None:
    """The file's text and the Unix time of its last dump; None where it has none of this process."""
    with contextlib.suppress(OSError, SampledError):
        changed = os.stat(path, follow_symlinks=False).st_mtime
        text = read_small_file(path, MAX_TEXT, os.geteuid())
        dumped = faults_of(text, changed)
        if dumped is not None and (dumped.rank, dumped.pid) == (peer.seen.rank, peer.seen.pid):
            return text, changed
    return None
