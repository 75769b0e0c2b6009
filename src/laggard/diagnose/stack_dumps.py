"""The formats of files that say where ranks stand: dumps of stacks, torch's debug server, and what ranks under
laggard left of a standstill.

Which rank a process is, is told by the other files of its job (joined/witnesses.py); here stands what a file says
alone. Dumps that the debug server shows as JSON are read as dumps (parts.py, recordings.py). Where the time of ranks
that went on goes shows beside their peers alone: `laggard locate` compares their samples.

Source: torch 2.10 to 2.13, torch/distributed/debug and torch/distributed/flight_recorder/components/types.py.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from laggard.diagnose.file_format import ACCUSED, FileContent, FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.job.events import JobEvidence
from laggard.diagnose.joined.dump_lines import is_helper, own_frame, wait_of
from laggard.diagnose.joined.exhibit import Origin, read_exhibit
from laggard.diagnose.joined.processes import UNANSWERED_HEAD
from laggard.diagnose.joined.roster import Fault, roster_of
from laggard.diagnose.joined.stacks import KIND, frame_text, share_of_stacks, stacks
from laggard.diagnose.joined.standing import Seen, Stands, blocked, class_of, names_of, standings
from laggard.diagnose.joined.witnesses import witness_faults
from laggard.diagnose.parts import Answer, answers
from laggard.diagnose.rules import patterns, table
from laggard.kit.words import counted, ranks_text
from laggard.model import Finding, Severity
from laggard.probes.probe import finding
from laggard.stacks.sampled import KEY

_P: Final = patterns("stacks")

_MIN_SHARE: Final = 0.3
"""The least share of the lines that are frames or heads: people write words around a dump, and a log is mostly none."""
_MAX_CHARACTERS: Final = 2 << 20
_MAX_PROCESSES: Final = 4096


def recognise_dumps(content: FileContent) -> bool:
    """Whether the text is mostly stacks, whatever was cut off in front. A job's log that holds one is none."""
    text = content.text[: 1 << 18]
    return bool(stacks(text)) and share_of_stacks(text) >= _MIN_SHARE


def judge_dumps(contents: Iterable[FileContent], hardware: KnownHardware) -> FileJudgement:
    """Judges the dumps of all files as those of one job. Which rank each file is of is told by names and by the job's
    other files, when all are joined: here one file alone accuses."""
    found: list[Seen] = []
    files = 0
    for content in contents:
        files += 1
        room = _MAX_PROCESSES - len(found)
        found += [Seen(it, "", it.rank) for it in stacks(content.text[:_MAX_CHARACTERS])][:room]
    told = blocked(found)
    found = [it for it in found if not is_helper(it.frames)]
    told = told or (standings(found) if files == 1 else [])
    unknown = "" if told else _what_they_show(found)
    return FileJudgement(tuple(map(_of_stands, told)), {"processes": len(found)}, unknown)


def _of_stands(stands: Stands) -> Finding:
    first = stands.who[0]
    pid = {} if first.stack.pid is None else {"pid": first.stack.pid}
    return finding(
        "JOB_COLLECTIVE_TIMEOUT",
        names_of(stands.who),
        stands.says,
        evidence={"line": stands.frame.text, **pid},
        fix=stands.fix.text,
        commands=stands.fix.commands,
    )


def _what_they_show(found: Sequence[Seen]) -> str:
    calls = {wait_of(it.frames) for it in found}
    if len(found) > 1 and len(calls) == 1 and "" not in calls:
        return f"all {len(found)} stand in {calls.pop()}: each waits for the others, and none of them is told apart"
    places = [
        f"{wait_of(it.frames) or class_of(it.frames) or 'in no collective'}, {frame_text(own_frame(it.frames))}"
        for it in found[:4]
    ]
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return (
        f"{counted(len(found), 'stack')} ({'; '.join(places)}{more}): the stacks of all ranks tell whom they wait for"
    )


STACK_DUMPS: Final = FileFormat(KIND, recognise_dumps, judge_together=judge_dumps)


_STACKS: Final = ("dump_traceback", "pyspy_dump")
_UNREACHABLE: Final = {408: "its worker does not answer in time", 502: "its worker's answer broke off",
                       503: "its worker's port refuses connections"}  # fmt: skip
_MAX_ROWS: Final = 20_000
_MAX_FINDINGS: Final = 16
_ROW_END: Final = "</tr>"
_MAX_ROW_CHARACTERS: Final = 20_000
_BEFORE_ERRORS: Final = 5
"""The columns from the sizes to the frames."""


def recognise_debug_stacks(content: FileContent) -> bool:
    return any(each.asked in _STACKS for each in answers(content.document))


