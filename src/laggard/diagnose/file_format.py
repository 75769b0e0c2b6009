"""The interface of a file format in `laggard diagnose`: the content that it is given, how it is recognised, and what
is said of it."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from laggard.diagnose.job.events import JobEvidence
from laggard.model import Finding

_PIECE_BYTES: Final = 1 << 19
_MAX_LINE_BYTES: Final = 1 << 20
MAX_LINE_CHARACTERS: Final = 8192
"""The characters of a line that readers see. Patterns with two repeats take time with its square."""
_TOO_LONG = re.compile(rf"(?<![^\n\r\0])([^\n\r\0]{{{MAX_LINE_CHARACTERS}}})[^\n\r\0]+")
_MARKS: Final = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}  # PowerShell and Notepad write UTF-16


class FileContent:
    """The beginning of a file, and its end: what follows the beginning, or the last part of that. Held as bytes, since
    one character outside of Latin-1 makes a text of the same length two or four times as large."""

    def __init__(
        self, beginning: bytes = b"", end: tuple[bytes, ...] = (), skipped_bytes: int = 0, problem: str = ""
    ) -> None:
        self._beginning = beginning
        self._end = end
        self.skipped_bytes = skipped_bytes
        """The number of bytes between the beginning and the end that were not kept."""
        self.own_problem = problem
        """What was wrong while it was read."""
        self.host = ""
        """The machine that it comes from, where the file that it is a part of names it."""
        self.other_hosts: tuple[str, ...] = ()
        """The other machines that this file names."""
        self.count: Callable[[int], None] | None = None
        """Is told how many bytes each piece was made of, when the next one is asked for."""

    @classmethod
    def of_text(cls, text: str) -> FileContent:
        return cls(text.encode(errors="surrogateescape"))

    @property
    def held_bytes(self) -> int:
        return len(self._beginning) + sum(map(len, self._end))

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The beginning, and the end in pieces."""
        return self._beginning, *self._end

    @property
    def raw(self) -> bytes:
        return b"".join(self.parts)

    @property
    def raw_beginning(self) -> bytes:
        return self._beginning

    @property
    def problem(self) -> str:
        """The reason why the pieces are only a part of the file, or nothing of it; empty: they are all of it."""
        reasons = [self.own_problem]
        if self.skipped_bytes:
            end = sum(map(len, self._end))
            reasons.append(f"only its first {mebibytes(len(self._beginning))} and last {mebibytes(end)} were read")
        return "; ".join(filter(None, reasons))

    @property
    def problem_of_the_beginning(self) -> str:
        """The reason why `text` is only a part of the file; empty: it is all of it."""
        cut = f"only its first {mebibytes(len(self._beginning))} were read" if self._end else ""
        return cut or self.own_problem

    @cached_property
    def text(self) -> str:
        """The beginning as text, with lines cut. What is no text in it is replaced."""
        return _cut(self.document)

    @cached_property
    def document(self) -> str:
        """The same with whole lines, for JSON, XML and HTML."""
        if self._beginning[:2] not in _MARKS:  # a decoder that is incremental makes one copy more
            return self._beginning.decode(errors="replace").removeprefix("\ufeff")
        return self._decoder().decode(self._beginning, not self._end).removeprefix("\ufeff")

    @property
    def first_bytes(self) -> bytes:
        return self._beginning[:512]

    def pieces(self) -> Iterator[str]:
        """Yields all that was read as text, in pieces that end with a line. Where something was left out, the line that
        it cuts is dropped on both sides."""
        if not self.skipped_bytes:
            yield from self._decoded((self._beginning, *self._end))
            return
        rest = ""
        for piece in self._decoded((self._beginning,)):
            rest = piece
            if piece.endswith("\n"):
                yield piece
        if not rest.endswith("\n"):
            yield rest[: rest.rfind("\n") + 1]
        cut = True
        for piece in self._decoded(self._end):
            yield piece[piece.find("\n") + 1 :] if cut else piece
            cut = False

    def _decoded(self, parts: tuple[bytes, ...]) -> Iterator[str]:
        decoder = self._decoder()
        rest = ""
        for part in parts:
            for start in range(0, len(part), _PIECE_BYTES):
                data = part[start : start + _PIECE_BYTES]
                text = rest + decoder.decode(data)
                cut = text.rfind("\n") + 1 or (len(text) if len(text) > _MAX_LINE_BYTES else 0)
                if cut:
                    yield _cut(text[:cut])
                rest = text[cut:]
                if self.count:
                    self.count(len(data))
        if rest := rest + decoder.decode(b"", True):
            yield _cut(rest)

    def _decoder(self) -> codecs.IncrementalDecoder:
        encoding = _MARKS.get(self._beginning[:2], "utf-8")
        return codecs.getincrementaldecoder(encoding)(errors="replace")


def _cut(text: str) -> str:
    """The text with its lines cut to MAX_LINE_CHARACTERS; what ends them stays, so that they can be counted."""
    at = 0
    while at + MAX_LINE_CHARACTERS < len(text):
        end = text.rfind("\n", at, at + MAX_LINE_CHARACTERS + 1) + 1
        if not end:
            return _TOO_LONG.sub(r"\1", text)
        at = end
    return text


def mebibytes(count: int) -> str:
    if count >= 1 << 30:
        return f"{count / (1 << 30):.0f} GiB"
    return f"{count / (1 << 20):.0f} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


