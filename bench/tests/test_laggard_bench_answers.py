"""laggard-bench asks entries and scores answers, whatever these are, and knows nothing of laggard."""

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from common.cases_by_hand import line, make_case
from laggard_bench import validate
from support.paths import REPOSITORY

BENCH = REPOSITORY / "bench" / "laggard_bench"
OF_THE_SCORER = ("answer", "example_entry", "figures", "formats", "judge", "score", "validate")
"""The modules that need the standard library alone; the simulator needs numpy beside it."""


def run(*words: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script of the benchmark, without site-packages, the environment's paths, and so without laggard."""
    script, *rest = map(str, words)
    return subprocess.run(
        [sys.executable, "-I", "-S", str(BENCH / script), *rest],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=120,
    )


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    folder = tmp_path / "cases"
    make_case(folder, "0000", 2)
    make_case(folder, "0001", None)
    return folder


def figures(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_scorer_imports_the_standard_library_alone() -> None:
    for module in OF_THE_SCORER:
        for node in ast.walk(ast.parse((BENCH / f"{module}.py").read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                first, _, second = name.partition(".")
                assert first in sys.stdlib_module_names or (first == "laggard_bench" and second in OF_THE_SCORER), name


def test_nothing_but_laggards_entry_knows_laggard() -> None:
    for path in BENCH.glob("*.py"):
        known = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "laggard")
            or (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "laggard" for alias in node.names))
        ]
        assert bool(known) == (path.name == "laggard_entry.py"), path


@pytest.mark.slow
def test_the_example_is_asked_and_scored_without_laggard(cases: Path, tmp_path: Path) -> None:
    done = run("score.py", cases, BENCH / "example_entry.py", "--format", "json", "--save", tmp_path / "kept.jsonl")
    found = figures(done)
    assert done.returncode == 0 and found["clean"] == found["cases"] == 2 and found["recall"]["hits"] == 1
    again = run("score.py", cases, tmp_path / "kept.jsonl", "--format", "json")
    assert figures(again) == found
    script = "import sys; sys.path.insert(0, sys.argv[1]); import laggard_bench.score as s, laggard_bench.validate; "
    script += "assert not {'laggard', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script, str(BENCH.parent)], check=True)


RIGHT = '{"case": "0000", "verdict": "slow", "culprits": [{"kind": "compute", "ranks": [2.0], "nodes": ["n1"]}]}'


def with_ranks(ranks: str) -> bytes:
    return b'{"case": "0000", "verdict": "slow", "culprits": [{"kind": "compute", "ranks": ' + ranks.encode() + b"}]}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (with_ranks("[NaN]"), "NaN is no number"),
        (with_ranks("[1e400]"), "too large"),
        (with_ranks("[" + "9" * 9000 + "]"), "more than 19 digits"),
        (with_ranks("[4]"), "culprits[0] names rank 4 of a job of 4"),
        (with_ranks('["2"]'), 'ranks[0]: "2" is no integer'),
        (with_ranks("{}"), "ranks: {} is no array"),
        (with_ranks("[" * 100_000), "nested too deeply"),
        (b'{"case": "0000", "verdict": null, "culprits": []}', "verdict: null is none of"),
        (b'{"case": ["0000"], "verdict": "ok", "culprits": []}', 'case: ["0000"] is no string'),
        (b'{"verdict": "ok", "culprits": []}', 'lacks "case"'),
        (b'{"case": "\\u001b[2J", "verdict": "ok", "culprits": []}', 'no case "\\u001b[2J" with a truth'),
        (b"null", "null is no object"),
        (b"\x80\x81", "no UTF-8"),
        (RIGHT.encode() + b"\n" + RIGHT.encode(), "a second answer on 0000"),
    ],
)
def test_a_hostile_answer_costs_that_answer(cases: Path, tmp_path: Path, text: bytes, problem: str) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_bytes(b'{"case": "0001", "verdict": "ok", "culprits": []}\n' + text + b"\n")
    done = run("score.py", cases, file, "--format", "json", "--misses")
    assert done.returncode == 1
    (told,) = done.stderr.splitlines()
    assert told.startswith(f"no answer: {file}:") and problem in told
    found = json.loads(done.stdout[: done.stdout.rindex("}") + 1].partition("\n0000")[0])
    assert (found["cases"], found["healthy"]["accused"]["hits"]) == (2, 0)
    assert found["recall"]["hits"] == ("second" in problem)


