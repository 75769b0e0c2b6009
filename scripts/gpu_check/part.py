"""Runs one part of gpu-check in this process, and leaves its outcomes in a file: `python -m gpu_check.part`.

The outcomes are written one by one, so that a part that crashes the process has left what it had found.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from gpu_check.ending import end_with_parent
from gpu_check.outcome import CannotRun, Context, Outcome, needs_module


def main() -> int:
    end_with_parent()
    module, out, *words = sys.argv[1:]
    context = Context(Path(out), os.environ.get("GPU_CHECK_REHEARSAL") == "1")
    outcomes: list[Outcome] = []
    not_run = None
    try:
        for outcome in importlib.import_module(f"gpu_check.parts.{module}").run(context, *words):
            outcomes.append(outcome)
            write(context.out, outcomes, not_run, complete=False)
    except CannotRun as reason:
        not_run = str(reason)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("laggard", "gpu_check"):
            raise
        not_run = needs_module(error)
    write(context.out, outcomes, not_run, complete=True)
    return 0


def write(out: Path, outcomes: list[Outcome], not_run: str | None, complete: bool) -> None:
    text = json.dumps({"complete": complete, "not_run": not_run, "outcomes": outcomes})
    partial = out / "outcomes.partial"
    partial.write_text(text)
    partial.replace(out / "outcomes.json")


if __name__ == "__main__":
    sys.exit(main())
