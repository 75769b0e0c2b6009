"""Takes a file that holds several tools' outputs apart: archives, bug reports, what was copied out of a terminal, one
command on many machines. Each part is then recognised as if it were a file.

A prompt is known by its user and machine (`ada@n1:~$ `, `[root@n1 ~]# `, `(env) ada@n1:~$ `), or by its machine alone
(`n1:~ # `), or it is bare: `$ ` before anything, `# `, `> ` and the `+ ` of `set -x` before the name of a tool alone,
since comments begin so too. Machines are those of pdsh and clush (`n1: ` before each line), clush -b and dshbak (a name
between two rules), Ansible (`n1 | CHANGED | rc=0 >>`). A section of nvidia-bug-report.sh begins with a rule and the
command or file that follows it (`____`, `/bin/dmesg`; `*** /proc/driver/nvidia/./version`).

The answers of torch's debug server are those of torch 2.10 to 2.13, torch/distributed/debug/_frontend.py and
_debug_handlers.py.
"""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final, NamedTuple, cast

from laggard.diagnose.archive import MAGIC, MAX_ARCHIVE_BYTES, Archive, Member, Source, ZipArchive, ZipMember
from laggard.diagnose.file_format import FileContent, without_colours
from laggard.diagnose.input_file import InputFile, open_unpacked, read_member
from laggard.stacks.fault_text import faults_of
from laggard.stacks.kernel_side import KEY as UNANSWERED_KEY
from laggard.stacks.kernel_side import Unanswered, text_of_side
from laggard.stacks.kernel_side import decode as decode_unanswered
from laggard.stacks.sampled import FAULTS_KEY, KEY, NO_FRAME, Sampled, SampledError, Thread, decode

MAX_PARTS: Final = 4096
"""The most parts that one text is cut into. A cluster has as many machines."""


class Part(NamedTuple):
    name: str
    """The command, the machine or the section's head, as the file has it."""

    host: str
    """The machine that it comes from; empty where the file does not name it."""

    text: str


_BUG_REPORT_MARK: Final = "Start of NVIDIA bug report log file"
_MARK_CHARACTERS: Final = 4096
_SECTION = re.compile(r"^(?:_{20,}\n+([^\n]{0,400})|\*\*\* (/[^\n]{1,400}))\n", re.MULTILINE)
_HOST = re.compile(r"^uname: \w+ ([\w.-]{1,64}) ", re.MULTILINE)


def split_bug_report(text: str) -> tuple[Part, ...]:
    """Returns a part for each section; none where the text is no such report."""
    if _BUG_REPORT_MARK not in text[:_MARK_CHARACTERS]:
        return ()
    named = _HOST.search(text[: 4 * _MARK_CHARACTERS])
    host = named[1] if named else ""
    heads = list(_SECTION.finditer(text))[:MAX_PARTS]
    ends = [*(head.start() for head in heads), len(text)][1:]
    return tuple(
        Part((head[1] or head[2]).strip(), host, text[head.end() : end].strip("\n") + "\n")
        for head, end in zip(heads, ends, strict=True)
        if text[head.end() : end].strip()
    )


_MIN_SHARE: Final = 0.9
_HEAD = re.compile(r"([A-Za-z][\w-]{0,62}(?:\.[\w-]{1,62}){0,6}):(?: |$)", re.MULTILINE)
_FIRST = re.compile(rf"\s*(?:{_HEAD.pattern})", re.MULTILINE)
_NUMBERED = re.compile(r"\d")
_NAME: Final = r"[A-Za-z][\w.-]{0,62}(?:\[[\d,-]{1,80}\])?"
_BANNER = re.compile(rf"^-{{4,}}\n({_NAME}(?:,{_NAME}){{0,99}})(?: \(\d+\))?\n-{{4,}}\n", re.MULTILINE)
_ANSIBLE = re.compile(r"^([A-Za-z][\w.-]{0,62}) \| (?:CHANGED|SUCCESS|FAILED!?)(?: \| rc=\d+)? (?:>>|=>)\s*?\n", re.M)


def split_machines(text: str) -> tuple[Part, ...]:
    """Returns a part for each machine; none where the text names no machines this way."""
    return split_lines(text) or _by_banners(text, _BANNER) or _by_banners(text, _ANSIBLE)


