"""`laggard tune nccl` on this machine's GPUs: a short campaign, which has to end with an answer and right results.

What it recommends is not judged: on a few GPUs of one machine nothing may be faster than NCCL's own choice. The
rehearsal gives it a stand-in that prints as nccl-tests do, since NCCL's variables change nothing on a CPU.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from gpu_check.outcome import REPOSITORY, CannotRun, Context, Outcome, info, judged, needs_module, torch_on_gpu

STAND_IN = REPOSITORY / "tests" / "support" / "nccl_tests.py"
TRIALS, ROUNDS = 24, 4


def run(context: Context) -> Iterator[Outcome]:
    size = 2 if context.rehearse else torch_on_gpu().cuda.device_count()
    if size < 2:
        raise CannotRun("one GPU: there is nothing between GPUs to tune")
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError as error:
        raise CannotRun(needs_module(error)) from None
    study = context.out / "study.db"
    study.unlink(missing_ok=True)  # an earlier check's: this one measures again
    words = ["--study", str(study), "--trials", str(TRIALS), "--rounds", str(ROUNDS), "--gpus", str(size)]
    words += ["--local-ranks", str(size), "--messages", "all_reduce:64M", "--deadline", "60"]
    if context.rehearse:
        program = shlex.join([sys.executable, str(STAND_IN)])
        words += ["--command", f"{program} {{test}} -b {{bytes}} -e {{bytes}}"]
    command = [sys.executable, "-m", "laggard", "tune", "nccl", *words, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
        yield judged("campaign", False, f"ended with {done.returncode}: {last}")
        return
    document = json.loads(done.stdout)
    (context.out / "tune.json").write_text(json.dumps(document, indent=1))
    yield from judge(document)


def judge(document: Any) -> Iterator[Outcome]:
    """A default that gave wrong results, or did not run, is a failure; what failed beside it is told."""
    trials, default = document["trials"], [each for each in document["trials"] if not each["changes"]]
    failed = [each for each in default if each["status"] != "ok"]
    text = f"{len(trials)} trials, {document['spent_seconds']:.0f} s, noise {document['noise']:.1%}"
    yield judged("campaign", bool(default) and not failed, f"{text}; {failed[0]['detail']}" if failed else text)
    for each in trials:
        if each["changes"] and each["status"] != "ok":
            yield info(json.dumps(each["changes"]), f"{each['status']} {each['detail']}")
    items = document["recommendation"]["items"]
    found = ", ".join(f"{each['key']}={each['recommended']}" for each in items) or "nothing faster for certain"
    gain = f": {items[0]['gain']['ratio']:.3f} times the default" if items else ""
    yield info("recommended", found + gain)
