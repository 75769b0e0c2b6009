"""Findings that root accepts on this node until a moment: they stay in the report, and fail nothing meanwhile.

One small file says which (`laggard healthcheck --accept`). It counts if it and its folder are root's and nobody else
may write them. A file that cannot be used accepts nothing: findings then count as ever.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Final

import msgspec
from msgspec import Meta, structs

from laggard.kit.words import clipped, printable_line, utc_text
from laggard.model import MAX_DEVICE, MAX_SUMMARY, Finding, Severity
from laggard.wire import WireError, decode, encode

EVIDENCE: Final = "accepted"
"""The name in a finding's evidence under which stands that it is accepted: `until`, `reason`, `words`, and the
`severity` that the finding had."""

SCHEMA: Final = "laggard.accepted/1"
MAX_REASON: Final = 200
MAX_BYTES: Final = 64 << 10
_WORDS: Final = " (accepted until "


class Accepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`code` is accepted until `until` (Unix seconds), on `device` alone; empty: on any."""

    code: Annotated[str, Meta(pattern="^[A-Z0-9_]{1,64}$")]
    until: Annotated[float, Meta(ge=0, le=1e11)]
    reason: Annotated[str, Meta(min_length=1, max_length=MAX_REASON)]
    device: Annotated[str, Meta(max_length=MAX_DEVICE)] = ""

    @property
    def name(self) -> str:
        return printable_line(f"{self.code} {self.device}" if self.device else f"{self.code} on any device")

    @property
    def words(self) -> str:
        return f"accepted until {utc_text(self.until)}: {printable_line(self.reason)}"


class AcceptedDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`laggard.accepted/1`: what is accepted on a node. Also what its file holds."""

    accepted: tuple[Accepted, ...]
    schema: str = SCHEMA


class AcceptedError(Exception):
    """The file cannot be used. The text is one line that says why."""


def parse(data: bytes) -> tuple[Accepted, ...]:
    """Reads a file's content: all that it accepts, ended or not. Raises AcceptedError."""
    if len(data) > MAX_BYTES:
        raise AcceptedError(f"it has more than {MAX_BYTES} bytes")
    try:
        document = decode(data, AcceptedDocument)
    except WireError as error:
        raise AcceptedError(f"it is damaged: {error}") from None
    if document.schema != SCHEMA:
        raise AcceptedError(f"it is no {SCHEMA}")
    return document.accepted


def written(accepted: Iterable[Accepted]) -> bytes:
    """The file's content, which parse() reads. Raises AcceptedError."""
    data = encode(AcceptedDocument(tuple(accepted)))
    if len(data) > MAX_BYTES:
        raise AcceptedError(f"it would have more than {MAX_BYTES} bytes: end some with --until now")
    return data


def holding(accepted: Iterable[Accepted], now: float) -> tuple[Accepted, ...]:
    """Those that have not ended at the Unix time `now`, in the order in which they end."""
    return tuple(sorted((it for it in accepted if now < it.until), key=lambda it: it.until))


def find(accepted: Iterable[Accepted], finding: Finding, now: float) -> Accepted | None:
    """Returns what accepts `finding` at the Unix time `now`; of several the last to end."""
    found = [it for it in holding(accepted, now) if it.code == finding.code and it.device in ("", finding.device)]
    return found[-1] if found else None


def lowered(findings: Sequence[Finding], accepted: Sequence[Accepted], now: float) -> Mapping[int, Finding]:
    """The findings that are accepted, by their places: marked, and warnings at most. Those that an agent has marked
    stay as they are."""
    by = {place: find(accepted, it, now) for place, it in enumerate(findings) if EVIDENCE not in it.evidence}
    return {place: _marked(findings[place], it) for place, it in by.items() if it is not None}


def without_mark(finding: Finding) -> Finding:
    """The finding without root's words on it."""
    if EVIDENCE not in finding.evidence:
        return finding
    evidence = {name: value for name, value in finding.evidence.items() if name != EVIDENCE}
    return structs.replace(finding, summary=finding.summary.partition(_WORDS)[0], evidence=evidence)


def _marked(finding: Finding, by: Accepted) -> Finding:
    severity = Severity.WARNING if finding.severity is Severity.CRITICAL else finding.severity
    told = {"until": by.until, "reason": by.reason, "severity": finding.severity.value, "words": by.words}
    end = f" ({by.words})"
    summary = clipped(finding.summary, MAX_SUMMARY - len(end)) + end
    return structs.replace(finding, severity=severity, summary=summary, evidence={**finding.evidence, EVIDENCE: told})


def read_accepted(path: str) -> tuple[Accepted, ...]:
    """Reads the file: all that it accepts, ended or not; nothing if there is no file. Raises AcceptedError."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with folder_of(path) as folder, _opened(os.path.basename(path), flags, folder) as file:
            require_roots(folder, stat.S_ISDIR, "its folder")
            require_roots(file, stat.S_ISREG, "it")
            with open(file, "rb", closefd=False) as content:
                return parse(content.read(MAX_BYTES + 1))
    except FileNotFoundError:
        return ()
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise AcceptedError(f"{path} cannot be read: {why}") from None
    except AcceptedError as error:
        raise AcceptedError(f"{path} cannot be used: {error}") from None


def folder_of(path: str) -> AbstractContextManager[int]:
    """The folder of the file at `path`, open. Raises OSError."""
    return _opened(os.path.dirname(path) or ".", os.O_DIRECTORY)


@contextmanager
def _opened(path: str, flags: int, folder: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def require_roots(descriptor: int, is_type: Callable[[int], bool], what: str) -> None:
    """Raises AcceptedError if `what` is of another type, or somebody beside root may write it."""
    status = os.fstat(descriptor)
    if not is_type(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
        raise AcceptedError(f"{what} is not root's alone to write: chown root, chmod go-w")