def split_lines(text: str) -> tuple[Part, ...]:
    """Returns a part for each machine whose name stands before each of its lines; none where they do not."""
    if not _FIRST.match(text):  # before all lines are made, which take more than the text
        return ()
    lines = [line for line in text.splitlines() if line.strip()]
    by_host: dict[str, list[str]] = {}
    strange = 0
    for line in lines:
        head = _HEAD.match(line)
        if head and (head[1] in by_host or len(by_host) < MAX_PARTS):
            by_host.setdefault(head[1], []).append(line[head.end() :] + "\n")
        else:
            strange += 1
    several = len(by_host) <= len(lines) // 2 or all(map(_NUMBERED.search, by_host))
    if not several or strange > (1 - _MIN_SHARE) * len(lines):
        return ()
    return tuple(Part(host, host, "".join(rest)) for host, rest in by_host.items())


def _by_banners(text: str, pattern: re.Pattern[str]) -> tuple[Part, ...]:
    heads = list(pattern.finditer(text))[:MAX_PARTS]
    ends = [*(head.start() for head in heads), len(text)][1:]
    return tuple(Part(head[1], head[1], text[head.end() : end]) for head, end in zip(heads, ends, strict=True))


_HEADS: Final = tuple(b'{"%b"' % key.encode() for key in (KEY, FAULTS_KEY))
_UNANSWERED_HEAD: Final = b'{"%b"' % UNANSWERED_KEY.encode()


def split_own_stacks(raw: bytes) -> tuple[Part, ...]:
    """Returns the stacks of the rank; none where the file is another, or holds none, or where the rank goes on: then
    they show where its time goes, and not what it waits for."""
    if raw.startswith(_UNANSWERED_HEAD):
        return _of_unanswered(raw)
    if not raw.startswith(_HEADS):
        return ()
    try:
        sampled = decode(raw) if raw.startswith(_HEADS[0]) else faults_of(raw, 0.0)
    except SampledError:
        return ()
    if sampled is None or not sampled.is_still or sampled.training.stacks[0].frames == (NO_FRAME,):
        return ()  # it may well wait in a collective that C++ called
    return (Part(f"rank {sampled.rank}", sampled.node, "\n".join(_lines(sampled))),)


def _of_unanswered(raw: bytes) -> tuple[Part, ...]:
    """The process of a rank that left no stacks, as `ps` shows one."""
    try:
        seen = decode_unanswered(raw)
    except SampledError:
        return ()
    return (Part(f"rank {seen.rank}", seen.node, "\n".join(_process_lines(seen))),)


def _process_lines(seen: Unanswered) -> Iterator[str]:
    yield f"rank {seen.rank} runs as pid {seen.pid} on host {seen.node}, and wrote no stacks"
    yield f"Place: {text_of_side(seen.side)}"
    yield "PID STAT WCHAN COMMAND"
    yield f"{seen.pid} {seen.side.state} {seen.side.waits_in or '-'} rank {seen.rank}"


def _lines(sampled: Sampled) -> Iterator[str]:
    yield f"Process {sampled.pid}: rank {sampled.rank} of job {sampled.job_id}, {sampled.why}"
    yield f"Rank {sampled.rank}:"
    for thread in sampled.threads:
        yield from _of_thread(thread)


def _of_thread(thread: Thread) -> Iterator[str]:
    yield "Current thread 0x1 (most recent call first):"
    for frame in thread.stacks[0].frames if thread.stacks else ():
        yield f'  File "{frame.file}", line {frame.line or 0}, in {frame.function}'


HANDLER: Final = "/handler/"
_ANSWER_HEAD = re.compile(
    r"^[ \t]{0,40}(?:<h[23]>|=== |--- )Rank (?P<rank>\d{1,7}): https?://(?P<host>[\w.-]{1,253}|\[[\da-f:]{1,45}\])"
    r"(?::\d{1,5})?/handler/(?P<asked>\w{1,64})[^\s<]{0,200}(?P<end></h[23]>| ===| ---)[ \t]*$",
    re.MULTILINE,
)
_PRE = re.compile(r"<pre>(.*?)(?:</pre>|\Z)", re.DOTALL)
_FAILED = re.compile(r"^[ \t]{0,40}(?:<p>Failed to fetch: status=|Error: )(\d{3})\b", re.MULTILINE)
_DUMPS: Final = ("fr_trace_json", "dump_nccl_trace_json", "torchcomms_fr_trace_json")


