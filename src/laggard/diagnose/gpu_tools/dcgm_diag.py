"""The formats `dcgmi diag`, as text and as JSON, of DCGM 2, 3 and 4.

The text is a table of tests: 2 and 3 have `Fail - GPU: 3` with a row `Warning`, 4 has rows `GPU3: Fail`
and `Warning: GPU3`. Long words are broken over rows at any character. The JSON has results by GPU: `gpu_ids` in version
2, `gpu_id` in 3, `entity_id` in 4.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.gpu_tools.dcgm_faults import Failure, failure_finding, joined
from laggard.diagnose.gpu_tools.mostly import is_mostly, is_table
from laggard.diagnose.parts.terminal import without_colours

_MAX_CHARACTERS: Final = 4 << 20
_MAX_FAILURES: Final = 256
_HEAD: Final = re.compile(r"^\| Diagnostic +\| Result +\|", re.MULTILINE)
_ROW = re.compile(r"\| ?(.*?) *\| ?(.*?)\|\s*$")
_FAILED = re.compile(r"Fail(?:ed)?(?: - (?:All|GPUs?: ?(?P<gpus>[\d, ]+)))?\s*$", re.IGNORECASE)
_OF_A_GPU = re.compile(r"GPU ?(\d{1,3}): (Pass|Fail|Skip|Warn)\w*\s*$")
_NOTE = re.compile(r"(?:Warning|Error)(?:: ?GPU ?(?P<gpu>\d{1,3}))?$")
_NAMED = re.compile(r"\bGPU (\d{1,3})\b")
_PASSED: Final = re.compile(r"\|[^|\n]*: ?(?:Pass|Skip)\w*|\| (?:Pass|Skip)\w*\b")
_COMMANDS: Final = ("dcgmi diag -r 3 -v", "dcgmi health -c")
_JSON_HEAD: Final = re.compile(r'"DCGM (?:GPU )?Diagnostic"')


def recognise(content: FileContent) -> bool:
    text = without_colours(content.text[: 1 << 16])
    return bool(_HEAD.search(text)) and is_mostly(text, is_table)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = without_colours(content.text[:_MAX_CHARACTERS])
    failures = tuple(read_table(text))[:_MAX_FAILURES]
    unknown = "" if failures or _PASSED.search(text) else "it has no result of a test: paste all of it"
    findings = tuple(failure_finding(each, _COMMANDS) for each in failures)
    return FileJudgement(findings, {"failures": len(failures)}, unknown)


def read_table(text: str) -> Iterator[Failure]:
    """Yields what failed or was warned of: a note belongs to the test above it, and to the GPU that it names."""
    test = note = ""
    failed: dict[str, str] = {}
    notes: dict[str, str] = {}
    for line in (*text[_start(text) :].splitlines(), "| end | end |"):
        row = _ROW.match(line) if len(line) < 1000 else None
        if row is None or line.startswith("|-----"):
            note = ""
            continue
        name, result = row[1].strip(), row[2]
        if name and (found := _NOTE.match(name)):
            note = found["gpu"] or _gpu_named(result)
            notes[note] = joined(notes.get(note, ""), result)
        elif name:
            yield from _failures(test, failed, notes)
            test, note, failed, notes = name, "", {}, {}
            failed.update(_failed(result))
        elif of_gpu := _OF_A_GPU.match(result.strip()):
            note = ""
            failed.update({of_gpu[1]: ""} if of_gpu[2] == "Fail" else {})
        elif _FAILED.match(result):
            failed.update(_failed(result))
        elif note or "" in notes:
            notes[note] = joined(notes.get(note, ""), result)


def _start(text: str) -> int:
    head = _HEAD.search(text)
    return head.end() if head else 0


def _failed(result: str) -> dict[str, str]:
    found = _FAILED.match(result.strip())
    if found is None:
        return {}
    return dict.fromkeys(re.findall(r"\d+", found["gpus"] or "") or [""], "")


def _gpu_named(text: str) -> str:
    found = _NAMED.search(text)
    return found[1] if found else ""


def _failures(test: str, failed: dict[str, str], notes: dict[str, str]) -> Iterator[Failure]:
    named = {gpu for gpu in (*failed, *notes) if gpu}
    for gpu in sorted(named, key=int) or (list(failed) + list(notes))[:1]:
        text = notes.get(gpu) or notes.get("", "")
        yield Failure(gpu, test, re.sub(r"\s+", " ", text).strip(), gpu in failed or "" in failed)


def recognise_json(content: FileContent) -> bool:
    return bool(_JSON_HEAD.search(content.text[: 1 << 16]))


def judge_json(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = content.text[:_MAX_CHARACTERS]
    try:
        tree, _ = json.JSONDecoder().raw_decode(text[text.find("{") :])
    except (ValueError, RecursionError) as error:
        return FileJudgement(unknown=f"its JSON is damaged or cut: {error}"[:200])
    failures = tuple(read_json(tree))[:_MAX_FAILURES]
    return FileJudgement(tuple(failure_finding(each, _COMMANDS) for each in failures), {"failures": len(failures)})


def read_json(tree: Any) -> Iterator[Failure]:
    body = tree.get("DCGM Diagnostic") or tree.get("DCGM GPU Diagnostic") if isinstance(tree, dict) else None
    for category in _dicts(_get(body, "test_categories")):
        for test in _dicts(_get(category, "tests")):
            for result in _dicts(_get(test, "results")):
                yield from _of_result(str(test.get("name", ""))[:80], result)


def _of_result(test: str, result: dict[str, Any]) -> Iterator[Failure]:
    failed = str(result.get("status", "")).lower().startswith("fail")
    warnings = _texts(result.get("warnings")) + _texts(result.get("warning"))
    if not failed and not (warnings and str(result.get("status", "")).lower().startswith("warn")):
        return
    text = re.sub(r"\s+", " ", "; ".join(warnings)).strip()
    whose = result.get("entity_id", result.get("gpu_id", result.get("gpu_ids", "")))
    gpus = re.findall(r"\d{1,4}", str(whose)) if result.get("entity_group", "GPU") == "GPU" else []
    named = [gpu for gpu in gpus if gpu in _NAMED.findall(text)]
    for gpu in named or gpus or [""]:
        yield Failure(gpu, test, text, failed)


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value] if value else []
    return [str(each.get("warning", "") if isinstance(each, dict) else each)[:600] for each in values]


def _get(tree: Any, name: str) -> Any:
    return tree.get(name) if isinstance(tree, dict) else None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


DCGM_DIAG = FileFormat("dcgmi diag", recognise, judge)
DCGM_DIAG_JSON = FileFormat("dcgmi diag -j", recognise_json, judge_json)
