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
import ast
import collections
import contextlib
import fcntl
import http.server
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[1]
USER = Path(__file__).resolve().parent / "stack_faults"
RESULTS = ROOT / "out" / "stack_faults"
STACKS_SECONDS = 6
"""After so long a standstill a rank takes its stacks."""
STANDS_SECONDS = 60.0
"""A job is killed so long after its rank began to hang."""
LIMIT_SECONDS = 240.0
"""Of a job."""
SLOW_SECONDS = 0.25
"""The slow server and the slow share take so long."""
SLOW_STEPS, HANGING_STEPS, HEALTHY_STEPS = 100, 400, 140
LIVE, RECORDED, FOLDER = "live", "recorded", "folder"


class Case(NamedTuple):
    """`kind`: slow, hung or healthy. `fault`: as the user's code calls it. `engine`: as train.py's argument. `kill`:
    the signal that ends a job that hangs."""

    kind: str
    fault: str
    engine: str
    victim: int = 1
    ranks: int = 3
    workers: int = 0
    kill: signal.Signals = signal.SIGTERM

    @property
    def name(self) -> str:
        workers = f"{self.workers}-" if self.workers and self.fault == "getitem" else ""
        return f"{self.fault}-{workers}{self.engine.replace(':', '')}"


CASES = (
    Case("slow", "transform", "ddp", victim=2),
    Case("slow", "getitem", "fsdp2", victim=1),
    Case("slow", "getitem", "ddp", victim=1, workers=2),
    Case("slow", "regex", "zero:1", victim=2),
    Case("slow", "gc", "hugging_face", victim=1, ranks=2),
    Case("slow", "log", "fsdp2", victim=2),
    Case("slow", "http", "hugging_face", victim=1, ranks=2),
    Case("slow", "optimizer", "zero:1", victim=1),
    Case("slow", "backward", "ddp", victim=2),
    Case("healthy", "none", "ddp"),
    Case("hung", "log_lock", "ddp", victim=1),
    Case("hung", "save", "fsdp2", victim=2, kill=signal.SIGKILL),
    Case("hung", "gil", "ddp", victim=1),
    Case("hung", "queue", "hugging_face", victim=1, ranks=2),
    Case("hung", "baton", "zero:1", victim=1),
    Case("hung", "http_never", "zero:3", victim=1, ranks=2, kill=signal.SIGKILL),
    Case("hung", "subprocess", "fsdp2", victim=1),
    Case("hung", "worker", "ddp", victim=2, workers=2),
    Case("healthy", "logs_much", "hugging_face", ranks=2),
    Case("healthy", "saves_much", "fsdp2"),
    Case("slow", "transform", "zero:3", victim=1, ranks=2),
    Case("slow", "regex", "ddp", victim=1),
    Case("slow", "gc", "ddp", victim=2),
    Case("slow", "http", "zero:3", victim=1, ranks=2),
    Case("slow", "backward", "zero:1", victim=1),
    Case("hung", "save", "hugging_face", victim=1, ranks=2),
    Case("hung", "gil", "zero:1", victim=2, kill=signal.SIGKILL),
    Case("hung", "process_queue", "ddp", victim=2),
    Case("healthy", "none", "zero:1"),
    Case("healthy", "none", "zero:3", ranks=2),
    Case("healthy", "saves_much", "ddp"),
    Case("slow", "log", "ddp", victim=1),
    Case("slow", "optimizer", "ddp", victim=2),
    Case("slow", "getitem", "hugging_face", victim=1, ranks=2, workers=2),
    Case("hung", "log_lock", "zero:3", victim=1, ranks=2),
    Case("hung", "baton", "ddp", victim=2, kill=signal.SIGKILL),
    Case("hung", "http_never", "ddp", victim=2),
    Case("hung", "subprocess", "zero:1", victim=2, kill=signal.SIGKILL),
    Case("hung", "worker", "hugging_face", victim=1, ranks=2, workers=2, kill=signal.SIGKILL),
)
BY_NAME = {case.name: case for case in CASES}


