"""The format `dcgmi health -c`: a tree of GPUs and their systems, each with its state and, below, the words for it.

DCGM 2 to 4 write a group (`GPU`, `Switch`, `CPU`, `ConnectX`), below it `-> 5`, `-> Errors` and `-> Memory system`;
older releases write `GPU ID: 5` and `Memory`. Source: DCGM, dcgmi/Health.cpp and dcgmlib's names of entity groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.gpu_tools.dcgm_faults import Failure, failure_finding, joined
from laggard.diagnose.gpu_tools.mostly import is_mostly, is_table
from laggard.diagnose.parts.terminal import without_colours

_MAX_CHARACTERS: Final = 4 << 20
_MAX_FAILURES: Final = 256
_HEAD: Final = re.compile(r"^\| Health Monitor Report", re.MULTILINE)
_ROW = re.compile(r"\|(.*?)\| ?(.*?)\|\s*$")
_OVERALL = re.compile(r"\| Overall Health:? *(?:\||:)? *(\w+)")
_ENTITY = re.compile(r"(?:-> *|(GPU)(?: ID)?:? *)(\d{1,3})$")
_GROUP = re.compile(r"(GPU|vGPU|Switch|NvSwitch|CPU|CPU_CORE|ConnectX|GPU_I|GPU_CI|LINK)s?$", re.IGNORECASE)
_SYSTEM = re.compile(r"(?:-> *)?([A-Z][\w /-]*?(?: system)?)$")
_STATE = re.compile(r"(Healthy|Warning|Failure|Error)\w*\s*$")
_COMMANDS: Final = ("dcgmi health -c -j", "dcgmi diag -r 2")


def recognise(content: FileContent) -> bool:
    text = without_colours(content.text[: 1 << 16])
    return bool(_HEAD.search(text)) and is_mostly(text, is_table)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = without_colours(content.text[:_MAX_CHARACTERS])
    overall = _OVERALL.search(text)
    state = overall[1] if overall else ""
    failures = tuple(read_report(text))[:_MAX_FAILURES]
    if not failures and state and not state.lower().startswith("health"):
        failures = (Failure("", "health", f"overall health: {state}", state.lower().startswith(("fail", "error"))),)
    findings = tuple(failure_finding(each, _COMMANDS) for each in failures)
    return FileJudgement(findings, {"overall_health": state}, "" if state else "it has no overall health: it is cut")


def read_report(text: str) -> Iterator[Failure]:
    """Yields what is not healthy, by GPU and system."""
    group, entity = "GPU", ""
    system = state = words = ""
    for line in (*text.splitlines(), "| -> 0 | Healthy |"):
        row = _ROW.match(line) if len(line) < 1000 else None
        if row is None:
            continue
        name, value = row[1].strip(), row[2]
        if not name:
            words = joined(words, value)
            continue
        if system and state != "Healthy":
            yield _failure(entity, system, state, words)
        system = words = ""
        found, numbered = _STATE.match(value.strip()), _ENTITY.match(name)
        if numbered:
            entity = numbered[2] if (numbered[1] or group) == "GPU" else f"{group} {numbered[2]}"
        elif (grouped := _GROUP.match(name)) and not value.strip():
            group, entity = grouped[1], ""
        elif found and (named := _SYSTEM.match(name)) and named[1] not in ("Overall Health", "GPU", "Errors"):
            system, state = named[1], found[1]


def _failure(entity: str, system: str, state: str, words: str) -> Failure:
    text = re.sub(r"\s+", " ", words).strip()
    return Failure(entity, system, text or state, state in ("Failure", "Error"))


DCGM_HEALTH = FileFormat("dcgmi health", recognise, judge)
