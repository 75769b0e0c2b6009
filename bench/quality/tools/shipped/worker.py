"""The process in which a tool runs: a request a line on standard input, an answer a line on standard output.

    python -P worker.py drivers/traceml.py

What a tool prints goes to standard error. It ends with its input. Standard library only: the tool's environment is not
the benchmark's."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable
from typing import Any

Answer = Callable[[dict[str, Any]], list[dict[str, Any]]]


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    said: dict[str, Any]
    answer: Answer | None = None
    for line in sys.stdin:
        try:
            answer = answer or runpy.run_path(sys.argv[1])["answer"]
            said = {"named": answer(json.loads(line))}
        except (Exception, SystemExit) as problem:  # fr_trace ends its process where it has nothing to say
            said = {"error": f"{type(problem).__name__}: {problem}"[:500]}
        print(json.dumps(said), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
