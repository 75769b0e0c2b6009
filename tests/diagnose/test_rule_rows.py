"""Each rule of `laggard diagnose` is proven: by a text that it takes, and by texts with its words that it leaves alone.
The texts are data, tests/data/rules; docs/tasks/diagnose-rule.md tells how a rule is added."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pytest
from support.diagnosed import diagnose_text
from support.paths import DATA

from laggard.diagnose.gpu_tools.dcgm import DCGM_RULES
from laggard.diagnose.gpu_tools.smi_messages import MESSAGE_RULES
from laggard.diagnose.gpu_tools.topology import NVLINK_LIMITS
from laggard.diagnose.job.lines import LineParser
from laggard.diagnose.job.rules import EXIT_LINES, RULES, rule_for
from laggard.diagnose.kernel import judge
from laggard.diagnose.kernel.lines import read_line
from laggard.diagnose.pastes import pods
from laggard.diagnose.pastes.pods import parse_events
from laggard.diagnose.pastes.port_counters import COUNTER_RULES, IBDIAGNET_RULES
from laggard.diagnose.pastes.services import NVIDIA_SERVICES
from laggard.diagnose.pastes.slurm import DRAIN_REASONS, JOB_STATES, drain_reason
from laggard.diagnose.pastes.stuck_processes import WAITS

RULE_LINES: Final = DATA / "rules"
BOOT: Final = "[    0.000000] Linux version 5.15.0-113-generic\n[    1.000000] usb 1-1: new device\n"
_TRAINING: Final = "".join(f"step {number} loss 2.{number} lr 0.1\n" for number in range(4))
_DIAG: Final = (
    "+---------------------------+------------------------------------------------+\n"
    "| Diagnostic                | Result                                         |\n"
    "+===========================+================================================+\n"
    "| Memory                    | Fail - GPU: 3                                  |\n"
    "| Warning                   | {} |\n"
    "+---------------------------+------------------------------------------------+\n"
)
_EVENTS: Final = "LAST SEEN   TYPE      REASON      OBJECT      MESSAGE\n{}\n"
_SACCT: Final = "JobID|State|ExitCode|NodeList\n812|{}|1:0|n7\n"
_FABRIC: Final = "-I- Discovering ... 12 nodes discovered.\n{}\n"
_PS: Final = "  PID USER STAT WCHAN ELAPSED CMD\n{}\n"


class Proof(NamedTuple):
    table: str
    fires: str
    finds: tuple[str, str, str] | None
    """None: the rule says that a text is no fault."""
    near: tuple[tuple[str, str], ...]
    """Texts, each with the code that is found in it all the same; empty: nothing is."""


class Table(NamedTuple):
    rules: Sequence[Any]
    reached: Callable[[str], Any]
    """Returns the rule that takes a text of `fires` or `near`; None where none does."""
    frame: Callable[[str], str]
    pattern: Callable[[Any], str]


def _first(patterns: Sequence[re.Pattern[str]], text: str) -> int | None:
    return next((place for place, pattern in enumerate(patterns) if pattern.search(text)), None)


def _job_rule(line: str) -> Any:
    parsed = LineParser().parse(line)
    return rule_for(parsed.text) or (rule_for(parsed.logged) if parsed.logged else None)


def _exit_line(line: str) -> Any:
    parsed = LineParser().parse(line.rpartition("\n")[2])
    texts = (parsed.text.strip(), parsed.logged)
    return next((pattern for text in texts for pattern in EXIT_LINES if pattern.match(text)), None)


def _kernel_rule(line: str) -> Any:
    read = read_line(line)
    text = read.text if read else line
    return next((rule for rule in judge.RULES if rule.word in text and re.search(rule.pattern, text)), None)


def _kernel_frame(line: str) -> str:
    return f"{line}\n" if read_line(line) else f"{BOOT}[ 5000.000000] {line}\n"


def _searched(rules: Sequence[Any], patterns: Sequence[str], flags: int = 0) -> Callable[[str], Any]:
    compiled = [re.compile(pattern, flags) for pattern in patterns]
    return lambda text: None if (place := _first(compiled, text)) is None else rules[place]


def _counter(line: str) -> Any:
    name = line.split(":")[0]
    return next((rule for rule in COUNTER_RULES if re.fullmatch(rule.pattern, name)), None)


def _counter_frame(line: str) -> str:
    name, value = line.split(":")
    if name[0].isupper():
        return f"# Port counters: Lid 12 port 1 (CapMask: 0x5A00)\n{name}:{'.' * 20}{value}\n"
    return f"$ ethtool -S eth0\nNIC statistics:\n     rx_packets: 1000000\n     {name}: {value}\n"


def _pod_row(line: str) -> Any:
    return next((row for event in parse_events(_EVENTS.format(line)) if (row := pods.row_of(event))), None)


def _state(line: str) -> Any:
    return next((row for row in JOB_STATES if line.startswith(row.pattern)), None)


def _service(text: str) -> Any:
    name = text.split(".service")[0].rpartition(" ")[2]
    return NVIDIA_SERVICES.first(name)


def _wait(line: str) -> Any:
    return next((row for row in WAITS if re.search(rf"\s(?:{row.pattern})\s", line)), None)


def _limit(line: str) -> Any:
    return next((row for row in NVLINK_LIMITS if row.regex.search(line)), None)


def _pattern(row: Any) -> str:
    return str(row.pattern)


def _same(text: str) -> str:
    return text


TABLES: Final[dict[str, Table]] = {
    "job": Table(RULES, _job_rule, lambda line: f"{_TRAINING}{line}\n", lambda rule: rule.pattern.pattern),
    "job_exits": Table(EXIT_LINES, _exit_line, lambda line: f"{_TRAINING}{line}\n", _pattern),
    "kernel": Table(judge.RULES, _kernel_rule, _kernel_frame, _pattern),
    "smi_messages": Table(
        MESSAGE_RULES,
        _searched(MESSAGE_RULES, [rule.pattern for rule in MESSAGE_RULES], re.MULTILINE),
        _same,
        _pattern,
    ),
    "dcgm": Table(
        DCGM_RULES.rows,
        DCGM_RULES.first,
        _DIAG.format,
        _pattern,
    ),
    "nvlink_counters": Table(
        NVLINK_LIMITS,
        _limit,
        lambda line: f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-8e1f)\n{line}\n",
        _pattern,
    ),
    "services": Table(NVIDIA_SERVICES.rows, _service, _same, _pattern),
    "drain_reasons": Table(
        DRAIN_REASONS[:-1],
        drain_reason,
        lambda line: f"NodeName=n7 Arch=x86_64\n   State=IDLE+DRAIN\n   Reason={line} [root@2025-05-01T10:00:00]\n",
        _pattern,
    ),
    "counters": Table(COUNTER_RULES, _counter, _counter_frame, _pattern),
    "pods": Table(pods.ROWS, _pod_row, _EVENTS.format, _pattern),
    "ibdiagnet": Table(
        IBDIAGNET_RULES,
        _searched(IBDIAGNET_RULES, [row.pattern for row in IBDIAGNET_RULES]),
        _FABRIC.format,
        _pattern,
    ),
    "sacct": Table(JOB_STATES, _state, _SACCT.format, _pattern),
    "stuck_processes": Table(WAITS, _wait, _PS.format, _pattern),
}


def proofs(table: str) -> list[Proof]:
    lines = (RULE_LINES / f"{table}.jsonl").read_text(encoding="utf-8").splitlines()
    return [_proof(table, json.loads(line)) for line in lines]


def _proof(table: str, row: dict[str, Any]) -> Proof:
    near = tuple((each, "") if isinstance(each, str) else (each["text"], each["finds"]) for each in row["near"])
    return Proof(table, row["fires"], tuple(row["finds"]) if row["finds"] else None, near)


PROOFS = [proof for table in TABLES for proof in proofs(table)]
NAMES = [f"{proof.table}-{proof.fires[:60]}" for proof in PROOFS]


def found(text: str) -> list[tuple[str, str, str]]:
    return [(each.code, each.severity.value, each.device) for each in diagnose_text(text).findings]


@pytest.mark.parametrize("table", TABLES)
def test_each_rule_has_a_text_that_it_takes(table: str) -> None:
    known = TABLES[table]
    reached = {id(known.reached(proof.fires)) for proof in proofs(table)}
    missing = [known.pattern(rule) for rule in known.rules if id(rule) not in reached]
    assert not missing, f"no line of tests/data/rules/{table}.jsonl reaches these rules: {missing}"


def test_each_file_of_lines_is_of_a_table() -> None:
    assert {path.stem for path in RULE_LINES.iterdir()} == set(TABLES)


@pytest.mark.parametrize("proof", PROOFS, ids=NAMES)
def test_a_rule_finds_what_it_is_for(proof: Proof) -> None:
    assert found(TABLES[proof.table].frame(proof.fires)) == ([proof.finds] if proof.finds else [])


@pytest.mark.parametrize("proof", PROOFS, ids=NAMES)
def test_a_rule_leaves_texts_alone_that_have_its_words(proof: Proof) -> None:
    table = TABLES[proof.table]
    assert proof.near
    for text, code in proof.near:
        assert [each[0] for each in found(table.frame(text))] == ([code] if code else []), text
        assert code or table.reached(text) is not table.reached(proof.fires) or proof.table in _JUDGED_BY_VALUE, text


_JUDGED_BY_VALUE = frozenset(
    {"counters", "nvlink_counters", "services", "stuck_processes", "sacct", "job_exits", "pods"}
)
"""The tables whose rules take a name, and then look at its value."""
