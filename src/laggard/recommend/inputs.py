"""The files of `laggard recommend` and `tune` to what is known of the job: all that `diagnose` reads, reports, rings,
and a recording.

Diagnosing is a process of its own: its formats are many times this command, and none of them is needed here.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from laggard.deepspeed_config import find_problems, parse_config, read_json
from laggard.kit.errors import EXIT_USAGE, UsageError
from laggard.kit.processes import own_process
from laggard.model import REPORT_SCHEMA, Finding, Report
from laggard.nccl.environment_text import parse_environment
from laggard.nccl.variables import may_be_shown, parse_version
from laggard.recommend.advice.situation import Situation, with_job
from laggard.recording.judged import judge
from laggard.recording.kinds import kind_of
from laggard.recording.reader import read_recording
from laggard.rings.document import RING_SCHEMA, Ring
from laggard.wire import WireError, decode
from laggard.wire.diagnosis import Diagnosis

STANDARD_INPUT: Final = "-"
_MAX_BYTES: Final = 1 << 22
"""The most of a file that is looked at here: configurations, environments and laggard's own documents are smaller."""


class GivenFiles:
    """The files by path; standard input is read once, wholly, before anything else is."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._given = sys.stdin.buffer.read() if STANDARD_INPUT in paths else b""

    def text(self, path: str) -> str:
        """The text of a file as it lies there; empty if it is no regular file, too large, or no text. Raises UsageError
        if there is none."""
        if path == STANDARD_INPUT:
            data = self._given
        else:
            try:
                data = _read(path)
            except FileNotFoundError:
                raise UsageError(f"no file {path}") from None
            except OSError as error:
                raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
        return data.decode(errors="replace") if len(data) <= _MAX_BYTES else ""

    def document(self, path: str) -> Mapping[str, object]:
        """The JSON object in a file; empty: there is none."""
        tree = read_json(self.text(path))
        return tree if isinstance(tree, dict) else {}

    def diagnosed(self, paths: Sequence[str]) -> Diagnosis:
        """What `laggard diagnose` says of these files. Raises UsageError."""
        command = own_process("laggard", "diagnose", "--format", "json", "--", *paths)
        done = subprocess.run(command, input=self._given, capture_output=True, check=False)
        try:
            return decode(done.stdout, Diagnosis)
        except WireError:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("laggard: ")
            if done.returncode != EXIT_USAGE:
                said = f"laggard diagnose ended with status {done.returncode}: {said}"
            raise UsageError(said) from None


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for its writer
    with open(descriptor, "rb") as file:
        return file.read(_MAX_BYTES + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


class Inputs(NamedTuple):
    situation: Situation
    unknown: tuple[str, ...]
    """The parts of the files that could not be judged."""
    deepspeed_path: str | None


def read_inputs(paths: Sequence[str]) -> Inputs:
    """Raises UsageError for what is no file, and for several DeepSpeed configurations."""
    recordings, others = _split(paths)
    files = GivenFiles(others)
    documents, rest = _own_documents(files)
    diagnosis = files.diagnosed(rest) if rest else None
    situation = _with_facts(
        _from_diagnosis(diagnosis, documents, files), [each for each in documents if isinstance(each, Report)]
    )
    if recordings:
        situation = _with_recording(situation, recordings)
    unknown = [f"{file.path}: {file.unknown}" for file in diagnosis.files if file.unknown] if diagnosis else []
    configs = _paths(diagnosis, "DeepSpeed config")
    if len(configs) > 1:
        raise UsageError(f"give one DeepSpeed configuration: {configs[0]} and {configs[1]} are two")
    if not configs:
        return Inputs(situation, tuple(unknown), None)
    document = files.document(configs[0])
    return Inputs(
        situation._replace(
            deepspeed=parse_config(document),
            deepspeed_document=document,
            deepspeed_problems=find_problems(document, situation.ranks),
        ),
        tuple(unknown),
        configs[0],
    )


def _split(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the recordings, and the other files."""
    recordings = [path for path in paths if path != STANDARD_INPUT and _is_recording(path)]
    return recordings, [path for path in paths if path not in recordings]


