"""Checks laggard on this machine's real GPUs: its times, its readings, its hooks in real trainings, its verdicts.

Every part runs in a process of its own and needs no other part. A part that cannot run gives the reason, and the next
one runs. The first part needs nothing but torch. At the end stands a table, and beside it everything as JSON: send
that file with a bug report. It holds versions, GPU models and times, and no host name, address or serial number.
Exit status: 0 where all that ran is right, whatever the GPUs' health; 1 where something in laggard is not; 2 where
nothing could be checked, as on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_check.ending import PARENT
from gpu_check.outcome import FAIL, NOT_RUN, OK, REPOSITORY, Outcome, python_path
from gpu_check.plan import PARTS, Part, lease_plan

SCHEMA = "laggard.gpu-check/1"
ARCHIVE = "gpu-check.tar.gz"
MAX_PACKED = 16 << 20  # bytes of a file in the archive: traces of a profiler may be large
REHEARSED_TIMES = 8  # as long as on a GPU a part may take on a CPU that does other work
TAIL = 4000  # characters of a part's output that are kept in the JSON document


class PartResult(NamedTuple):
    """`not_run`: why the part could not run; None where it ran. `tail`: the end of its output, where it failed."""

    part: str
    seconds: float
    not_run: str | None
    outcomes: tuple[Outcome, ...]
    tail: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    out = Path(arguments.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    chosen = [part for part in PARTS if not arguments.part or part.name in arguments.part]
    if arguments.lease:
        print(lease_plan(), flush=True)
        chosen = [part for part in PARTS if part.call and str(part.call) in arguments.lease]
    target = out / "gpu-check.json"
    results = [] if arguments.part else ended_before(target, arguments.rehearse)
    ended = {each.part for each in results}
    for part in (each for each in chosen if each.name not in ended):
        print(f"gpu-check: {part.name} ...", file=sys.stderr, flush=True)
        results.append(run_part(part, out, arguments.rehearse))
        keep(results, target, out, arguments.rehearse)
    if arguments.lease == "plan":
        return 0
    print(table(results))
    print(f"gpu-check: {sentence(results)} Everything is in {target}, and with all files in {out / ARCHIVE}.")
    return exit_status(results)


def ended_before(target: Path, rehearse: bool) -> list[PartResult]:
    """The parts that an earlier run into the same folder ended, without a failure: they are not run again."""
    try:
        told = json.loads(target.read_text())
        parts = told["parts"] if told["schema"] == SCHEMA and told["rehearsal"] == rehearse else []
        found = [
            PartResult(it["part"], it["seconds"], it["not_run"], tuple(Outcome(**each) for each in it["outcomes"]))
            for it in parts
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [each for each in found if each.not_run is None and all(it.good for it in each.outcomes)]


def keep(results: Sequence[PartResult], target: Path, out: Path, rehearse: bool) -> None:
    """Writes the document, the table, and an archive of all files, each in one piece: a machine that is lent may be
    taken back at any moment."""
    whole = document(results, exit_status(results), rehearse)
    replace(target, json.dumps(whole, indent=1).encode() + b"\n")
    replace(out / "table.txt", table(results).encode() + b"\n")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted(out.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.name != ARCHIVE and path.stat().st_size < MAX_PACKED:
                archive.add(path, Path("gpu-check") / path.relative_to(out))
    replace(out / ARCHIVE, packed.getvalue())


def replace(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    names = ", ".join(part.name for part in PARTS)
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--out",
        metavar="DIR",
        default=str(REPOSITORY / "out" / "gpu-check"),
        help="for all files; default: %(default)s",
    )
    parser.add_argument(
        "--part", metavar="NAME", action="append", choices=[part.name for part in PARTS], help=f"run this part: {names}"
    )
    parser.add_argument(
        "--lease",
        metavar="CALL",
        choices=("1", "2", "12", "plan"),
        help="print what a lease has time for, and run it: 1 or 2, one of its two calls; 12: both; plan: neither",
    )
    parser.add_argument("--rehearse", action="store_true", help="run on the CPU what can run there, to try gpu-check")
    return parser.parse_args(argv)


def run_part(part: Part, out: Path, rehearse: bool) -> PartResult:
    """Runs the part in a process of its own. Never raises."""
    folder = out / part.name
    folder.mkdir(parents=True, exist_ok=True)
    answer = folder / "outcomes.json"
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", "gpu_check.part", part.module, str(folder), *part.words]
    environ = {**os.environ, "PYTHONPATH": python_path(), PARENT: str(os.getpid())}
    if rehearse:
        environ["GPU_CHECK_REHEARSAL"] = "1"
    began = time.monotonic()
    status, output = run_limited(command, environ, part.seconds * (REHEARSED_TIMES if rehearse else 1))
    seconds = round(time.monotonic() - began, 1)
    try:
        said = json.loads(answer.read_text())
    except (OSError, ValueError):
        said = {}
    outcomes = tuple(Outcome(*each) for each in said.get("outcomes", ()))
    if not said.get("complete"):
        ended = "did not end in its time" if status is None else f"ended with {status}"
        outcomes = (*outcomes, Outcome(part.name, FAIL, f"the part {ended}: {last_line(output)}"))
    failed = any(each.status == FAIL for each in outcomes)
    return PartResult(part.name, seconds, said.get("not_run"), outcomes, output[-TAIL:] if failed else "")


def run_limited(command: Sequence[str], environ: Mapping[str, str], seconds: float) -> tuple[int | None, str]:
    """Returns the exit status, None where the time limit ended it, and what the command printed. The command has a
    process group of its own, so that ranks which hang on a GPU end with it."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env=dict(environ),
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired as expired:
        end_process_group(process.pid)
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # stuck in the driver: no signal ends it
            output = expired.output if isinstance(expired.output, str) else ""
        return None, output
    except BaseException:
        end_process_group(process.pid)
        raise


def end_process_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def exit_status(results: Sequence[PartResult]) -> int:
    statuses = {each.status for result in results for each in result.outcomes}
    return 1 if FAIL in statuses else 0 if OK in statuses else 2


def sentence(results: Sequence[PartResult]) -> str:
    statuses = [each.status for result in results for each in result.outcomes]
    left_out = sum(result.not_run is not None for result in results)
    return (
        f"{statuses.count(OK)} checks are right, {statuses.count(FAIL)} are not, "
        f"{left_out} of {len(results)} parts did not run."
    )


def table(results: Sequence[PartResult]) -> str:
    rows = [("part", "result", "check", "")]
    for result in results:
        if result.not_run is not None:
            rows.append((result.part, NOT_RUN, "", result.not_run))
        rows += [(result.part, each.status, each.check, each.text) for each in result.outcomes]
    widths = [max(len(row[place]) for row in rows) for place in range(3)]
    return "\n".join(
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3])).rstrip()
        for row in rows
    )


def document(results: Sequence[PartResult], status: int, rehearse: bool) -> dict[str, Any]:
    parts = [
        {
            "part": result.part,
            "seconds": result.seconds,
            "not_run": result.not_run,
            "outcomes": [each._asdict() for each in result.outcomes],
            **({"output_tail": result.tail} if result.tail else {}),
        }
        for result in results
    ]
    return {"schema": SCHEMA, "rehearsal": rehearse, "exit_status": status, "parts": parts}
