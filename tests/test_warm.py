"""Jobs that a server forks (support/warm.py) are what a new Python process would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.warm import Warm


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    server = Warm("msgspec")
    yield server
    server.close()


PROGRAMS = {
    "prints": "import sys, atexit; atexit.register(print, 'at exit'); print(sys.argv, __name__); sys.stderr.write('e')",
    "reads nothing": "import sys; print(repr(sys.stdin.read()))",
    "stops": "import sys; sys.exit('stopped')",
    "leaves": "import os; os._exit(3)",
    "is killed": "import os; os.kill(os.getpid(), 9)",
    "waits for its thread": "import threading; threading.Timer(0.1, print, ['thread']).start()",
    "has its environment": "import os; print(os.environ['MINE'], os.environ.get('PATH'), os.getcwd())",
    "has a main module": "import pickle\nclass Own: pass\nprint(pickle.loads(pickle.dumps(Own())).__class__)",
    "has child processes": "import subprocess; print(subprocess.run(['false']).returncode)",
}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_job_does_what_a_new_process_does(program: str, warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(program)
    for words in (["-c", program, "one", "two"], [str(script), "one"]):
        fresh = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "MINE": "yes"},
        )
        job = warm.run(words, {"MINE": "yes"})
        assert (job.returncode, job.stdout, job.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_only_the_modules_are_there_before(warm: Warm) -> None:
    printed = warm.run(["-c", "import sys; print('msgspec' in sys.modules, 'laggard' in sys.modules)"]).stdout
    assert printed == "True False\n"


def test_a_module_is_found_on_the_path_of_the_job(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "of_the_job.py").write_text("import sys; print(__name__, sys.argv[1:])")
    job = warm.run(["-m", "of_the_job", "word"], {"PYTHONPATH": str(tmp_path)})
    assert job.stdout == "__main__ ['word']\n", job.stderr


def test_a_job_can_be_stopped_and_is_killed_with_its_server() -> None:
    server = Warm()
    job = server.start(["-c", "import time; print('up', flush=True); time.sleep(600)"])
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(0.1)
    job.send_signal(signal.SIGSTOP)
    assert job.poll() is None
    other = server.start(["-c", "pass"])
    assert other.wait(300) == 0
    server.close()
    with pytest.raises(ProcessLookupError):
        os.kill(job.pid, 0)


@pytest.mark.slow
def test_those_who_share_a_server_import_once_and_each_ends_its_own_jobs() -> None:
    first, second = (Warm("msgspec", shared=f"test-{os.getpid()}") for _ in range(2))
    show = "import os; own = os.getppid(); print(own, open(f'/proc/{own}/stat').read().rpartition(')')[2].split()[1])"
    (one, above_one), (other, above_other) = (each.run(["-c", show]).stdout.split() for each in (first, second))
    assert one != other and above_one == above_other
    job = second.start(["-c", "import time; time.sleep(600)"])
    first.close()
    assert job.poll() is None and second.run(["-c", "print('up')"]).stdout == "up\n"
    second.close()
    until = time.monotonic() + 120
    while Path(f"/proc/{above_one}").exists() or Path(f"/proc/{job.pid}").exists():
        assert time.monotonic() < until, "the server, or a job, outlives the last who uses it"
        time.sleep(0.05)