def _is_recording(path: str) -> bool:
    return os.path.isdir(path) or (os.path.isfile(path) and kind_of(Path(path)) is not None)


def _own_documents(files: GivenFiles) -> tuple[list[Report | Ring], list[str]]:
    """Returns the documents of `healthcheck` and `ring`, and the paths of the others."""
    documents: list[Report | Ring] = []
    rest = []
    for path in files.paths:
        tree = files.document(path)
        schema = tree.get("schema")
        types: dict[Any, type[Report] | type[Ring]] = {REPORT_SCHEMA: Report, RING_SCHEMA: Ring}
        if schema not in types:
            rest.append(path)
            continue
        try:
            documents.append(msgspec.convert(tree, types[schema]))
        except msgspec.ValidationError as error:
            raise UsageError(f"{path} is no {schema}: {error}") from None
    return documents, rest


def _from_diagnosis(diagnosis: Diagnosis | None, documents: Iterable[Report | Ring], files: GivenFiles) -> Situation:
    findings: list[Finding] = [found for document in documents for found in document.findings]
    if diagnosis is None:
        return Situation(tuple(findings))
    findings += diagnosis.findings
    facts = [each for each in diagnosis.facts.values() if isinstance(each, dict)]
    variables: dict[str, str] = {}
    for path in _paths(diagnosis, "environment"):
        variables |= parse_environment(files.text(path))
    versions = sorted(parse_version(text) for each in facts for text in each.get("nccl_versions", ()))
    hosts = {host for each in facts for host in each.get("hosts", ())}
    return Situation(
        findings=tuple(findings),
        environment=_of_nccl(variables),
        environment_known=bool(variables),
        nccl_version=versions[0] if versions else (),
        networks=tuple(dict.fromkeys(name for each in facts for name in each.get("networks", ()))),
        link_layers=frozenset(layer for each in facts for layer in each.get("link_layers", ())),
        kind_of_node={host: kind for each in facts for host, kind in each.get("nic_kinds", {}).items()},
        nodes=len(hosts) or None,
        ranks=max((each["ranks"] for each in facts if isinstance(each.get("ranks"), int)), default=None),
    )


def _of_nccl(variables: Mapping[str, str]) -> dict[str, str]:
    """NCCL's variables, and of those whose value may be a secret the name alone: what is known is shown and written."""
    own = {name: value for name, value in variables.items() if name.startswith("NCCL_")}
    return {name: value if may_be_shown(name) else "" for name, value in own.items()}


def _with_facts(situation: Situation, reports: Sequence[Report]) -> Situation:
    """Takes what the nodes' reports say of themselves. What they say may have any form: only what is right counts."""
    by_node = [set(found) for report in reports if (found := list(_priorities(report)))]
    products = {_facts(report, "identity").get("product") for report in reports}
    return situation._replace(
        lossless_priorities=frozenset(set.intersection(*by_node)) if by_node else frozenset(),
        products=frozenset(product for product in products if isinstance(product, str) and product),
    )


def _priorities(report: Report) -> Iterator[int]:
    """Yields the priorities for which all RoCE ports of a node have flow control."""
    ports = _facts(report, "roce_pfc").get("priorities")
    lists = [each for each in ports.values() if isinstance(each, list)] if isinstance(ports, dict) else []
    yield from (priority for priority in range(8) if lists and all(priority in each for each in lists))


def _facts(report: Report, probe: str) -> Mapping[str, Any]:
    found = report.facts.get(probe)
    return found if isinstance(found, dict) else {}


def _paths(diagnosis: Diagnosis | None, kind: str) -> list[str]:
    return [file.path for file in diagnosis.files if file.kind == kind] if diagnosis else []


def _with_recording(situation: Situation, paths: Sequence[str]) -> Situation:
    recording = read_recording(paths)
    if recording.arrivals is not None:
        return situation
    return with_job(situation, recording.timings, judge(recording).location.culprits)
