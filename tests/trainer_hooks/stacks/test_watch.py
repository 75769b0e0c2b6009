"""A rank takes its own stacks: when somebody asks, at a standstill, where C code holds the GIL, and at its end. Each
test runs a process of its own, since faulthandler and signals belong to a whole process."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.paths import DATA
from support.waiting import wait_for

from laggard.stacks.ask import FILE, FOLDER, new_ask, write_ask
from laggard.stacks.fault_text import read_faults
from laggard.stacks.sampled import (
    ASKED,
    CRASHED,
    FAILED,
    HELD,
    NO_FRAME,
    STALLED,
    TERMINATED,
    Sampled,
    SampledError,
    read,
)

HEAD = """
import ctypes, faulthandler, multiprocessing, os, signal, subprocess, sys, threading, time
from array import array
from laggard.rankfile.layout import LIVE_WORDS, WORD_PHASE, WORD_PROGRESS
from laggard.stacks.fault_text import header
from laggard.trainer_hooks.stacks.fault_file import FaultFile
from laggard.stacks.ask import ask_folders, trusted_users
from laggard.trainer_hooks.stacks.watch import About, StackWatch

folder, stall = sys.argv[1], float(sys.argv[2])
words = memoryview(array("q", [0] * LIVE_WORDS))
words[WORD_PHASE] = 1  # forward
training = threading.get_ident()
faults = FaultFile(folder + "/1-a.fault", header("j", 1, "n", os.getpid(), training), stall)
faults.arm()
about = About("j", 1, "n", folder + "/1-a.stacks", ask_folders(folder, folder), trusted_users(folder, os.geteuid()))
watch = StackWatch(about, lambda: training, lambda: words, tuple, faults, stall)

def beats():
    while not stopped.wait(0.1):
        watch.beat()

stopped = threading.Event()
thread = threading.Thread(target=beats, daemon=True)

def begin():
    thread.start()
    print("ready", flush=True)

def end():
    stopped.set()
    thread.join()
    watch.close()

def slow(say=False):
    if say: print("slow", flush=True)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        words[WORD_PROGRESS] += 1
        inner()

def inner():
    sum(range(2000))
