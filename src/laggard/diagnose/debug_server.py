"""What torch's debug server shows of a job that hangs: stacks by rank, and tables of the Flight Recorder. The dumps
that it shows as JSON are read as dumps (parts/server_answers.py, recordings.py).

Source: torch 2.10 to 2.13, torch/distributed/debug and torch/distributed/flight_recorder/components/types.py.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import Final

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import ACCUSED, FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.job.reader import no_evidence
from laggard.diagnose.joined.clue import Fault
from laggard.diagnose.joined.exhibit import read_exhibit
from laggard.diagnose.joined.origin import Origin
from laggard.diagnose.joined.roster import roster_of
from laggard.diagnose.joined.stacks import collective_of, stacks
from laggard.diagnose.joined.witnesses import witness_faults
from laggard.diagnose.parts.server_answers import Answer, answers
from laggard.model import Finding, Severity
from laggard.probes.probe import finding
from laggard.text.words import ranks_text

_STACKS: Final = ("dump_traceback", "pyspy_dump")
_UNREACHABLE: Final = {408: "its worker does not answer in time", 502: "its worker's answer broke off",
                       503: "its worker's port refuses connections"}  # fmt: skip
_MAX_ROWS: Final = 20_000
_MAX_FINDINGS: Final = 16
_TABLE = re.compile(
    r"^[ \t]{0,40}(?:<h2>Collectives</h2>|--- Collectives ---)[ \t]*$(.*?)(?:^[ \t]{0,40}(?:<h2>|--- )|\Z)",
    re.MULTILINE | re.DOTALL,
)
_ROW_END: Final = "</tr>"
_MAX_ROW_CHARACTERS: Final = 20_000
_CELL = re.compile(r"</?t[dr](?: style=\"[^\"]{0,60}\")?>")
_ROW = re.compile(
    r"^\s{0,40}\d+\s+\S{1,80}\s+(?:True|False)\s+(?P<seq>\d+)\s+\d+\s+\d+\s+(?P<group>\S{1,200})\s+(?P<op>\w{1,40}:\S{1,80})"
    r"\s+(?P<rest>.*)$"
)
_COLUMNS = re.compile(r"\s{2,}")
_BEFORE_ERRORS: Final = 5
"""The columns from the sizes to the frames."""
_MISSING = re.compile(r"\{(\d{1,7}(?:, \d{1,7})*)\}")
_OTHER = re.compile(
    r"(\d{1,7}): Collective\(.{0,300}?collective_name='([^']{1,80})', input_sizes=(\[.{0,400}?\]), output_sizes"
)
_FIX: Final = "See where that process stands: the server's page of stacks (/stacks), `py-spy dump --pid PID`."
_ODD_FIX: Final = "Look where the program of these ranks takes another way: a condition on the rank or on its data."


def recognise(content: FileContent) -> bool:
    return any(each.asked in _STACKS for each in answers(content.text))


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    shown = [each for each in answers(content.text) if each.asked in _STACKS]
    told = [each for each in shown if each.status == 200]
    exhibit = read_exhibit("", Origin(), content.text, "stacks", False, None)
    faults = witness_faults([exhibit], roster_of(no_evidence(), (), exhibit.identities))
    found = [*_unreachable(shown, told), *map(_of_fault, faults)]
    unknown = "" if told else "no rank's stack is in it"
    return FileJudgement(tuple(found[:_MAX_FINDINGS]), {"ranks": len(shown), "answered": len(told)}, unknown)


def _of_fault(fault: Fault) -> Finding:
    evidence = {"line": fault.quote, "host": fault.host, ACCUSED: list(fault.ranks)}
    known = {name: value for name, value in evidence.items() if value}
    return finding(fault.code, fault.device, fault.summary, evidence=known, fix=fault.fix, commands=fault.commands)


def _unreachable(shown: Sequence[Answer], told: Sequence[Answer]) -> Iterator[Finding]:
    """The few ranks whose worker does not answer; whether the others wait for them says how bad that is."""
    gone = [each for each in shown if each.status in _UNREACHABLE]
    waiting = [it.rank for it in told if any(collective_of(stack) for stack in stacks(it.text))]
    for each in gone if len(gone) <= len(shown) // 2 else ():
        says = (
            f"does not answer torch's debug server, {_UNREACHABLE[each.status]} ({each.status}): its process is gone, "
        )
        says += "stopped, or its host cannot be reached"
        yield finding(
            "JOB_COLLECTIVE_TIMEOUT",
            f"rank {each.rank} on {each.host}",
            says + (f"; {ranks_text(waiting)} wait in a collective" if waiting else ""),
            evidence={"line": f"Rank {each.rank}: http", "host": each.host, ACCUSED: [each.rank]},
            fix="Look at that process and its host: its log's end, `dmesg -T`, and whether the host is up.",
            commands=("dmesg -T | tail -50",),
            severity=Severity.CRITICAL if waiting else Severity.WARNING,
        )


def recognise_tables(content: FileContent) -> bool:
    return "ollectives" in content.text and "NCCL Calls" in content.text and _TABLE.search(content.text) is not None


def judge_tables(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    rows = [row for table in _TABLE.finditer(content.text) for row in _rows(table[1])]
    found = {it.device + it.summary: it for row in rows for it in _of_row(row)}
    return FileJudgement(tuple(found.values())[:_MAX_FINDINGS], {"looked_for": "looked for ranks that are missing"})


def _rows(table: str) -> Iterator[re.Match[str]]:
    """The rows; of HTML with the cells as tabulate's plain form has them, two spaces or more apart."""
    is_html = _ROW_END in table
    lines = table.split(_ROW_END if is_html else "\n")[:_MAX_ROWS]
    for line in lines:
        row = line[-_MAX_ROW_CHARACTERS:] if is_html else line[:_MAX_ROW_CHARACTERS]
        text = html.unescape(_CELL.sub("  ", row.rpartition("<tr>")[2])) if is_html else row
        if found := _ROW.match(text.strip("\n")):
            yield found


