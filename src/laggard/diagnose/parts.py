"""Takes a file that holds several tools' outputs apart: archives, bug reports, what was copied out of a terminal, one
command on many machines. Each part is then recognised as if it were a file.

A prompt is known by its user and machine (`ada@n1:~$ `, `[root@n1 ~]# `, `(env) ada@n1:~$ `), or by its machine alone
(`n1:~ # `), or it is bare: `$ ` before anything, `# `, `> ` and the `+ ` of `set -x` before the name of a tool alone,
since comments begin so too. Machines stand before each line (`n1: ` of pdsh and clush, `srun -l`, kubectl's
--prefix, docker compose: job/lines.py). Or their text follows them: clush -b and dshbak (a name between two rules),
Ansible (`n1 | CHANGED | rc=0 >>`). What one command printed on many machines is taken apart within a session, too. A
section of nvidia-bug-report.sh begins with a rule and the command or file that follows it (`____`, `/bin/dmesg`; `***
/proc/driver/nvidia/./version`).

The answers of torch's debug server are those of torch 2.10 to 2.13, torch/distributed/debug/_frontend.py and
_debug_handlers.py.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import islice, starmap
from typing import Final, NamedTuple

from laggard.diagnose.file_format import FileContent, without_colours
from laggard.diagnose.job.lines import strip_writer
from laggard.diagnose.rules import table
from laggard.stacks.fault_text import faults_of
from laggard.stacks.kernel_side import KEY as UNANSWERED_KEY
from laggard.stacks.kernel_side import Unanswered, text_of_side
from laggard.stacks.kernel_side import decode as decode_unanswered
from laggard.stacks.sampled import FAULTS_KEY, KEY, NO_FRAME, Sampled, SampledError, Thread, decode

MAX_PARTS: Final = 4096
"""The most parts that one text is cut into. A cluster has as many machines."""
_MAX_HEAD: Final = 400


class Part(NamedTuple):
    name: str
    """The command, the machine or the section's head, as the file has it."""

    host: str
    """The machine that it comes from; empty where the file does not name it."""

    text: str
    line: int | None = None
    """The line of the text with which it begins, counted from 1; None: it is not lines in a row."""
    of_command: bool = False
    """True: it is the output of the command that is its name."""


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
    return tuple(
        Part((head[1] or head[2]).strip(), host, body.rstrip("\n") + "\n", _line_at(text, head.end()))
        for head, body in bodies_of(_SECTION, text)
        if body.strip()
    )


def bodies_of(head: re.Pattern[str], text: str, most: int = MAX_PARTS) -> list[tuple[re.Match[str], str]]:
    """Returns each match of `head` with the text behind it, up to the next one."""
    heads = list(islice(head.finditer(text), most))
    ends = [*(match.start() for match in heads), len(text)][1:]
    return [(match, text[match.end() : end]) for match, end in zip(heads, ends, strict=True)]


