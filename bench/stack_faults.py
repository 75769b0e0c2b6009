"""Real trainings, each with a rank that waits at a known line of its user's code, and whether laggard names that line.

    python bench/stack_faults.py                     all that has no result yet; then the table
    python bench/stack_faults.py --case http-ddp     again where it has one
    python bench/stack_faults.py --list
    python bench/stack_faults.py --table             of the results there are

The user's code is bench/stack_faults/: each line that a fault lets a rank wait in ends in `# fault: NAME`. A rank that
is slow is so in every step; one that hangs does so in step 20 (or before the first), and its job is killed after a
while: by SIGTERM to the launcher, as a scheduler does, or by SIGKILL to all of its processes at once. Each is judged
three times: live, by a collector and an agent beside it (the last answer before its end, and every other that named a
line); from its recording; and, where it stood still, from the folder hang-TIME of its recording alone. The results are
lines in out/stack_faults/results.jsonl, beside each case's answers and its recording.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common.resumed import results
from common.scratch import scratch
from stack_jobs.cases import BY_NAME, Case, places
from stack_jobs.daemons import Daemons, Looks
from stack_jobs.job import Job
from stack_jobs.judge import judged
from stack_jobs.report import befell, table
from stack_jobs.surroundings import server, slow_share

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "out" / "stack_faults"


def run(case: Case, address: str, kept: Path) -> dict[str, Any]:
    """Runs the job. Returns what happened, and what was said of it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="stack-faults-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        share = slow_share(folder / "slow_share") if case.fault == "log" else contextlib.nullcontext()
        daemons = Daemons(folder)
        looks = Looks(daemons)
        looks.start()
        with share:
            job = Job(case, folder, address)
            try:
                how = job.watch(looks.stop)
            finally:
                looks.stop()
                daemons.end()
                job.end()
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        shutil.copy(folder / "output", kept)
        if (folder / "recording").exists():
            shutil.copytree(folder / "recording", kept / "recording")
    text, location = locate(kept / "recording", "text"), locate(kept / "recording", "json")
    (kept / "said.txt").write_text(text)
    (kept / "said.json").write_text(location)
    (kept / "live.json").write_text(json.dumps(looks.seen))
    if folders := sorted((kept / "recording").rglob("hang-*")):
        (kept / "folder.json").write_text(locate(folders[-1], "json"))
    load = round(os.getloadavg()[0])
    return {"how": how, "seconds": round(time.monotonic() - began), "load": load, "expected": places(case.fault)}


def locate(recording: Path, form: str) -> str:
    words = [sys.executable, "-P", "-m", "laggard", "locate", "--trace", str(recording), "--format", form]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if form == "text" else done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(BY_NAME), metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    if options.list:
        print("\n".join(BY_NAME))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    journal = options.out / "results.jsonl"
    done = results(journal, str)
    wanted = [BY_NAME[name] for name in options.case or [name for name in BY_NAME if name not in done]]
    with server() as address:
        for case in () if options.table else wanted:
            happened = run(case, address, options.out / case.name)
            with journal.open("a") as file:
                print(json.dumps({"case": [case.name], **happened}), file=file)
            marks = judged(case, options.out / case.name, happened["expected"])
            said = "; ".join(f"{way} {one.mark} {one.why}".rstrip() for way, one in marks.items())
            print(f"{case.name}: {said}; {befell(happened)}", flush=True)
    print(table(options.out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