class Answer(NamedTuple):
    """`asked`: the handler, as `dump_traceback`. `status`: of HTTP; 408, 502 and 503 are the page's own words for a
    worker that cannot be reached."""

    rank: int
    host: str
    asked: str
    status: int
    text: str


def answers(text: str) -> tuple[Answer, ...]:
    """Returns the answers; none where the text is nothing of the debug server."""
    heads = (
        [head for head, _ in zip(_ANSWER_HEAD.finditer(text), range(MAX_PARTS), strict=False)]
        if HANDLER in text
        else []
    )
    ends = [*(head.start() for head in heads), len(text)][1:]
    return tuple(_answer(head, text[head.end() : end]) for head, end in zip(heads, ends, strict=True))


def _answer(head: re.Match[str], body: str) -> Answer:
    failed = _FAILED.search(body)
    if "</h" in head["end"]:
        page = _PRE.search(body)
        body = html.unescape(page[1]) if page else ""
    status = int(failed[1]) if failed else 200
    return Answer(int(head["rank"]), head["host"], head["asked"], status, body)


def split_dumps(text: str) -> tuple[Part, ...]:
    """Returns the Flight Recorder dump of each rank, named as dumps are: by the number at the end."""
    found = (it for it in answers(text) if it.asked in _DUMPS and it.status == 200 and it.text.lstrip()[:1] == "{")
    return tuple(Part(f"rank_{it.rank}.json", it.host, it.text.strip()) for it in found)


MAX_SESSION_CHARACTERS: Final = 4 << 20
"""The longest text that is taken for something that was copied out of a terminal."""
_MAX_COMMAND_CHARACTERS: Final = 200

_TOOLS: Final = (
    r"(?:sudo +(?:-\w+ +)*)?(?:/\S{1,80}/)?"
    r"(?:nvidia-\w+|dcgmi|rocm-smi|amd-smi|hl-smi|lspci|lsmod|dmesg|journalctl|systemctl|service|modprobe|dkms|modinfo"
    r"|ib\w+|rdma|mlx\w+|ethtool|ip|df|free|cat|grep|uname|numactl|ulimit|scontrol|sinfo|squeue|kubectl|docker|env"
    r"|mst|perfquery|mount|lsblk|lscpu|sensors|ipmitool|nvbandwidth)\b"
)
_PROMPTS: Final = (
    re.compile(
        r"(?:\([\w. /-]{1,40}\) ?){0,2}\[?(?P<user>[\w.-]{1,40})@(?P<host>[\w.-]{1,64})"
        r"(?::[^\s$#%>]{0,120}|[ ][^\s$#%>\]]{1,120})?\]? ?[$#%>] ?(?P<command>\S.{0,400})?$"
    ),
    re.compile(rf"(?P<host>[a-zA-Z][\w.-]{{0,64}})(?::\S{{1,80}})? ?[#$>] ?(?P<command>{_TOOLS}.{{0,400}})$"),
    re.compile(r"[$%] (?P<command>[a-z./]\S{0,80}(?: .{0,400})?)$"),
    re.compile(rf"(?:[#>]|\++) (?P<command>{_TOOLS}.{{0,400}})$"),
)


class Prompt(NamedTuple):
    """A line that begins with a prompt. Empty: it has no command, or does not name the host."""

    command: str
    host: str


def split_session(text: str) -> tuple[Part, ...]:
    """Returns an output for each command; none where no line is a prompt with a command."""
    parts: list[Part] = []
    name, host, lines = "", "", list[str]()
    for line in text.splitlines(True):
        prompt = prompt_of(line)
        if prompt is None or len(parts) >= MAX_PARTS:
            lines.append(line)
            continue
        parts.append(Part(name, host, "".join(lines)))
        lines = []
        name, host = prompt.command[:_MAX_COMMAND_CHARACTERS], prompt.host
    parts.append(Part(name, host, "".join(lines)))
    return tuple(part for part in parts if part.text.strip()) if any(part.name for part in parts) else ()


def prompt_of(line: str) -> Prompt | None:
    """Returns the prompt that a line begins with; None where it has none."""
    line = line.rstrip()
    found = next((found for pattern in _PROMPTS if (found := pattern.match(line))), None) if len(line) < 600 else None
    if found is None:
        return None
    return Prompt((found["command"] or "").strip(), found.groupdict().get("host") or "")