ENTRIES = {
    "raises": "raise ValueError('what\\nnow\\x1b[2J')",
    "ends": "import os; os._exit(3)",
    "exits": "raise SystemExit(3)",
    "nothing": "return None",
    "nan": "return {'verdict': 'slow', 'culprits': [{'kind': 'compute', 'ranks': [float('nan')]}]}",
    "itself": "answer = {}; answer['culprits'] = answer; return answer",
    "objects": "return {'verdict': 'ok', 'culprits': [object()]}",
    "beyond": "return {'verdict': 'slow', 'culprits': [{'kind': 'compute', 'ranks': [99]}]}",
    "huge": "return {'verdict': 'ok', 'culprits': [], 'error': 'x' * (5 << 20)}",
    "deep": "import sys; f = lambda: f(); f()",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", sorted(ENTRIES))
def test_an_entry_that_does_anything_costs_that_case(cases: Path, tmp_path: Path, how: str) -> None:
    entry = tmp_path / "entry.py"
    right = "return {'verdict': 'slow', 'culprits': [{'kind': 'compute', 'ranks': {2}, 'nodes': ('n1',)}]}"
    entry.write_text(
        "print('loading')\ndef locate(case):\n    print('noise', input.__name__)\n"
        f"    if case.name == '0000':\n        {right}\n    {ENTRIES[how]}\n"
    )
    done = run("score.py", cases, entry, "--format", "json", "--workers", "1")
    assert done.returncode == 1, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("no answer: 0001")]
    assert len(told) == 1 and "\x1b" not in told[0]
    assert figures(done)["recall"]["hits"] == 1 and figures(done)["unanswered"] == 1


@pytest.mark.slow
def test_an_entry_that_goes_on_is_ended_and_nobody_waits_for_a_child_of_it(cases: Path, tmp_path: Path) -> None:
    """Also where the child left its session, and holds the pipe open."""
    entry, marks, told = tmp_path / "entry.py", tmp_path / "pids", tmp_path / "told"
    entry.write_text(
        "import os, time\n"
        "def locate(case):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        f"        with open({str(marks)!r}, 'a') as file:\n"
        "            print(os.getpid(), file=file)\n"
        "    time.sleep(300)\n"
    )
    words = [sys.executable, "-I", "-S", str(BENCH / "score.py"), str(cases), str(entry), "--seconds", "2"]
    try:
        with told.open("w") as file:
            status = subprocess.call(words, stdout=file, stderr=file, timeout=120)
    finally:
        for pid in marks.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    assert status == 1 and told.read_text().count("no answer: 000") == 2
    assert told.read_text().count("no answer within 2 s") == 4  # as it goes, and in the end
    assert "2 cases have no answer" in told.read_text()


def test_a_truth_that_is_none_ends_the_run_in_a_line(cases: Path, tmp_path: Path) -> None:
    path = cases / "0001" / "truth.json"
    (tmp_path / "a.jsonl").write_text("")
    good = json.loads(path.read_text())
    bad = {
        "it is the truth of": good | {"case": "0000"},
        "ranks: 0 is less than 1": good | {"ranks": 0},
        'lacks "why"': {name: value for name, value in good.items() if name != "why"},
        "it names a rank": good | {"tolerated": [{"kind": "host", "ranks": [4], "nodes": []}]},
    }
    for problem, truth in bad.items():
        path.write_text(json.dumps(truth))
        done = run("score.py", cases, tmp_path / "a.jsonl")
        assert (done.returncode, done.stdout) == (64, "") and problem in done.stderr and str(path) in done.stderr


def test_cases_are_validated_line_by_line(cases: Path) -> None:
    done = run("validate.py", cases, "--workers", "1")
    assert (done.returncode, done.stdout) == (0, "")
    recording = cases / "0000" / "recording"
    file = recording / "rank-1.jsonl"
    good = file.read_text().splitlines(keepends=True)
    bad = {
        ':3: kind: "stop" is none of': good[:2] + ['{"kind": "stop", "rank": 1}\n'],
        ":3: it is of rank 2": good[:2] + [line("end", 2)],
        ':3: lacks "name"': good[:2] + [line("span", 1, step=0, start=0.0, end=1.0)],
        ':3: start: "1" is no number': good[:2] + ['{"kind": "step", "rank": 1, "step": 0, "start": "1", "end": 2}\n'],
        ":3: no JSON": good[:2] + ["{\n"],
        ":1: a line of kind rank where head stands": good[1:],
        ": lacks a line of kind rank": good[:1],
        ": lacks a line of kind head": [],
        ':4: lacks "kind"': [*good[:3], "{}\n"],
    }
    for problem, text in bad.items():
        file.write_text("".join(text))
        assert problem in validate.file_problem(file, None), problem
    (recording / "rank-9.jsonl").write_text("".join(good))
    (recording / "rank-01.jsonl").write_text("")
    (cases / "0000" / "notes").write_text("")
    done = run("validate.py", cases, "--workers", "1")
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 4
    assert "a rank of a job of 4" in done.stdout and "no file rank-N.jsonl" in done.stdout
    assert run("validate.py", recording).returncode == 64
