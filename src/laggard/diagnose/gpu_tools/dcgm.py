"""The formats `dcgmi diag`, as text and as JSON, and `dcgmi health -c`, of DCGM 2, 3 and 4. One table has DCGM's
words for what it found on a GPU.

diag's text is a table of tests: 2 and 3 have `Fail - GPU: 3` with a row `Warning`, 4 has rows `GPU3: Fail` and
`Warning: GPU3`. Long words are broken over rows at any character. The JSON has results by GPU: `gpu_ids` in version 2,
`gpu_id` in 3, `entity_id` in 4. The words are those of dcgm_errors.h (DCGM_FR_*), which are the same in all three but
for a few.

health writes a tree: a group (`GPU`, `Switch`, `CPU`, `ConnectX`), below it `-> 5`, `-> Errors` and `-> Memory system`;
older releases write `GPU ID: 5` and `Memory`. Source: DCGM, dcgmi/Health.cpp and dcgmlib's names of entity groups.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from laggard.diagnose.file_format import (
    FileContent,
    FileFormat,
    FileJudgement,
    KnownHardware,
    is_table,
    list_of,
    without_colours,
)
from laggard.diagnose.pastes.section import one_of_many
from laggard.diagnose.rules import patterns, table
from laggard.model import Finding, Fix, Severity

_P: Final = patterns("paste_forms", "dcgm_")

DCGM_RULES: Final = table("dcgm")
_NOT_THE_GPU = _P["not_the_gpu"]
"""What a diagnostic meets that is no fault of a GPU."""


_CUT_SPACES: Final = 2
"""The spaces after a cell that is full, whose last word may go on in the next row."""


def joined(text: str, cell: str) -> str:
    """Adds a row's cell to the text of the rows above. DCGM cuts words where a row is full."""
    rest = cell.rstrip()
    return text + rest + (" " if len(cell) - len(rest) > _CUT_SPACES else "")


class Failure(NamedTuple):
    """What one test says of one GPU. `failed`: of the test; False: a warning, or that it was not whole."""

    gpu: str
    """Its number; `Switch 3` of what is no GPU; empty where the text names none."""
    test: str
    text: str
    failed: bool


def failure_finding(failure: Failure, commands: tuple[str, ...]) -> Finding:
    rule = DCGM_RULES.first(failure.text or failure.test) or DCGM_RULES.sections["other"]
    harmless = bool(_NOT_THE_GPU.search(failure.text)) or rule.code == "GPU_PERSISTENCE_OFF"
    verb = "failed" if failure.failed else "has a warning of"
    told = f"{verb} DCGM's test {failure.test}" + (f": {failure.text}" if failure.text else "")
    is_gpu = failure.gpu.isdigit()
    device = f"GPU {failure.gpu}" if is_gpu else failure.gpu or "the GPUs"
    entity = f"GPU{failure.gpu}" if is_gpu else failure.gpu or None
    severity = Severity.CRITICAL if failure.failed and not harmless else Severity.WARNING
    row = rule._replace(device=device, says=told[:1000], fix=Fix(rule.fix.text, commands))
    return row.found({"test": failure.test, "entity": entity}, severity)


_MAX_CHARACTERS: Final = 4 << 20
_MAX_FAILURES: Final = 256
_COMMANDS: Final = ("dcgmi diag -r 3 -v", "dcgmi health -c")


def recognise_diag(content: FileContent) -> bool:
    return is_table(content, _P["head"])