def judge_debug_stacks(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    shown = [each for each in answers(content.document) if each.asked in _STACKS]
    told = [each for each in shown if each.status == 200]
    exhibit = read_exhibit("", Origin(), content.document, "stacks", False, None)
    faults = witness_faults([exhibit], roster_of(JobEvidence(), (), exhibit.identities))
    found = [*_unreachable(shown, told), *map(_of_fault, faults)]
    unknown = "" if told else "no rank's stack is in it"
    return FileJudgement(tuple(found[:_MAX_FINDINGS]), {"ranks": len(shown), "answered": len(told)}, unknown)


def _of_fault(fault: Fault) -> Finding:
    evidence = {"line": fault.quote, "host": fault.host, ACCUSED: list(fault.ranks)}
    known = {name: value for name, value in evidence.items() if value}
    return finding(
        fault.code, fault.device, fault.summary, evidence=known, fix=fault.fix.text, commands=fault.fix.commands
    )


def _unreachable(shown: Sequence[Answer], told: Sequence[Answer]) -> Iterator[Finding]:
    """The few ranks whose worker does not answer; whether the others wait for them says how bad that is."""
    gone = [each for each in shown if each.status in _UNREACHABLE]
    waiting = [it.rank for it in told if any(wait_of(stack.frames) for stack in stacks(it.text))]
    for each in gone if len(gone) <= len(shown) // 2 else ():
        evidence = {"line": f"Rank {each.rank}: http", "host": each.host, ACCUSED: [each.rank]}
        severity, why = Severity.CRITICAL if waiting else Severity.WARNING, _UNREACHABLE[each.status]
        also = f"; {ranks_text(waiting)} wait in a collective" if waiting else ""
        yield (
            table("hangs")
            .sections["unreachable"]
            .found(evidence, severity, rank=each.rank, host=each.host, why=why, status=each.status, waiting=also)
        )


def recognise_debug_tables(content: FileContent) -> bool:
    return (
        "ollectives" in content.text and "NCCL Calls" in content.text and _P["table"].search(content.text) is not None
    )


def judge_debug_tables(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    rows = [row for table in _P["table"].finditer(content.document) for row in _rows(table[1])]
    found = {it.device + it.summary: it for row in rows for it in _of_row(row)}
    return FileJudgement(tuple(found.values())[:_MAX_FINDINGS], {"looked_for": "looked for ranks that are missing"})


def _rows(table: str) -> Iterator[re.Match[str]]:
    """The rows; of HTML with the cells as tabulate's plain form has them, two spaces or more apart."""
    is_html = _ROW_END in table
    lines = table.split(_ROW_END if is_html else "\n")[:_MAX_ROWS]
    for line in lines:
        row = line[-_MAX_ROW_CHARACTERS:] if is_html else line[:_MAX_ROW_CHARACTERS]
        text = html.unescape(_P["cell"].sub("  ", row.rpartition("<tr>")[2])) if is_html else row
        if found := _P["row"].match(text.strip("\n")):
            yield found


def _of_row(row: re.Match[str]) -> Iterator[Finding]:
    """What a row says of ranks that did not come, or that called something else. A rank that is only in another state
    of the same collective is slower, and no fault."""
    op = row["op"].partition(":")[2]
    place = f"{op}, number {row['seq']}, of group {row['group'].partition(':')[2]}"
    cells = _P["columns"].split(row["rest"].strip())
    wrong = next((cell for cell in cells[_BEFORE_ERRORS:] if cell.startswith("{")), "")
    if missing := _P["missing"].fullmatch(wrong):
        ranks = [int(rank) for rank in missing[1].split(", ")]
        yield _of_ranks(ranks, f"did not come to {place}, in which the others are", row, "not_come")
        return
    for rank, name, sizes in _P["other"].findall(wrong):
        other = name.partition(":")[2]
        if other != op:
            yield _of_ranks([int(rank)], f"called {other} where the others called {place} (a mismatch)", row, "odd")
        elif sizes != cells[0]:
            says = f"came with other sizes to {place} (a mismatch): {sizes[:80]} in place of {cells[0][:80]}"
            yield _of_ranks([int(rank)], says, row, "odd")


def _of_ranks(ranks: Sequence[int], says: str, row: re.Match[str], kind: str) -> Finding:
    evidence = {"line": row["op"], ACCUSED: list(ranks)}
    return finding(
        "JOB_COLLECTIVE_TIMEOUT", ranks_text(ranks), says, evidence=evidence, fix=table("hangs").advice[kind].text
    )


DEBUG_STACKS: Final = FileFormat(
    "stacks of torch's debug server", recognise_debug_stacks, judge_debug_stacks, covers=(KIND,)
)
DEBUG_TABLES: Final = FileFormat(
    "Flight Recorder tables of torch's debug server", recognise_debug_tables, judge_debug_tables
)


_OWN_HEADS: Final = ('{"laggard_events"', f'{{"{KEY}"')


def recognise_own(content: FileContent) -> bool:
    return content.text[:64].lstrip().startswith(_OWN_HEADS) or UNANSWERED_HEAD.match(content.text[:512]) is not None


def judge_own(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    """Accuses nobody: who is late, and whom the others wait for, shows beside the files of the other ranks."""
    return FileJudgement(unknown="it says nothing alone: give the files of all ranks")


OWN: Final = FileFormat("rank at a standstill", recognise_own, judge_own)
