"""How right `laggard diagnose` is on what people post: tests/data/field, whose truths were written by people who had
not read its rules; those of evidence-*, what several tools left of a job, before the rules that they call for. Beside
it stand two things that a user does instead: to look at whether anything failed at all (the exit status, as a scheduler
has it), and to search for the usual words.

    python bench/diagnose_quality.py [--list] [CASE...]

A case is right where the first finding is of the truth's kind, accuses no rank that the truth clears, names the rank,
host and device that it names, and says one of its words; partly where it names rank and host but not the kind or the
words; wrong where it accuses another rank, is of another kind, or is critical where nothing failed; silent where it
says nothing.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from common.refused import known

from laggard.diagnose.command import diagnose, diagnose_together
from laggard.diagnose.describe import render_diagnosis
from laggard.diagnose.folder import given_files
from laggard.diagnose.input_file import InputFile
from laggard.model import Finding, Severity
from laggard.wire.diagnosis import Diagnosis

FIELD: Final = Path(__file__).resolve().parents[1] / "tests" / "data" / "field"
PARTS: Final = ("jobs", "nodes", "evidence")
TOGETHER: Final = "evidence-"
"""The cases of several sources at once are given as a user gives them: the folder, or the one file in it."""
KEYWORDS: Final = re.compile(r"\b(?:error|fail(?:ed|ure)?|fatal|exception|killed|timed? ?out|oom|xid)\b", re.IGNORECASE)

_NETWORK: Final = ("network", "port", "config", "nccl_setup", "fabric")
_GPU: Final = ("gpu_hardware", "driver", "fabric", "pcie")
KINDS_OF_CODES: Final[Mapping[str, tuple[str, ...]]] = {
    "JOB_COLLECTIVE_TIMEOUT": ("hang", "network", "exception"),
    "JOB_NCCL_ERROR": _NETWORK,
    "JOB_GPU_OUT_OF_MEMORY": ("gpu_out_of_memory",),
    "JOB_HOST_OUT_OF_MEMORY": ("host_out_of_memory",),
    "JOB_CUDA_ERROR": ("exception", "config", *_GPU),
    "JOB_SEGFAULT": ("signal", "host_out_of_memory"),
    "JOB_KILLED": ("killed", "signal", "cancelled", "launcher", "scheduler", "host_out_of_memory", "network"),
    "JOB_PREEMPTED": ("scheduler", "time_limit", "cancelled"),
    "JOB_DATALOADER_DIED": ("data", "killed", "signal", "host_out_of_memory"),
    "JOB_DISK_FULL": ("disk_full", "host_out_of_memory", "nccl_setup"),
    "JOB_STORAGE_ERROR": ("filesystem", "data"),
    "JOB_RENDEZVOUS_FAILED": ("rendezvous", "network", "launcher", "scheduler", "config"),
    "JOB_NAN_LOSS": ("exception", "data"),
    "JOB_EXCEPTION": ("exception", "data", "config", "launcher"),
    "JOB_STALE_LOCK": ("hang",),
    "MOUNT_HUNG": ("filesystem", "hang"),
    "DISK_FULL": ("disk_full",),
    "MEMLOCK_LIMIT": ("nccl_setup", "config"),
    "OPEN_FILES_LIMIT": ("config",),
    "KERNEL_FAULT": ("driver", "hang", "filesystem"),
    "DISK_FAILED": ("filesystem",),
    "CLOCK_SOURCE_SLOW": ("config",),
    "IOMMU_ENABLED": ("config", "pcie"),
    "MACHINE_CHECK": ("memory_hardware", "gpu_hardware"),
    "GPU": _GPU,
    "RING": ("gpu_hardware", "hang", *_NETWORK),
    "NVLINK": ("fabric", "gpu_hardware"),
    "FABRIC": ("fabric", "driver", "nccl_setup"),
    "P2P": ("fabric", "gpu_hardware"),
    "RDMA": _NETWORK,
    "PCIE": ("pcie", "gpu_hardware"),
    "ACS": ("config", "pcie"),
    "TCP": ("nccl_setup", "network"),
    "TEST": ("measured_nothing", "config"),
    "HOST": ("host_out_of_memory", "memory_hardware"),
    "NODE": ("scheduler", "filesystem", "hang"),
    "RANK": ("slow",),
    "STEP": ("slow",),
    "POD": ("scheduler", "launcher", "driver", "config"),
    "NCCL": ("nccl_setup", "config", "network"),
}
"""The kinds of truths that a finding may be of, by its code or by the code's first word."""


class Judged(NamedTuple):
    worth: str
    why: str