def _of_row(row: re.Match[str]) -> Iterator[Finding]:
    """What a row says of ranks that did not come, or that called something else. A rank that is only in another state
    of the same collective is slower, and no fault."""
    op = row["op"].partition(":")[2]
    place = f"{op}, number {row['seq']}, of group {row['group'].partition(':')[2]}"
    cells = _COLUMNS.split(row["rest"].strip())
    wrong = next((cell for cell in cells[_BEFORE_ERRORS:] if cell.startswith("{")), "")
    if missing := _MISSING.fullmatch(wrong):
        ranks = [int(rank) for rank in missing[1].split(", ")]
        yield _of_ranks(ranks, f"did not come to {place}, in which the others are", row, _FIX)
        return
    for rank, name, sizes in _OTHER.findall(wrong):
        other = name.partition(":")[2]
        if other != op:
            yield _of_ranks([int(rank)], f"called {other} where the others called {place} (a mismatch)", row, _ODD_FIX)
        elif sizes != cells[0]:
            says = f"came with other sizes to {place} (a mismatch): {sizes[:80]} in place of {cells[0][:80]}"
            yield _of_ranks([int(rank)], says, row, _ODD_FIX)


def _of_ranks(ranks: Sequence[int], says: str, row: re.Match[str], fix: str) -> Finding:
    evidence = {"line": row["op"], ACCUSED: list(ranks)}
    return finding("JOB_COLLECTIVE_TIMEOUT", ranks_text(ranks), says, evidence=evidence, fix=fix)


DEBUG_STACKS: Final = FileFormat("stacks of torch's debug server", recognise, judge)
DEBUG_TABLES: Final = FileFormat("Flight Recorder tables of torch's debug server", recognise_tables, judge_tables)