MAX_HELD_BYTES: Final = 256 << 20
"""The most bytes of an archive's members that are held: their text is needed until all of it is judged."""
_MAX_REPORT_CHARACTERS: Final = 64 << 20
_MARK: Final = b"NVIDIA bug report"
_MARK_BYTES: Final = 4096
_TAR: Final = (257, b"ustar")


class PartFile(InputFile):
    """A part of a file, which is held."""

    def __init__(self, path: str, content: FileContent) -> None:
        super().__init__(path)
        self._kept = content
        self.held_bytes = content.held_bytes


class Parts(NamedTuple):
    files: tuple[InputFile, ...] = ()
    is_archive: bool = False
    problem: str = ""
    """The reason why these are not all parts."""
    packing: str = "tar"


def parts_of(file: InputFile, content: FileContent) -> Parts:
    """Returns the parts of a file with this content; none of one that is a whole."""
    if content.first_bytes[_TAR[0] :].startswith(_TAR[1]):
        return _tar_parts(file, content)
    if content.first_bytes.startswith(MAGIC):
        return _zip_parts(file, content)
    return Parts(tuple(_text_parts(file.path, content)))


def _text_parts(path: str, content: FileContent) -> Iterator[InputFile]:
    parts = _split(content)
    hosts = dict.fromkeys(part.host for part in parts if part.host)
    for part in parts:
        held = FileContent.of_text(part.text)
        held.host = part.host or content.host
        held.other_hosts = tuple(host for host in hosts if host != held.host) if len(hosts) <= 4 else ()
        yield PartFile(f"{path}: {part.name}" if part.name else path, held)


def _split(content: FileContent) -> tuple[Part, ...]:
    if content.held_bytes > _MAX_REPORT_CHARACTERS:
        return ()
    report = split_bug_report("".join(content.pieces())) if _MARK in content.raw_beginning[:_MARK_BYTES] else ()
    if report or content.held_bytes > MAX_SESSION_CHARACTERS:
        return report
    if own := split_own_stacks(content.raw):
        return own
    text = without_colours(content.text)
    if dumps := split_dumps(content.text):
        return dumps
    return split_session(text) or split_machines(text)


def _tar_parts(file: InputFile, content: FileContent) -> Parts:
    with _source(file, content) as source:
        archive = Archive(source)
        parts = _members(file, archive.members())
        return parts._replace(problem=parts.problem or archive.problem or (content.problem if file.path == "-" else ""))


def _zip_parts(file: InputFile, content: FileContent) -> Parts:
    """None of what is no archive, but a checkpoint or another program's file."""
    if file.path != "-" and not os.path.isfile(file.path) and content.skipped_bytes:
        return Parts((), True, "it is too large to be read within another archive", "zip")
    with contextlib.ExitStack() as stack:
        whole = not content.skipped_bytes
        source = io.BytesIO(content.raw) if whole else stack.enter_context(open(file.path, "rb"))
        archive = ZipArchive(source)
        parts = _members(file, archive.members())
        problem = parts.problem or archive.problem
    return Parts(parts.files, True, problem, "zip") if parts.files or problem else Parts()


def _members(file: InputFile, members: Iterable[Member | ZipMember]) -> Parts:
    files: list[InputFile] = []
    held = unpacked = 0
    for member in members:
        if held >= MAX_HELD_BYTES or unpacked >= MAX_ARCHIVE_BYTES:
            return Parts(tuple(files), True, f"only {len(files)} files of the archive were read: it is too large")
        inner, size = read_member(cast(BinaryIO, member), MAX_ARCHIVE_BYTES - unpacked)
        held, unpacked = held + inner.held_bytes, unpacked + size
        path = f"{file.path}: {member.name}"
        files += list(_text_parts(path, inner)) or [PartFile(path, inner)]
    return Parts(tuple(files), True)


@contextlib.contextmanager
def _source(file: InputFile, content: FileContent) -> Iterator[Source]:
    """Yields the unpacked archive from its beginning. Of standard input only what was kept is there."""
    if not content.skipped_bytes or file.path == "-":
        yield io.BytesIO(content.raw if not content.skipped_bytes else content.raw_beginning)
        return
    with open_unpacked(file.path) as source:
        yield source