def truths() -> Iterator[dict[str, Any]]:
    for part in PARTS:
        path = FIELD / f"truth_{part}.jsonl"
        if path.exists():
            yield from (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def inputs_of(case: str) -> list[str]:
    return sorted(str(path) for path in (FIELD / case).rglob("*") if path.is_file())


def diagnosis_of(case: str) -> Diagnosis:
    paths = inputs_of(case)
    if not case.startswith(TOGETHER):
        return diagnose([InputFile(path) for path in paths])
    return diagnose_together(given_files(paths if len(paths) == 1 else [str(FIELD / case)]))


def judge(truth: Mapping[str, Any], diagnosis: Diagnosis) -> Judged:
    critical = [found for found in diagnosis.findings if found.severity is Severity.CRITICAL]
    serious = critical or [found for found in diagnosis.findings if found.severity is Severity.WARNING]
    if truth["kind"] == "nothing":
        return Judged("wrong", f"critical {critical[0].code}") if critical else Judged("right", "quiet")
    if not serious:
        return Judged("silent", diagnosis.verdict.value)
    first, text = serious[0], render_diagnosis(diagnosis).casefold()
    accused = set() if first.summary.startswith(("waited ", "reported first")) else ranks_in(first.device)
    if accused & set(truth["not_ranks"]) or (truth["ranks"] and accused and not accused & set(truth["ranks"])):
        return Judged("wrong", f"accuses {first.device}")
    is_kind = any(fits(found, truth) for found in serious[:3])
    if not is_kind:
        return Judged("wrong", f"{first.code} is not of kind {truth['kind']}")
    lacks = [
        *([] if not truth["ranks"] or accused else [f"rank {truth['ranks']}"]),
        *(host for host in truth["hosts"][:1] if host.casefold() not in text),
        *(device for device in truth["devices"][:1] if not names(device, text)),
        *([] if not truth["must_say"] or says(truth["must_say"], text) else [f"one of {truth['must_say']}"]),
    ]
    return Judged("partly", f"lacks {', '.join(lacks)}") if lacks else Judged("right", "")


def names(device: str, text: str) -> bool:
    """Whether the text names the device: `GPU 5` is how GPU5 of a truth is written."""
    return device.casefold() in text or re.sub(r"^gpu(?=\d)", "gpu ", device.casefold()) in text


def fits(found: Finding, truth: Mapping[str, Any]) -> bool:
    allowed = KINDS_OF_CODES.get(found.code) or KINDS_OF_CODES.get(found.code.partition("_")[0], ())
    return bool({truth["kind"], *truth.get("kind_also", ())} & set(allowed))


def ranks_in(device: str) -> set[int]:
    """The ranks that a finding's device names: `rank 3 on n1`, `ranks 0-2 and 5`, `task 5`; those within a group are
    none."""
    match = re.match(r"(?:local rank|ranks?|task) ([\d, -]+(?: and [\d-]+)?)(?! of group)", device)
    if match is None or " of group" in device:
        return set()
    spans = [span.split("-") for span in re.findall(r"\d+-\d+|\d+", match[1])]
    return {rank for span in spans for rank in range(int(span[0]), int(span[-1]) + 1)}


def says(words: Sequence[str], text: str) -> bool:
    flat = re.sub(r"\s+", " ", text)
    return any(word.casefold() in flat for word in words)


def baselines(truth: Mapping[str, Any], paths: Sequence[str]) -> tuple[bool, bool]:
    """Whether the two ways of a user are right that something failed, or that nothing did."""
    failed = truth["kind"] != "nothing"
    text = "".join(Path(path).read_bytes().decode(errors="replace") for path in paths)
    return failed, bool(KEYWORDS.search(text)) == failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="each case that is not right")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    by_kind: dict[str, Counter[str]] = {}
    always = found = 0
    there = list(truths())
    known(options.cases, (truth["case"] for truth in there), "case")
    rows = [truth for truth in there if not options.cases or truth["case"] in options.cases]
    for truth in rows:
        paths = inputs_of(truth["case"])
        judged = judge(truth, diagnosis_of(truth["case"]))
        by_kind.setdefault(truth["kind"], Counter())[judged.worth] += 1
        exit_status, keywords = baselines(truth, paths)
        always, found = always + exit_status, found + keywords
        if options.list and judged.worth != "right":
            print(f"{judged.worth:7} {truth['case']} ({truth['kind']}): {judged.why}")
    show(by_kind, len(rows), always, found)


def show(by_kind: Mapping[str, Counter[str]], count: int, always: int, found: int) -> None:
    worths = ("right", "partly", "wrong", "silent")
    print("\n| kind | " + " | ".join(worths) + " |\n|---" * 1 + "|---" * len(worths) + "|")
    for kind, counts in sorted(by_kind.items()):
        print(f"| {kind} | " + " | ".join(str(counts[worth]) for worth in worths) + " |")
    total = sum(by_kind.values(), Counter())
    print("| **all** | " + " | ".join(f"**{total[worth]}**" for worth in worths) + " |")
    shares = ", ".join(f"{total[worth] / max(count, 1):.0%} {worth}" for worth in worths)
    print(f"\n{count} cases: {shares}.")
    print(
        f"That something failed, or nothing: exit status alone {always / count:.0%}, usual words {found / count:.0%}."
    )


if __name__ == "__main__":
    sys.exit(main())