"""


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the program; returns once it is ready."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, stall: float = 60.0) -> subprocess.Popen[str]:
        code = HEAD + textwrap.dedent(program)
        words = [sys.executable, "-c", code, str(tmp_path), str(stall)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def stacks(look: Callable[[Path], Sampled | None], folder: Path, why: str) -> Sampled:
    """The document, once there is one of that reason."""

    def found() -> Sampled | None:
        with contextlib.suppress(SampledError):
            seen = look(folder)
            return seen if seen is not None and seen.why == why else None
        return None

    found_at_last: Sampled = wait_for(found)
    return found_at_last


def told(folder: Path) -> Sampled:
    return read(str(folder / "1-a.stacks"), os.geteuid())


def dumped(folder: Path) -> Sampled | None:
    return read_faults(str(folder / "1-a.fault"), os.geteuid())


def functions(sampled: Sampled) -> set[str]:
    return {frame.function for stack in sampled.training.stacks for frame in stack.frames}


def test_who_asks_gets_samples_of_the_training(tmp_path: Path, start: Start) -> None:
    start("begin(); slow()")
    ask = new_ask(os.geteuid(), "j", frozenset({1}), samples=50, seconds=2.0)
    write_ask(str(tmp_path / FOLDER), ask)
    found = stacks(told, tmp_path, ASKED)
    assert (found.ask, found.rank, found.job_id, found.node) == (ask.ident, 1, "j", "n")
    assert 10 <= found.training.samples <= 50
    assert {"slow", "inner", "<module>"} <= functions(found)
    assert {stack.phase for stack in found.training.stacks} == {"forward"}
    assert not any("laggard" in frame.file for stack in found.training.stacks for frame in stack.frames)


def test_another_job_and_who_may_not_ask_get_none(tmp_path: Path, start: Start) -> None:
    write_ask(str(tmp_path / FOLDER), new_ask(os.geteuid(), "another", None, 5, 0.1))
    start("begin(); time.sleep(1.5); print('looked', flush=True); slow()").stdout.readline()  # type: ignore[union-attr]
    (tmp_path / FOLDER).chmod(0o777)
    write_ask(str(tmp_path / "elsewhere"), new_ask(os.geteuid(), "j", None, 5, 0.1))  # root puts such a folder aside
    (tmp_path / "elsewhere" / FILE).rename(tmp_path / FOLDER / FILE)
    time.sleep(1.5)
    assert not (tmp_path / "1-a.stacks").exists()


def test_the_trainings_random_numbers_stay_its_own(tmp_path: Path, start: Start) -> None:
    write_ask(str(tmp_path / FOLDER), new_ask(os.geteuid(), "j", None, 5, 0.2))
    script = f"""
        import os, random
        random.seed(7); before = random.getstate()
        begin()
        while not os.path.exists({str(tmp_path / "1-a.stacks")!r}): time.sleep(0.01)
        print(random.getstate() == before, flush=True)
        """
    assert start(script).stdout.readline().strip() in ("True", b"True")  # type: ignore[union-attr]


def test_who_asks_again_and_again_gets_one_answer_in_a_while(tmp_path: Path, start: Start) -> None:
    start("begin(); slow()")
    idents: list[str] = []
    while len(idents) < 50:  # a second of looks at 0.2 s for each answer, where MIN_SECONDS_BETWEEN is ten
        write_ask(str(tmp_path / FOLDER), new_ask(os.geteuid(), "j", None, 5, 0.2))
        if (tmp_path / "1-a.stacks").exists():
            idents.append(told(tmp_path).ask)
        time.sleep(0.02)
    assert len(set(idents)) == 1


def test_a_standstill_is_told_before_anybody_asks(tmp_path: Path, start: Start) -> None:
    start(
        """
        import queue
        def stuck(): queue.Queue().get()
        begin(); stuck()
        """,
        stall=3.0,
    )
    found = stacks(told, tmp_path, STALLED)
    assert found.stalled_seconds >= 3.0
    names = [frame.function.rpartition(".")[2] for frame in found.training.stacks[0].frames]
    assert names[-3:] == ["get", "stuck", "<module>"]


def test_a_standstill_of_c_code_that_holds_the_gil_is_told(tmp_path: Path, start: Start) -> None:
    start(
        """
        def holds(): ctypes.PyDLL(None).sleep(60)
        begin(); time.sleep(0.5); holds()
        """,
        stall=3.0,
    )
    found = stacks(dumped, tmp_path, HELD)
    assert [frame.function for frame in found.training.stacks[0].frames] == ["holds", "<module>"]


def test_what_a_scheduler_ends_leaves_its_stack_and_its_exit_status(tmp_path: Path, start: Start) -> None:
    process = start("begin(); slow(say=True)")
    assert process.stdout is not None and process.stdout.readline() == "slow\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
    found = dumped(tmp_path)
    assert found is not None and found.why == TERMINATED
    assert "slow" in functions(found)


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_scripts_own_handler_of_sigterm_is_called(tmp_path: Path, start: Start, when: str) -> None:
    own = "signal.signal(15, lambda *_: os._exit(7))"
    process = start(f"begin(); {own}; print('set', flush=True); slow()")
    assert process.stdout is not None and process.stdout.readline() == "set\n"
    if when == "after":  # the script's replaces faulthandler's
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 7
        return
    code = HEAD.replace("faults.arm()", f"{own}; faults.arm()") + "begin(); slow()"
    words = [sys.executable, "-c", code, str(tmp_path), "60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout is not None and second.stdout.readline() == "ready\n"
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 7
    found = dumped(tmp_path)
    assert found is not None and found.why == TERMINATED


@pytest.mark.parametrize(("act", "status"), [("ctypes.string_at(0)", 11), ("os.abort()", 6)])
def test_a_crash_leaves_its_stack(tmp_path: Path, start: Start, act: str, status: int) -> None:
    process = start(f"def crashes(): {act}\nbegin(); crashes()")
    assert process.wait(60) == -status
    found = dumped(tmp_path)
    assert found is not None and found.why == CRASHED
    assert "crashes" in functions(found)


def test_an_exception_leaves_where_it_was_raised(tmp_path: Path, start: Start) -> None:
    process = start(
        """
        def raises(): raise ValueError("no word of this is kept")
        begin()
        try: raises()
        except ValueError as error: watch.failed(error)
        end()
        """
    )
    assert process.wait(60) == 0
    found = told(tmp_path)
    assert found.why == FAILED
    assert [frame.function for frame in found.training.stacks[0].frames] == ["raises", "<module>"]
    assert "no word" not in (tmp_path / "1-a.stacks").read_text()


def test_a_forked_child_ends_and_is_no_rank(tmp_path: Path, start: Start) -> None:
    process = start(
        """
        begin(); time.sleep(0.5)
        def child(act):
            pid = os.fork()
            if pid == 0:
                act()
            return os.waitpid(pid, 0)[1]
        ends = [child(lambda: sys.exit(3)) >> 8, child(lambda: os.kill(os.getpid(), 15)), child(os.abort) & 127]
        assert ends == [3, 15, 6], ends
        end()
        """
    )
    out, err = process.communicate(timeout=90)  # a child that waits for the timer's thread never ends
    assert process.returncode == 0, err
    assert not (tmp_path / "1-a.fault").exists(), "nothing was written, so the file is taken away"


def test_the_timer_that_the_script_sets_is_the_scripts(tmp_path: Path, start: Start) -> None:
    process = start(
        f"""
        own = open({str(tmp_path / "own")!r}, "w")
        begin(); time.sleep(0.5)
        faulthandler.dump_traceback_later(1.0, file=own)
        def holds(): ctypes.PyDLL(None).sleep(4)
        holds()
        end()
        """,
        stall=3.0,
    )
    assert process.wait(60) == 0
    assert "in holds" in (tmp_path / "own").read_text()
    assert not (tmp_path / "1-a.fault").exists()


def test_what_the_script_arms_itself_stays_the_scripts(tmp_path: Path, start: Start) -> None:
    process = start(
        f"""
        begin()
        own = open({str(tmp_path / "own")!r}, "w")
        faulthandler.enable(own)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
        def child(act):
            pid = os.fork()
            if pid == 0:
                act()
                time.sleep(30)
                os._exit(1)
            return os.waitpid(pid, 0)[1]
        assert child(lambda: os.kill(os.getpid(), 15)) >> 8 == 7, "the child lost the script's handler"
        def crashes(): os.abort()
        assert child(crashes) & 127 == 6
        assert "in crashes" in open(own.name).read(), "the child lost the script's own file of crashes"
        faulthandler.register(signal.SIGUSR1, file=own, all_threads=False)
        end()
        assert faulthandler.is_enabled()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert open(own.name).read().count("Stack (most recent") == 1
        os.kill(os.getpid(), 15)
        time.sleep(30)
        """
    )
    out, err = process.communicate(timeout=90)
    assert process.returncode == 7, err


def test_forked_workers_are_asked_and_new_programs_are_left_alone(tmp_path: Path, start: Start) -> None:
    process = start(
        """
        def decode():
            while True: time.sleep(0.01)
        def other(): time.sleep(60)
        begin()
        context = multiprocessing.get_context("fork")
        worker = context.Process(target=decode, name="w0", daemon=True); worker.start()
        program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        multiprocessing.process._children.add(type("Child", (), {"pid": program.pid, "name": "p", "_popen": program})())
        print("started", flush=True)
        loop = "def waits():\\n while True: words[WORD_PROGRESS] += 1; time.sleep(0.01)"
        exec(compile(loop, "/venv/torch/utils/data/dataloader.py", "exec"))  # a training that waits for its workers
        waits()
        """
    )
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    time.sleep(0.5)
    write_ask(str(tmp_path / FOLDER), new_ask(os.geteuid(), "j", None, samples=40, seconds=2.0))
    found = stacks(told, tmp_path, ASKED)
    (worker,) = [thread for thread in found.threads if thread.pid]
    assert worker.name == "w0" and worker.stacks[0].frames[0].function == "decode"
    assert process.poll() is None
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    assert len(children) == 2, "both run: the signal ends nobody"
    subprocess.run(["kill", *children])


@pytest.mark.slow  # as many threads take seconds to start
def test_thousands_of_threads_cost_no_more_than_a_share(tmp_path: Path, start: Start) -> None:
    start(
        """
        threading.stack_size(64 * 1024)
        wait = threading.Event()
        for _ in range(3000): threading.Thread(target=wait.wait, daemon=True).start()
        def deep(n): return deep(n - 1) if n else slow()
        sys.setrecursionlimit(10000)
        begin(); deep(5000)
        """
    )
    write_ask(str(tmp_path / FOLDER), new_ask(os.geteuid(), "j", None, samples=200, seconds=3.0))
    found = stacks(told, tmp_path, ASKED)
    assert 1 <= found.training.samples < 200, "each is dear, so there are fewer"
    assert {"slow", "deep"} <= functions(found)
    assert len(found.threads) <= 64


def test_an_end_in_order_leaves_nothing(tmp_path: Path, start: Start) -> None:
    write_ask(str(tmp_path / FOLDER), new_ask(os.geteuid(), "j", None, 5, 0.2))
    process = start("begin(); time.sleep(2); end()")
    assert process.wait(60) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [FOLDER]


def test_a_standstill_is_told_with_its_place_in_the_kernel(tmp_path: Path, start: Start) -> None:
    start("begin(); os.read(os.pipe()[0], 1)", stall=3.0)
    found = stacks(told, tmp_path, STALLED)
    assert "pipe" in found.kernel and found.kernel.endswith("(system call read)"), found.kernel
    assert [frame.function for frame in found.training.stacks[0].frames] == ["<module>"]


def test_a_thread_in_a_sub_interpreter_stands_where_that_was_called(tmp_path: Path, start: Start) -> None:
    start(
        """
        try:
            import _interpreters as interpreters
            run = interpreters.exec
        except ImportError:
            import _xxsubinterpreters as interpreters
            run = interpreters.run_string
        def calls_another(): run(interpreters.create(), "import time; time.sleep(60)")
        begin(); calls_another()
        """,
        stall=3.0,
    )
    found = stacks(told, tmp_path, STALLED)
    assert "calls_another" in functions(found)


def embedding(folder: Path) -> str:
    """The program that embeds this Python, compiled."""
    include, library = sysconfig.get_config_var("INCLUDEPY"), sysconfig.get_config_var("LDLIBRARY") or ""
    places = [sysconfig.get_config_var("LIBDIR") or "", "/usr/lib/x86_64-linux-gnu"]
    place = next((each for each in places if os.path.exists(os.path.join(each, library))), None)
    if (
        shutil.which("gcc") is None
        or not os.path.exists(f"{include}/Python.h")
        or place is None
        or ".so" not in library
    ):
        pytest.skip("needs gcc, and Python's header and shared library")
    program, name = str(folder / "embedding"), library.removeprefix("lib").partition(".so")[0]
    source = str(DATA / "embedding" / "embedding.c")
    words = [
        "gcc",
        source,
        "-o",
        program,
        f"-I{include}",
        f"-L{place}",
        f"-Wl,-rpath,{place}",
        f"-l{name}",
        "-ldl",
        "-lm",
    ]
    subprocess.run(words, check=True, timeout=300)
    return program


def test_a_program_that_embeds_python_is_told_as_what_it_is(tmp_path: Path) -> None:
    argv = f"import sys; sys.argv = ['x', {str(tmp_path)!r}, '3.0']\n"
    code = (
        f"{argv}{HEAD}\nother = threading.Thread(target=threading.Event().wait, daemon=True); other.start()\nbegin()\n"
    )
    environment = {**os.environ, "PYTHONHOME": sys.base_prefix, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [embedding(tmp_path), code]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        found = stacks(told, tmp_path, STALLED)
    finally:
        process.kill()
        process.communicate()
    assert found.training.stacks[0].frames == (NO_FRAME,)
    assert found.kernel.endswith("(system call pause)") or "in the kernel" in found.kernel, found.kernel
    others = {frame.function for thread in found.threads[1:] for stack in thread.stacks for frame in stack.frames}
    assert "Event.wait" in others or "wait" in others, "they do not stand for the thread that trains"
