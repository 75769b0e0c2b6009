"""Asks an entry about each case, and writes its answers, a line of JSON each. Needs no truth.

    python laggard_bench/answer.py CASES ENTRY > ANSWERS.jsonl

ENTRY is a Python file, or the name of a module, with one function:

    def locate(case: Path) -> dict          the answer, as answer.schema.json has it

It runs in a process of its own, which is ended after --seconds a case. What it prints goes to standard error. It may do
all that you may: run an entry that you do not trust where it can do no harm.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import queue
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from laggard_bench.formats import MAX_DOCUMENT_BYTES, FormatError, checker, parse

SECONDS: Final = 600.0
"""How long an entry may take for a case, unless told otherwise."""
MAX_ERROR: Final = 300
"""How many characters of an exception are kept."""
POLL_SECONDS: Final = 0.5
"""How often a silent process is looked at."""
GRACE_SECONDS: Final = 0.2
"""How long a process that closed its answers may take to end by itself, so that its status is its own."""
READY: Final = b'"ready"\n'
USAGE: Final = 64


class NoEntryError(Exception):
    """The entry cannot be loaded."""


def nothing(error: str) -> dict[str, Any]:
    """The answer that says nothing."""
    return {"verdict": "unknown", "culprits": [], "error": error}


def cases_in(folder: Path) -> list[Path]:
    """The cases of a set, by name."""
    return sorted(path.parent for path in folder.glob("*/recording"))


def load(entry: str) -> Callable[[Path], Any]:
    """The entry's function, by the name of a file or a module."""
    if entry.endswith(".py"):
        file = Path(entry).resolve()
        sys.path.insert(0, str(file.parent))
        spec = importlib.util.spec_from_file_location(file.stem, file)
        if spec is None or spec.loader is None:
            raise NoEntryError(f"{entry} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, str(Path.cwd()))
        module = importlib.import_module(entry)
    found: Callable[[Path], Any] = module.locate
    return found


def plain(value: Any) -> Any:
    """Sets, and numpy's numbers and arrays, as JSON has them."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"an answer cannot hold a {type(value).__name__}")


def work(entry: str) -> int:
    """The entry's process: a path on standard input is a question, a line on standard output its answer."""
    questions, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)
    os.dup2(2, 1)
    try:
        locate = load(entry)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    out.write(READY)
    out.flush()
    for line in questions:
        try:
            text = json.dumps(locate(Path(json.loads(line))), default=plain, allow_nan=False)
        except Exception as error:
            text = json.dumps(nothing(f"{type(error).__name__}: {error}"[:MAX_ERROR]))
        out.write(text.encode() + b"\n")
        out.flush()
    return 0


check_answer = checker("answer")


class Worker:
    """An entry's process, started when it is needed."""

    def __init__(self, entry: str, seconds: float) -> None:
        self._entry, self._seconds = entry, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._late = False

    def ask(self, case: Path) -> dict[str, Any]:
        """The answer, whatever the entry did. Raises NoEntryError."""
        process = self.started()
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: no answer comes
            os.write(process.stdin.fileno(), json.dumps(str(case.absolute())).encode() + b"\n")
        line = self._line(process)
        if len(line) > MAX_DOCUMENT_BYTES:
            self.close()
            return nothing(f"an answer of more than {MAX_DOCUMENT_BYTES} bytes")
        if not line.endswith(b"\n"):
            status = self.close()
            return nothing(f"no answer within {self._seconds:g} s" if self._late else f"it ended with status {status}")
        try:
            answer = parse(line)
            check_answer(answer)
        except FormatError as error:
            return nothing(f"no answer: {error}")
        return {name: value for name, value in answer.items() if name != "case"}

    def close(self) -> int | None:
        """Ends the process, and all that it started in its group; its status."""
        if self._process is None:
            return None
        process, self._process = self._process, None
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()  # which ends one that waits for a question
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0 if self._late else GRACE_SECONDS)
        _kill(process)
        process.stdout.close()
        return process.wait()

    def interrupt(self) -> None:
        """Ends the process while another thread asks it, which gets no answer then."""
        process = self._process
        if process is not None:
            _kill(process)

    def started(self) -> subprocess.Popen[bytes]:
        """The process, with the entry loaded. Raises NoEntryError."""
        if self._process is None:
            words = [sys.executable, str(Path(__file__).resolve()), "--worker", self._entry]
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            if self._line(self._process) != READY:
                self.close()
                raise NoEntryError(f"{self._entry} cannot be loaded, or has no function locate")
        return self._process

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        """The next line that it writes; one without its end where it took too long, ended, or wrote too much. Whoever
        else holds the pipe open is not waited for."""
        assert process.stdout is not None
        found, pipe, deadline = b"", process.stdout.fileno(), time.monotonic() + self._seconds
        self._late = False
        while not found.endswith(b"\n") and len(found) <= MAX_DOCUMENT_BYTES:
            left = deadline - time.monotonic()
            if select.select([pipe], [], [], max(0.0, min(left, POLL_SECONDS)))[0]:
                part = os.read(pipe, 1 << 16)
                if not part:
                    break
                found += part
            elif left <= 0:
                self._late = True
                break
            elif process.poll() is not None:
                break
        return found


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the process, and all of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def answers(cases: Sequence[Path], entry: str, workers: int, seconds: float) -> Iterator[dict[str, Any]]:
    """The entry's answers, in the order of the cases. Raises NoEntryError."""
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    all_workers = [Worker(entry, seconds) for _ in range(max(1, workers))]
    for each in all_workers:
        idle.put(each)

    def ask(case: Path) -> dict[str, Any]:
        worker = idle.get()
        try:
            return {"case": case.name, **worker.ask(case)}
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(len(all_workers))
    try:
        all_workers[0].started()
        yield from pool.map(ask, cases)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for each in all_workers:
            each.interrupt()
        raise
    finally:
        pool.shutdown()
        for each in all_workers:
            each.close()


def told(given: Iterator[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """The answers, each told of on standard error."""
    for number, answer in enumerate(given, 1):
        error = ascii(answer.get("error", ""))[1:-1]  # whatever it holds: one line, and nothing that moves a cursor
        print(f"{number}/{count} {answer['case']} {error or answer['verdict']}", file=sys.stderr)
        yield answer


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes beside each other")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each case (default: %(default)g)")
    parser.add_argument("--case", action="append", default=[], help="this one alone; may be given again")


def chosen(cases: Sequence[Path], names: Sequence[str]) -> list[Path]:
    """Raises ValueError where there is none of a name, or no case at all."""
    missing = sorted(set(names) - {case.name for case in cases})
    if missing:
        raise ValueError(f"no such case: {', '.join(missing)}")
    if not cases:
        raise ValueError("no cases: a case is a folder with a folder named recording")
    return [case for case in cases if not names or case.name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["--worker"]:
        return work(given[1])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="CASES")
    parser.add_argument("entry", metavar="ENTRY")
    add_flags(parser)
    flags = parser.parse_args(given)
    try:
        cases = chosen(cases_in(flags.folder), flags.case)
        for answer in told(answers(cases, flags.entry, flags.workers, flags.seconds), len(cases)):
            print(json.dumps(answer), flush=True)
    except (NoEntryError, OSError, ValueError) as error:
        print(f"answer: {error}", file=sys.stderr)
        return USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
