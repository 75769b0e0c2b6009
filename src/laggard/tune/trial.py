"""One trial's command: the words of a user's template, run as a process group with a deadline, and the reason why it
failed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

from laggard.kit.errors import UsageError
from laggard.kit.words import printable_line
from laggard.tune.plan import Outcome, Status

_MAX_OUTPUT_BYTES: Final = 4 << 20
_GRACE_SECONDS: Final = 5.0
"""The time between asking a group to end and killing it: a launcher takes its remote ranks along."""
_PIECE: Final = 64 << 10


class Ended(NamedTuple):
    """The end of a command. `status` is negative for a signal, None where it was killed at its deadline."""

    status: int | None
    output: str
    """Standard output, at most 4 MiB: the first and the last 2 MiB."""
    errors: str
    seconds: float


class _Output(threading.Thread):
    """Reads a pipe to its end, and keeps its beginning and its end."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._pipe, self._head, self._tail = pipe, bytearray(), bytearray()
        self.start()

    def run(self) -> None:
        half = _MAX_OUTPUT_BYTES // 2
        while piece := os.read(self._pipe.fileno(), _PIECE):
            room = max(0, half - len(self._head))
            self._head += piece[:room]
            self._tail += piece[room:]
            del self._tail[:-half]

    def text(self) -> str:
        """Returns what there is. A process that left its group may hold the pipe open: it is not waited for."""
        self.join(_GRACE_SECONDS)
        return (bytes(self._head) + bytes(self._tail)).decode("utf-8", "replace")


def run_command(words: Sequence[str], environ: Mapping[str, str], folder: Path, deadline_seconds: float) -> Ended:
    """Runs the command in its own process group and in `folder`. Raises OSError where it cannot be started. Whatever
    ends this call ends the group, an interrupt as well."""
    began = time.monotonic()
    with subprocess.Popen(
        words,
        env=dict(environ),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout and process.stderr
        outputs = [_Output(process.stdout), _Output(process.stderr)]
        status: int | None = None
        try:
            status = process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end_group(process)
        output, errors = (each.text() for each in outputs)
    return Ended(status, output, errors, time.monotonic() - began)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends all of the group, also what its leader left behind: it would slow the next trial down."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        _wait_for_group(process, _GRACE_SECONDS)
    process.wait()


def _wait_for_group(process: subprocess.Popen[bytes], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        process.poll()  # reaps the leader: a zombie keeps its group alive
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)


_NAME: Final = re.compile(r"\{([a-z_]+)\}")


def parse_command(text: str, known: Sequence[str], required: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the words of a template. Raises UsageError for a name that is not known, or a required one left out."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--command cannot be split into words: {error}") from None
    if not words:
        raise UsageError("--command is empty: give the command that a trial runs")
    names = {name for word in words for name in _NAME.findall(word)}
    wrong = sorted(names - set(known))
    if wrong:
        raise UsageError(f"--command has {{{wrong[0]}}}: the names are {', '.join(f'{{{each}}}' for each in known)}")
    missing = [name for name in required if name not in names]
    if missing:
        raise UsageError(f"--command lacks {{{missing[0]}}}: without it every trial would run the same")
    return words


def fill(words: Sequence[str], values: Mapping[str, str | Sequence[str]]) -> list[str]:
    """Returns the words with names replaced. A word that is one name becomes as many words as its value has."""
    found: list[str] = []
    for word in words:
        whole = _NAME.fullmatch(word)
        value = values.get(whole[1]) if whole else None
        if value is not None and not isinstance(value, str):
            found += value
        else:
            found.append(_NAME.sub(lambda match: _text(values, match), word))
    return found


def _text(values: Mapping[str, str | Sequence[str]], match: re.Match[str]) -> str:
    value = values.get(match[1])
    if value is None:
        return match[0]
    return value if isinstance(value, str) else " ".join(value)


_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|Cannot allocate memory"
    r"|MemoryError|oom[-_ ]kill|DefaultCPUAllocator: can't allocate",
    re.IGNORECASE,
)
"""The words with which torch, CUDA, NCCL, the kernel and SLURM say it."""
_KILLED: Final = -9
_MAX_DETAIL_CHARACTERS: Final = 160


def failure_of(ended: Ended) -> Outcome | None:
    """Returns None where the command ended well."""
    if ended.status == 0:
        return None
    text = f"{ended.output}\n{ended.errors}"
    memory = _OUT_OF_MEMORY.search(text)
    if memory:
        line = next(line for line in text.splitlines() if memory[0] in line)
        return Outcome(Status.OUT_OF_MEMORY, None, printable_line(line, _MAX_DETAIL_CHARACTERS), ended.seconds)
    if ended.status is None:
        return Outcome(Status.HUNG, None, f"killed after {ended.seconds:.0f} s", ended.seconds)
    return Outcome(Status.CRASHED, None, f"{_how(ended.status)}: {_last_line(ended)}", ended.seconds)


def _how(status: int) -> str:
    if status == _KILLED:
        return "killed (signal 9: by the kernel for its memory, or by a person)"
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _last_line(ended: Ended) -> str:
    lines = [line for text in (ended.errors, ended.output) for line in text.splitlines() if line.strip()]
    own = [line for line in ended.errors.splitlines() if line.strip()]
    return printable_line((own or lines or ["it printed nothing"])[-1], _MAX_DETAIL_CHARACTERS)
