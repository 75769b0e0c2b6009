"""The end of `make test`: runs tests that failed once more, alone, and keeps which they were.

    once_more_alone.py STATUS               STATUS is what pytest ended with
    once_more_alone.py --history FILE...    what runs kept: fails where a test needs a second try again and again

Many tests start daemons, trainings and virtual machines, three or more at a time on each core. A test that fails beside
the others and passes alone was short of CPU time, and did not wait for a condition but for a time; one that fails alone
has found a defect. Both are printed; only the second fails the run. Where more than five fail, none is run again.

out/second_try.json says of each run which tests had a second try: none, as a rule. A test that passes so in two of ten
runs is a defect of its own, which `--history` finds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

MAX_AGAIN = 5
TESTS_FAILED = 1  # pytest's exit status; others mean that it could not run them
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
KEPT = Path("out/second_try.json")
RUNS = 10
TOO_OFTEN = 2


def main(words: Sequence[str]) -> int:
    if words and words[0] == "--history" and words[1:]:
        return history(words[1:])
    if words and words[0].isdecimal():
        return end_run(int(words[0]))
    print(
        f"once_more_alone: STATUS or --history FILE... is wanted, not {' '.join(words) or 'nothing'}", file=sys.stderr
    )
    return 2


def end_run(status: int) -> int:
    """The run's exit status, once those of its tests that failed have been tried again."""
    failed = _last_failed() if status == TESTS_FAILED else []
    tries = [] if len(failed) > MAX_AGAIN else _try_again(failed)
    run = {"date": _now(), "commit": _commit(), "failed": len(failed), "second_tries": tries}
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps(run, indent=2) + "\n")
    if passed := [each["test"] for each in tries if each["passed"]]:
        print(f"Passed alone, after they had failed beside other tests:\n{_list_of(passed)}")
    if len(failed) > MAX_AGAIN:
        print(f"{len(failed)} tests failed; up to {MAX_AGAIN} would have been run again, alone")
    return 0 if failed and len(passed) == len(failed) else status


def _try_again(failed: Sequence[str]) -> list[dict[str, Any]]:
    """Runs each alone, and returns what is kept of it: load averages are those of 1, 5 and 15 minutes before."""
    if failed:
        print(f"\nFailed beside other tests, and now run alone:\n{_list_of(failed)}", flush=True)
    tries = []
    for test in failed:
        load, date, began = os.getloadavg(), _now(), time.monotonic()
        status = subprocess.run([sys.executable, "-m", "pytest", test]).returncode
        tries.append(
            {
                "test": test,
                "date": date,
                "load_average": [round(value, 2) for value in load],
                "seconds": round(time.monotonic() - began, 1),
                "passed": status == 0,
            }
        )
    return tries


def history(files: Sequence[str]) -> int:
    """Reads what the last ten runs kept, of these files. Fails where a test passed alone in two of them; a test's
    parameters are left out of its name, since the code that waits is the same."""
    runs = sorted((_read(Path(file)) for file in files), key=lambda run: str(run["date"]))[-RUNS:]
    needed: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for name in {each["test"].partition("[")[0] for each in run["second_tries"] if each["passed"]}:
            needed.setdefault(name, []).append(run)
    for name, of_runs in sorted(needed.items()):
        told = ", ".join(f"{run['date']} at {run['commit']}" for run in of_runs)
        word = "a defect: it waits for a time, not for a condition" if len(of_runs) >= TOO_OFTEN else "once"
        print(f"{name}: a second try in {len(of_runs)} of {len(runs)} runs ({told}): {word}")
    if not needed:
        print(f"no test passed at a second try in {len(runs)} runs")
    return 1 if any(len(of_runs) >= TOO_OFTEN for of_runs in needed.values()) else 0


def _read(file: Path) -> dict[str, Any]:
    try:
        run = json.loads(file.read_text())
        for each in run["second_tries"]:
            str(each["test"]), each["passed"]
        return {"date": run["date"], "commit": run["commit"], "second_tries": run["second_tries"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"once_more_alone: {file} is not what a run keeps in {KEPT}: {error!r}") from None


def _last_failed() -> list[str]:
    return sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []


def _commit() -> str:
    """Ends in -dirty where files differ from it; empty outside a repository."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _list_of(tests: Iterable[str]) -> str:
    return "\n".join(f"    {test}" for test in tests)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