class Place(NamedTuple):
    """A line of the user's code, as laggard writes a frame: `function (file:line)`."""

    function: str
    file: str
    line: int

    def is_in(self, text: str) -> bool:
        return self.function in text and f"{self.file}:{self.line})" in text.replace(",", ")") + ")"

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


def places(fault: str, mark: str = "fault") -> list[Place]:
    """The lines marked with this fault; `through`: those that wait for a process in which the fault is."""
    found = []
    for path in sorted(USER.rglob("*.py")):
        text = path.read_text()
        for number, line in enumerate(text.splitlines(), 1):
            names = line.partition(f"# {mark}: ")[2].split(", ")
            if fault in names:
                found.append(Place(_function(text, number), path.name, number))
    return found


def _function(text: str, line: int) -> str:
    """The name of the innermost function around this line."""
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno).name


class Server(http.server.ThreadingHTTPServer):
    """Answers at once, slowly, or never, as the path says."""

    daemon_threads = True
    block_on_close = False


class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep({"/slow": SLOW_SECONDS, "/never": 10_000}.get(self.path, 0))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def server() -> Iterator[str]:
    made = Server(("127.0.0.1", 0), Answers)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{made.server_port}"
    finally:
        made.shutdown()
        made.server_close()


@contextlib.contextmanager
def slow_share(path: Path) -> Iterator[None]:
    """A file whose writers wait: a pipe of a page, of which a page is read now and then."""
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
    over = threading.Event()

    def read() -> None:
        while not over.wait(SLOW_SECONDS):
            with contextlib.suppress(BlockingIOError):
                os.read(pipe, 4096)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()
        os.close(pipe)


class Job:
    """A job's processes: the launcher, and all that have this job's folder in their environment."""

    def __init__(self, case: Case, folder: Path, address: str) -> None:
        self.case, self.folder, self.mark = case, folder, folder / "mark"
        steps = {"slow": SLOW_STEPS, "hung": HANGING_STEPS, "healthy": HEALTHY_STEPS}[case.kind]
        environment = {
            **os.environ,
            "REVIEWS_FAULT": case.fault,
            "REVIEWS_VICTIM": str(case.victim),
            "REVIEWS_STEPS": str(steps),
            "REVIEWS_WORKERS": str(case.workers),
            "REVIEWS_MARK": str(self.mark),
            "REVIEWS_FOLDER": str(folder),
            "REVIEWS_SERVER": address,
            "LAGGARD_RANK_DIR": str(folder / "ranks"),
            "LAGGARD_STACKS": str(STACKS_SECONDS),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "TOKENIZERS_PARALLELISM": "false",
            "TORCH_EXTENSIONS_DIR": str(folder / "torch_extensions"),
            "TMPDIR": str(folder),
        }
        torchrun = Path(sys.executable).with_name("torchrun")
        words = [sys.executable, "-P", "-m", "laggard", "run", "--record", str(folder / "recording"), str(torchrun)]
        words += ["--standalone", "--nproc-per-node", str(case.ranks), str(USER / "train.py"), case.engine]
        with (folder / "output").open("w") as output:
            self.launcher = subprocess.Popen(
                words, env=environment, stdout=output, stderr=output, cwd=folder, start_new_session=True
            )

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("REVIEWS_FOLDER") == str(self.folder):
                    found.append(process)
        return found

    def watch(self, before_the_end: Callable[[], None]) -> str:
        """Waits until the job has ended, or has to be killed, which `before_the_end` is told, and says which."""
        began, befell = time.monotonic(), 0.0
        while self.launcher.poll() is None:
            now = time.monotonic()
            befell = befell or (now if self.mark.exists() else 0.0)
            if befell and now - befell > STANDS_SECONDS:
                before_the_end()
                return self.kill()
            if now - began > LIMIT_SECONDS:
                return "too long"
            time.sleep(0.25)
        return f"ended with {self.launcher.returncode}"

    def kill(self) -> str:
        """Kills a job that hangs as the case has it."""
        if self.case.kill == signal.SIGKILL:
            self.end()
            return "killed by SIGKILL"
        self.launcher.terminate()
        began = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.launcher.wait(45)
        return f"killed by SIGTERM, {time.monotonic() - began:.0f} s"

    def end(self) -> None:
        """Kills all that is left."""
        left = self.processes()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.launcher.wait(30)
        psutil.wait_procs(left, timeout=10)