ACCUSED: Final = "accused_ranks"
"""The evidence of findings whose source names ranks of the job: a recording, RAS' report."""


class KnownHardware(NamedTuple):
    """The facts that all files together show of the machine. None: no file shows it."""

    gpus: int | None = None
    rdma: bool | None = None


class FileJudgement(NamedTuple):
    findings: tuple[Finding, ...] = ()
    facts: dict[str, Any] = {}
    unknown: str = ""
    """The parts that could not be judged, and why; empty: everything was judged."""
    job: JobEvidence | None = None
    """The things that the output of a job shows, for those who join it with other files."""
    of_job: tuple[Finding, ...] = ()
    """The findings that are made of that alone."""


_OF_A_TABLE = re.compile(r"\s*(?:[|+<]|[\[{] ?[\"{])|[^|]*\|[^|]*\|")


def takes_all(line: str) -> bool:
    return True


class FileFormat(NamedTuple):
    name: str
    recognise: Callable[[FileContent], bool]
    """Returns whether a file is of this format."""
    judge: Callable[[FileContent, KnownHardware], FileJudgement] | None = None
    """None: all files of this format are judged together."""
    read_hardware: Callable[[FileContent], KnownHardware] = lambda content: KnownHardware()
    judge_together: Callable[[Iterable[FileContent], KnownHardware], FileJudgement] | None = None
    """Judges all files of this format at once, where they are parts of one whole."""
    whole: str = ""
    """Files of formats with the same word are judged together; empty: those of this format alone."""
    end_matters: bool = False
    """True: a file is judged by its end too, as logs are; False: by its beginning alone."""
    holds_others: bool = False
    """True: a file of it may hold prompts of terminals and heads of machines, and is a whole all the same."""
    shares: bool = False
    """True: a text may hold other things beside this, as a paste of several tools does, and is judged as each."""
    fallback: bool = False
    """True: a text is of this format only where it is of no other one: its lines are everyday ones."""
    covers: tuple[str, ...] = ()
    """The names of formats that read nothing in a text which this one reads: they would take its lines once more."""
    takes: Callable[[str], bool] = lambda line: _OF_A_TABLE.match(line) is not None
    """Returns whether a line that says that something failed is one that its reader judges. Most take what has the form
    of a table or of JSON, and leave sentences."""


def named(judgement: FileJudgement, content: FileContent) -> FileJudgement:
    """Returns the judgement with the machine, where the file names it, in the evidence of each finding."""
    return judgement._replace(findings=tuple(on_host(found, content) for found in judgement.findings))


def on_host(found: Finding, content: FileContent) -> Finding:
    if not content.host or "host" in found.evidence:
        return found
    others = {"other_hosts_in_the_file": list(content.other_hosts)} if content.other_hosts else {}
    return msgspec.structs.replace(found, evidence={"host": content.host, **found.evidence, **others})


def without_repeats(findings: Iterable[Finding]) -> list[Finding]:
    """Leaves out findings that say the same as one before: a report may hold one log twice."""
    kept: dict[str, Finding] = {}
    for found in findings:
        key = json.dumps([found.code, found.device, found.summary, found.evidence], sort_keys=True, default=str)
        kept.setdefault(key, found)
    return list(kept.values())


_MAX_CHARACTERS: Final = 8 << 20
_MAX_LINES: Final = 20_000


def documents(content: FileContent) -> list[Any]:
    """Returns the objects of a document, of a list, or of lines; empty where it is no JSON, or is too large."""
    text = content.document[: _MAX_CHARACTERS + 1].strip()
    if text[:1] not in ("{", "[") or len(text) > _MAX_CHARACTERS:
        return []
    whole = _parsed(text)
    if whole is None:
        return [each for line in text.split("\n")[:_MAX_LINES] if isinstance(each := _parsed(line), dict)]
    return [each for each in whole if isinstance(each, dict)] if isinstance(whole, list) else [whole]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def text_of(tree: object, *names: str) -> str:
    """The first of these fields that is a text or a number; empty: there is none."""
    found = (tree.get(name) for name in names) if isinstance(tree, dict) else iter(())
    return next((str(each) for each in found if isinstance(each, (str, int)) and not isinstance(each, bool)), "")


def list_of(tree: object, name: str) -> list[Any]:
    found = tree.get(name) if isinstance(tree, dict) else None
    return found if isinstance(found, list) else []


_MIN_SHARE: Final = 0.6
_SAMPLE_CHARACTERS: Final = 1 << 18


def is_mostly(text: str, is_known: Callable[[str], object]) -> bool:
    """Returns whether most lines of the beginning are of the tool."""
    lines = [line for line in text[:_SAMPLE_CHARACTERS].splitlines() if line.strip()]
    known = sum(1 for line in lines if is_known(line[:400]))
    return bool(lines) and known >= _MIN_SHARE * len(lines)


def is_table(content: FileContent, head: re.Pattern[str]) -> bool:
    """Returns whether the text is mostly a table drawn with bars, with a line like `head`."""
    text = without_colours(content.text[: 1 << 16])
    return bool(head.search(text)) and is_mostly(text, lambda line: line.startswith(("|", "+")))


_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\n]{0,200}\x07|\x1b[()][0-9A-Z]|\r(?=\n)")


def without_colours(text: str) -> str:
    return _ESCAPES.sub("", text) if "\x1b" in text or "\r" in text else text