def _line_at(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


_MIN_SHARE: Final = 0.9
_HEAD = re.compile(r"([A-Za-z][\w-]{0,62}(?:\.[\w-]{1,62}){0,6}):(?: |$)")
_NUMBERED = re.compile(r"\d")
_NAME: Final = r"[A-Za-z][\w.-]{0,62}(?:\[[\d,-]{1,80}\])?"
_BANNER = re.compile(rf"^-{{4,}}\n({_NAME}(?:,{_NAME}){{0,99}})(?: \(\d+\))?\n-{{4,}}\n", re.MULTILINE)
_ANSIBLE = re.compile(r"^([A-Za-z][\w.-]{0,62}) \| (?:CHANGED|SUCCESS|FAILED!?)(?: \| rc=\d+)? (?:>>|=>)\s*?\n", re.M)


def split_machines(text: str) -> tuple[Part, ...]:
    """Returns a part for each machine; none where the text names no machines this way."""
    return split_lines(text) or _by_banners(text, _BANNER) or _by_banners(text, _ANSIBLE)


def split_lines(text: str) -> tuple[Part, ...]:
    """Returns a part for each machine or task whose name stands before each of its lines; none where they do not."""
    if headed(text.lstrip()[:_MAX_HEAD].partition("\n")[0]) is None:  # before all lines are made
        return ()
    lines = [line for line in text.splitlines() if line.strip()]
    by_host: dict[str, list[str]] = {}
    strange = 0
    for line in lines:
        head = headed(line)
        if head and (head[0] in by_host or len(by_host) < MAX_PARTS):
            by_host.setdefault(head[0], []).append(head[1] + "\n")
        else:
            strange += 1
    several = len(by_host) <= len(lines) // 2 or all(map(_NUMBERED.search, by_host))
    if not several or strange > (1 - _MIN_SHARE) * len(lines):
        return ()
    return tuple(Part(name, name, "".join(rest)) for name, rest in by_host.items())


def headed(line: str) -> tuple[str, str] | None:
    """Who writes a line, and what he writes; None: it names nobody."""
    if head := _HEAD.match(line):
        return head[1], line[head.end() :]
    return strip_writer(line)


def _by_banners(text: str, pattern: re.Pattern[str]) -> tuple[Part, ...]:
    found = bodies_of(pattern, text)
    return tuple(Part(head[1], head[1], body, _line_at(text, head.end())) for head, body in found)


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
_ANSWER_HEAD = table("sessions").of("answer")[0].regex
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
    return tuple(starmap(_answer, bodies_of(_ANSWER_HEAD, text))) if HANDLER in text else ()


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
_MAX_COMMANDS: Final = 256
"""The most outputs of one session that are told apart: people paste a few, and each is offered to every reader."""
_FENCE: Final = "```"

_PROMPTS: Final = tuple(row.regex for row in table("sessions").of("prompt"))
_SIGNS: Final = ("$", "#", "%", ">", "+")
_MAX_PROMPT_CHARACTERS: Final = 600


class Prompt(NamedTuple):
    """A line that begins with a prompt. Empty: it has no command, or does not name the host."""

    command: str
    host: str


def split_session(text: str) -> tuple[Part, ...]:
    """Returns an output for each command, and for each text between fences; none where there is neither."""
    parts: list[Part] = []
    begin, name, host, lines = 1, "", "", list[str]()
    fences = 0
    for number, line in enumerate(text.splitlines(True), 1):
        prompt = prompt_of(line)
        fence = prompt is None and line.startswith(_FENCE)
        if (prompt is None and not fence) or len(parts) >= _MAX_COMMANDS:
            lines.append(line)
            continue
        parts.append(Part(name, host, "".join(lines), begin, bool(name)))
        begin, lines, fences = number + 1, [], fences + fence
        name, host = (prompt.command[:_MAX_COMMAND_CHARACTERS], prompt.host) if prompt else ("", host)
    parts.append(Part(name, host, "".join(lines), begin, bool(name)))
    return tuple(part for part in parts if part.text.strip()) if fences > 1 or any(part.name for part in parts) else ()


def prompt_of(line: str) -> Prompt | None:
    """Returns the prompt that a line begins with; None where it has none."""
    line = line.rstrip()
    may_be = len(line) < _MAX_PROMPT_CHARACTERS and any(sign in line for sign in _SIGNS)  # of millions few are
    found = next((found for pattern in _PROMPTS if (found := pattern.match(line))), None) if may_be else None
    if found is None:
        return None
    return Prompt((found["command"] or "").strip(), found.groupdict().get("host") or "")


_KERNEL_LINE = re.compile(
    r"^(?:<\d{1,3}>)?(?:\[ *\d{1,7}\.\d{6}\] |[A-Z][a-z]{2} [ \d]\d [\d:]{8} [\w.-]{1,64} kernel: )", re.MULTILINE
)


def split_kernel(text: str) -> tuple[Part, ...]:
    """Returns the lines that the kernel wrote, and the others; none where there are not both. Lines without a head
    that stand below one of the kernel's, and are indented, are its too."""
    if not _KERNEL_LINE.search(text):
        return ()
    ours, others = list[str](), list[str]()
    kernels = False
    for line in text.splitlines(True):
        kernels = bool(_KERNEL_LINE.match(line)) or (kernels and line[:1] in " \t")
        (ours if kernels else others).append(line)
    if not any(map(str.strip, others)):
        return ()
    return Part("the kernel's lines", "", "".join(ours)), Part("the other lines", "", "".join(others))


_MAX_REPORT_CHARACTERS: Final = 64 << 20
_MARK: Final = b"NVIDIA bug report"
_MARK_BYTES: Final = 4096


def cut(content: FileContent) -> tuple[Part, ...]:
    """Returns the parts of a text; none where it is one whole."""
    if content.held_bytes > _MAX_REPORT_CHARACTERS:
        return ()
    report = split_bug_report("".join(content.pieces())) if _MARK in content.raw_beginning[:_MARK_BYTES] else ()
    if report or content.held_bytes > MAX_SESSION_CHARACTERS:
        return report
    text = without_colours(content.text)
    own = split_own_stacks(content.raw) or split_dumps(content.document)
    parts = split_session(text) or (Part("", "", text, 1),)
    found = own or tuple(each for part in parts for each in _of_machines(part) or (part,))
    return found if len(found) > 1 or found[0].name else split_kernel(text)


def _of_machines(part: Part) -> tuple[Part, ...]:
    """What a part's machines wrote: all are outputs of its command."""
    return tuple(each._replace(of_command=part.of_command) for each in split_machines(part.text))
