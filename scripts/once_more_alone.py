"""The end of `make test` where tests failed: runs those once more, alone, one after another.

    once_more_alone.py STATUS [TEST...]     STATUS is what pytest ended with

Many tests start daemons, trainings and virtual machines, three or more at a time on each core. A test that fails beside
the others and passes alone was short of CPU time; one that fails alone has found a defect. Both are printed; only the
second fails the run. Where many fail, it is not for want of time, and none is run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MAX_FAILED = 6
TESTS_FAILED = 1  # pytest's exit status; others mean that it could not run them
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(status: int, tests: list[str]) -> int:
    failed = _last_failed() if status == TESTS_FAILED else []
    if not 0 < len(failed) <= MAX_FAILED:
        return status
    print(f"\nFailed beside other tests, and now run alone:\n{_list_of(failed)}", flush=True)
    again = ["-m", "pytest", "--last-failed", "--last-failed-no-failures", "none", *tests]
    status = subprocess.run([sys.executable, *again]).returncode
    if status == 0:
        print(f"Passed alone, after they had failed beside other tests:\n{_list_of(failed)}")
    return status


def _last_failed() -> list[str]:
    return sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []


def _list_of(tests: list[str]) -> str:
    return "\n".join(f"    {test}" for test in tests)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2:]))