class Daemons:
    """An agent that reads this folder's rank files, and its collector, which share a secret."""

    def __init__(self, folder: Path) -> None:
        token = folder / "token"
        token.write_text(secrets.token_urlsafe())
        token.chmod(0o600)
        self._config = folder / "daemon.json"
        self._config.write_text(json.dumps({"stacks_token_file": str(token)}))
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []
        agent = self._start("agent", "--node", "n0", "--rank-dir", str(folder / "ranks"))
        self.collector = self._start("collector", "--target", agent.removeprefix("http://"), "--interval", "1")

    def _start(self, name: str, *words: str) -> str:
        """Returns its URL."""
        command = [sys.executable, "-P", "-m", "laggard", name, "--config", str(self._config), *words]
        environment = {**os.environ, "LAGGARD_STATE_DIR": str(self._folder / name)}
        log = (self._folder / f"{name}.log").open("w+")
        with log:
            process = subprocess.Popen(
                [*command, "--web.listen-address", "127.0.0.1:0"], stdout=log, stderr=log, env=environment, text=True
            )
        self._started.append(process)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if found := re.search(r"listening on (http\S+)", (self._folder / f"{name}.log").read_text()):
                return found[1]
            time.sleep(0.05)
        self.end()
        raise SystemExit(f"laggard {name} does not start: {(self._folder / f'{name}.log').read_text()[-500:]}")

    def location(self) -> dict[str, Any] | None:
        """None while there is none."""
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(f"{self.collector}/api/v1/location", timeout=10) as answer,
        ):
            document: dict[str, Any] = json.load(answer)
            return document
        return None

    def end(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            process.wait(30)


class Looks(threading.Thread):
    """Looks at a collector once a second, until it is stopped. `seen`: each answer that differs from the one before in
    what it says of the code, or of whom."""

    def __init__(self, daemons: Daemons) -> None:
        super().__init__(daemon=True)
        self.seen: list[dict[str, Any]] = []
        self._daemons, self._over = daemons, threading.Event()

    def run(self) -> None:
        last: object = None
        while not self._over.wait(1.0):
            found = self._daemons.location()
            if found is None or found.get("verdict") not in ("ok", "fail", "unknown", "warning"):
                continue
            said = (found["verdict"], found["culprits"], [it for it in found["notes"] if it["kind"] == "stacks"])
            if said != last and found.get("ranks", 1):
                last = said
                self.seen.append(found)

    def stop(self) -> None:
        self._over.set()
        self.join()


def run(case: Case, address: str, kept: Path) -> dict[str, Any]:
    """Runs the job. Returns what happened, and what was said of it."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=memory, prefix="stack-faults-", ignore_cleanup_errors=True) as name:
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


class Judgement(NamedTuple):
    """`mark`: right, partly, wrong, silent. `culprits`: whom it named. `told`: what of the code was said."""

    mark: str
    why: str
    verdict: str
    culprits: list[str]
    told: list[str]
    notes: list[str]


def judged(case: Case, kept: Path, expected: list[Place]) -> dict[str, Judgement]:
    """Compares what was said with what the case is, and with the lines that it had: by how it was said."""
    found = {LIVE: _live(case, kept, expected), RECORDED: _of_file(case, kept / "said.json", expected)}
    if case.kind == "hung":
        found[FOLDER] = _of_file(case, kept / "folder.json", expected)
    return found


def _of_file(case: Case, path: Path, expected: list[Place]) -> Judgement:
    try:
        return _judgement(case, json.loads(path.read_text()), expected)
    except (OSError, ValueError):
        return Judgement("silent", "there is no answer", "", [], [], [])


def _live(case: Case, kept: Path, expected: list[Place]) -> Judgement:
    """Of the last answer; wrong where any answer before was."""
    try:
        seen = json.loads((kept / "live.json").read_text())
    except (OSError, ValueError):
        seen = []
    each = [_judgement(case, location, expected) for location in seen]
    if not each:
        return Judgement("silent", "there is no answer", "", [], [], [])
    if wrong := [one for one in each if one.mark == "wrong"]:
        return wrong[0]._replace(why=f"{wrong[0].why}, in {len(wrong)} of {len(each)} looks")
    return each[-1] if case.kind == "healthy" else max(each[-1], *each[-2:], key=lambda one: one.mark != "silent")


def _judgement(case: Case, location: dict[str, Any], expected: list[Place]) -> Judgement:
    named = [f"{one['kind']} {one['ranks']}" for one in location["culprits"]]
    stacks = [one["stack"] for one in location["culprits"] if one.get("stack")]
    notes = [json.dumps(note) for note in location["notes"] if note["kind"] == "stacks"]
    told = [stack["text"] for stack in stacks]
    mark, why = _mark(case, stacks, notes, expected)
    return Judgement(mark, why, location["verdict"], named, told, notes)


def _mark(case: Case, stacks: list[dict[str, Any]], notes: list[str], expected: list[Place]) -> tuple[str, str]:
    if case.kind == "healthy":
        return ("wrong", "an innocent's line") if stacks or notes else ("right", "")
    if not stacks and not notes:
        return "silent", ""
    own = [stack["text"] for stack in stacks if stack["rank"] == case.victim]
    apart = [told for note in notes for told in _of_rank(note, case.victim)]
    if _any_in(expected, own):
        return "right", ""
    if _any_in(expected, apart):
        return "right", "in a note"
    if _any_in(expected, notes):
        return "partly", "the line, not of which rank"
    if _any_in(places(case.fault, "through"), own + apart):
        return "partly", "the line through which it waits"
    if _any_in(expected, [frame for stack in stacks if stack["rank"] == case.victim for frame in stack["frames"]]):
        return "partly", "among the frames alone"
    if any(place.function in text and place.file in text for text in own + apart for place in expected):
        return "partly", "another line of the function"
    return "wrong", "another line" if own or apart else "another rank's"


def _any_in(expected: list[Place], texts: list[str]) -> bool:
    return any(place.is_in(text) for text in texts for place in expected)


def _of_rank(note: str, rank: int) -> list[str]:
    """What a note says of this rank alone: `...: rank 1 in f (a.py:3); ranks 0 and 2 in ...`."""
    return [told for told in note.split("; ") if f"rank {rank} in " in told]


def results(path: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        document = json.loads(line)
        found[document["case"]] = document
    return found


def table(out: Path) -> str:
    """The lines of each case, and how many answers are right, judged anew from those there are."""
    lines, counts = [], collections.Counter[tuple[str, str, str]]()
    for case in CASES:
        done = results(out / "results.jsonl").get(case.name)
        if done is None:
            continue
        lines_then = [Place(*place) for place in done["expected"]]
        expected = ", ".join(map(str, lines_then)) if case.kind != "healthy" else "nothing"
        lines.append(f"{case.kind:8}{case.name:28}rank {case.victim}: {expected} ({_befell(done)})")
        for way, one in judged(case, out / case.name, lines_then).items():
            counts[way, case.kind, one.mark] += 1
            lines.append(f"{'':8}{way:10}{one.mark:8}{one.why:32} {one.verdict}: {', '.join(one.culprits)}")
            lines += [f"{'':18}told: {text}" for text in (*one.told, *one.notes)]
    lines += [f"{way:9} {kind:8} {mark:7} {count}" for (way, kind, mark), count in sorted(counts.items())]
    return "\n".join(lines)


def _befell(done: dict[str, Any]) -> str:
    return f"{done['how']}, {done['seconds']} s, load {done['load']}"


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
    done = results(journal)
    wanted = [BY_NAME[name] for name in options.case or [name for name in BY_NAME if name not in done]]
    with server() as address:
        for case in () if options.table else wanted:
            happened = run(case, address, options.out / case.name)
            with journal.open("a") as file:
                print(json.dumps({"case": case.name, **happened}), file=file)
            marks = judged(case, options.out / case.name, happened["expected"])
            said = "; ".join(f"{way} {one.mark} {one.why}".rstrip() for way, one in marks.items())
            print(f"{case.name}: {said}; {_befell(happened)}", flush=True)
    print(table(options.out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