def judge_diag(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = without_colours(content.text[:_MAX_CHARACTERS])
    failures = tuple(read_table(text))[:_MAX_FAILURES]
    unknown = "" if failures or _P["passed"].search(text) else "it has no result of a test: paste all of it"
    findings = one_of_many(failure_finding(each, _COMMANDS) for each in failures)
    return FileJudgement(findings, {"failures": len(failures)}, unknown)


def read_table(text: str) -> Iterator[Failure]:
    """Yields what failed or was warned of: a note belongs to the test above it, and to the GPU that it names."""
    test = note = ""
    failed: dict[str, str] = {}
    notes: dict[str, str] = {}
    for line in (*text[_start(text) :].splitlines(), "| end | end |"):
        row = _P["row"].match(line) if len(line) < 1000 else None
        if row is None or line.startswith("|-----"):
            note = ""
            continue
        name, result = row[1].strip(), row[2]
        if name and (found := _P["note"].match(name)):
            note = found["gpu"] or _gpu_named(result)
            notes[note] = joined(notes.get(note, ""), result)
        elif name:
            yield from _failures(test, failed, notes)
            test, note, failed, notes = name, "", {}, {}
            failed.update(_failed(result))
        elif of_gpu := _P["of_a_gpu"].match(result.strip()):
            note = ""
            failed.update({of_gpu[1]: ""} if of_gpu[2] == "Fail" else {})
        elif _P["failed"].match(result):
            failed.update(_failed(result))
        elif note or "" in notes:
            notes[note] = joined(notes.get(note, ""), result)


def _start(text: str) -> int:
    head = _P["head"].search(text)
    return head.end() if head else 0


def _failed(result: str) -> dict[str, str]:
    found = _P["failed"].match(result.strip())
    if found is None:
        return {}
    return dict.fromkeys(re.findall(r"\d+", found["gpus"] or "") or [""], "")


def _gpu_named(text: str) -> str:
    found = _P["named"].search(text)
    return found[1] if found else ""


def _failures(test: str, failed: dict[str, str], notes: dict[str, str]) -> Iterator[Failure]:
    named = {gpu for gpu in (*failed, *notes) if gpu}
    for gpu in sorted(named, key=int) or (list(failed) + list(notes))[:1]:
        text = notes.get(gpu) or notes.get("", "")
        yield Failure(gpu, test, re.sub(r"\s+", " ", text).strip(), gpu in failed or "" in failed)


def recognise_diag_json(content: FileContent) -> bool:
    return bool(_P["json_head"].search(content.text[: 1 << 16]))


def judge_diag_json(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = content.document[:_MAX_CHARACTERS]
    try:
        tree, _ = json.JSONDecoder().raw_decode(text[text.find("{") :])
    except (ValueError, RecursionError) as error:
        return FileJudgement(unknown=f"its JSON is damaged or cut: {error}"[:200])
    failures = tuple(read_json(tree))[:_MAX_FAILURES]
    return FileJudgement(
        one_of_many(failure_finding(each, _COMMANDS) for each in failures), {"failures": len(failures)}
    )


def read_json(tree: Any) -> Iterator[Failure]:
    body = tree.get("DCGM Diagnostic") or tree.get("DCGM GPU Diagnostic") if isinstance(tree, dict) else None
    for category in _dicts(body, "test_categories"):
        for test in _dicts(category, "tests"):
            for result in _dicts(test, "results"):
                yield from _of_result(str(test.get("name", ""))[:80], result)


def _of_result(test: str, result: dict[str, Any]) -> Iterator[Failure]:
    failed = str(result.get("status", "")).lower().startswith("fail")
    warnings = _texts(result.get("warnings")) + _texts(result.get("warning"))
    if not failed and not (warnings and str(result.get("status", "")).lower().startswith("warn")):
        return
    text = re.sub(r"\s+", " ", "; ".join(warnings)).strip()
    whose = result.get("entity_id", result.get("gpu_id", result.get("gpu_ids", "")))
    gpus = re.findall(r"\d{1,4}", str(whose)) if result.get("entity_group", "GPU") == "GPU" else []
    named = [gpu for gpu in gpus if gpu in _P["named"].findall(text)]
    for gpu in named or gpus or [""]:
        yield Failure(gpu, test, text, failed)


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value] if value else []
    return [str(each.get("warning", "") if isinstance(each, dict) else each)[:600] for each in values]


def _dicts(tree: Any, name: str) -> list[dict[str, Any]]:
    return [each for each in list_of(tree, name) if isinstance(each, dict)]


DCGM_DIAG = FileFormat("dcgmi diag", recognise_diag, judge_diag)
DCGM_DIAG_JSON = FileFormat("dcgmi diag -j", recognise_diag_json, judge_diag_json)


_HEALTH_COMMANDS: Final = ("dcgmi health -c -j", "dcgmi diag -r 2")


def recognise_health(content: FileContent) -> bool:
    return is_table(content, _P["health_head"])


def judge_health(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = without_colours(content.text[:_MAX_CHARACTERS])
    overall = _P["overall"].search(text)
    state = overall[1] if overall else ""
    failures = tuple(read_report(text))[:_MAX_FAILURES]
    if not failures and state and not state.lower().startswith("health"):
        failures = (Failure("", "health", f"overall health: {state}", state.lower().startswith(("fail", "error"))),)
    findings = one_of_many(failure_finding(each, _HEALTH_COMMANDS) for each in failures)
    return FileJudgement(findings, {"overall_health": state}, "" if state else "it has no overall health: it is cut")


def read_report(text: str) -> Iterator[Failure]:
    """Yields what is not healthy, by GPU and system."""
    group, entity = "GPU", ""
    system = state = words = ""
    for line in (*text.splitlines(), "| -> 0 | Healthy |"):
        row = _P["health_row"].match(line) if len(line) < 1000 else None
        if row is None:
            continue
        name, value = row[1].strip(), row[2]
        if not name:
            words = joined(words, value)
            continue
        if system and state != "Healthy":
            yield _failure(entity, system, state, words)
        system = words = ""
        found, numbered = _P["state"].match(value.strip()), _P["entity"].match(name)
        if numbered:
            entity = numbered[2] if (numbered[1] or group) == "GPU" else f"{group} {numbered[2]}"
        elif (grouped := _P["group"].match(name)) and not value.strip():
            group, entity = grouped[1], ""
        elif found and (named := _P["system"].match(name)) and named[1] not in ("Overall Health", "GPU", "Errors"):
            system, state = named[1], found[1]


def _failure(entity: str, system: str, state: str, words: str) -> Failure:
    text = re.sub(r"\s+", " ", words).strip()
    return Failure(entity, system, text or state, state in ("Failure", "Error"))


DCGM_HEALTH = FileFormat("dcgmi health", recognise_health, judge_health)
