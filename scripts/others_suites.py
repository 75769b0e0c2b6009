#!/usr/bin/env python3
"""Runs tests that others wrote, without laggard and with its hooks in every process, and compares.

    make others-suites ARGS="--deepspeed https://github.com/deepspeedai/DeepSpeed --torchtitan PATH"

Each suite is a sample: of each file a few functions, spread over the file, one case of each. What passes without the
hooks is run again with them; where that differs, both are run once more. One process at a time, at low priority. Exit
status: 0 no difference, 1 a difference, 2 nothing could be run. docs/others-suites.md has a table as measured.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from laggard.rankfile import RankFileReader

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
_CASE_SECONDS: Final = 150
_SCRIPT_SECONDS: Final = 300

Outcomes = dict[str, str]
"""By the test's name: PASSED, SKIPPED or FAILED."""

Run = Callable[[Sequence[str], bool], Outcomes]
"""Runs tests, with the hooks or without."""

DEEPSPEED_FILES: Final = (
    "runtime/zero/test_zero.py",
    "runtime/zero/test_zero_context.py",
    "runtime/zero/test_zero_tensor_fragment.py",
    "runtime/pipe/test_pipe.py",
    "runtime/test_ds_initialize.py",
    "runtime/test_multi_output_model.py",
    "runtime/half_precision/test_bf16.py",
    "checkpoint/test_zero_optimizer.py",
    "checkpoint/test_pipeline.py",
    "comm/test_dist.py",
    "moe/test_moe.py",
    "utils/test_groups.py",
)
TORCH_FILES: Final = ("test_c10d_gloo.py", "test_c10d_pypg.py")
TORCHTITAN_FOLDERS: Final = ("torchtitan", "tests/__init__.py", "tests/unit_tests", "tests/assets/tokenizer")
TORCHTITAN_FILES: Final = (  # those that make process groups
    "test_dist_gemm.py",
    "test_embedding.py",
    "test_fsdp_moe_sharding.py",
    "test_loss.py",
    "test_loss_dtensor.py",
    "test_module.py",
    "test_parallel_dims.py",
    "flex_shard/test_dist_muon.py",
)
RAY_EXAMPLES: Final = ("torch_linear_example", "torch_regression_example")
ACCELERATE_SCRIPTS: Final = ("test_script", "test_sync", "test_ops", "test_distributed_data_loop", "test_merge_weights")

# torch's own tests of its collectives, from the installed wheel: a file of torch's sources starts them so.
DISTRIBUTED_TEST: Final = """
import os, tempfile
os.environ.update(BACKEND="gloo", WORLD_SIZE="2")
if "TEMP_DIR" not in os.environ:  # the ranks import this file, too, and meet in one folder
    os.environ["TEMP_DIR"] = tempfile.mkdtemp()
    for name in ("barrier", "test_dir", "init_dir"):
        os.makedirs(os.path.join(os.environ["TEMP_DIR"], name))
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

class TestGloo(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()

del TestDistBackend
"""


# A plugin of pytest's: a suite's own settings decide how its tests are printed.
WRITE_NAMES: Final = """
import pathlib
def pytest_collection_finish(session):
    pathlib.Path(__file__).with_name("names").write_text("\\n".join(item.nodeid for item in session.items))
"""


class Suite(NamedTuple):
    """`names`: the sampled tests; none where there is nothing to run. `source`: what they are of, with its version."""

    title: str
    source: str
    names: tuple[str, ...]
    run: Run


class Row(NamedTuple):
    """One line of the table. `ranks`: rank files that the hooks wrote; `errors`: those that the hooks counted."""

    title: str
    source: str
    sampled: int
    without: int
    with_hooks: int
    differences: tuple[str, ...]
    ranks: int
    errors: int


class Workplace(NamedTuple):
    folder: Path
    python: str

    @property
    def rank_dir(self) -> Path:
        return self.folder / "ranks"

    def command(self, hooks: bool, *words: str) -> list[str]:
        """`python -m WORDS`."""
        laggard = ("laggard", "run", "-m") if hooks else ()
        return [self.python, "-m", *laggard, *words]

    def environment(self, **extra: str) -> Mapping[str, str]:
        own = {"LAGGARD_RANK_DIR": str(self.rank_dir), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        return {**os.environ, **own, "DS_ACCELERATOR": "cpu", **extra}


class Sources(NamedTuple):
    folder: Path
    revision: str


def fetch(source: str, tag: str | None, place: Path, *wanted: str) -> Sources:
    """What is `wanted` of a repository: from its working tree, from a bare copy of it, or, by its URL, in `place`."""
    path = Path(source)
    if (path / wanted[0]).is_dir():
        return Sources(path.resolve(), revision(path))
    if path.is_dir():
        place.mkdir()
        files = subprocess.run(["git", "-C", source, "archive", "HEAD", *wanted], check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", str(place)], check=True, input=files.stdout)
        return Sources(place, revision(path))
    branch = ("--branch", tag) if tag else ()
    command = ["git", "clone", "-q", "--depth", "1", "--filter=blob:none", "--sparse", *branch, "--", source]
    subprocess.run([*command, str(place)], check=True)
    subprocess.run(["git", "-C", str(place), "sparse-checkout", "set", "--no-cone", *wanted], check=True)
    return Sources(place, revision(place))


def revision(repository: Path) -> str:
    command = ["git", "-C", str(repository), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "no revision"


def spread(names: Sequence[str], count: int) -> list[str]:
    """`count` of the names, from the first to the last."""
    if len(names) <= count:
        return list(names)
    return [names[index * len(names) // count] for index in range(count)]


def sample(names: Sequence[str], per_file: int) -> list[str]:
    """Of each file's tests (`FILE::...::FUNCTION[CASE]`) some functions, and of each its first case."""
    files: dict[str, dict[str, str]] = {}
    for name in names:
        files.setdefault(name.partition("::")[0], {}).setdefault(name.partition("[")[0], name)
    return [name for functions in files.values() for name in spread(list(functions.values()), per_file)]


def pytest_suite(title: str, source: str, place: Workplace, folder: Path, files: Sequence[str], per_file: int) -> Suite:
    """A suite that pytest runs in `folder`."""
    present = [name for name in files if (folder / name).is_file()]

    def pytest(hooks: bool, words: Sequence[str], seconds: float) -> None:
        command = place.command(hooks, "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words)
        path = os.pathsep.join(filter(None, (str(place.folder), os.environ.get("PYTHONPATH", ""))))
        environment = place.environment(PYTHONPATH=path)
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=seconds)

    def collect() -> list[str]:
        (place.folder / "write_names.py").write_text(WRITE_NAMES)
        listed = place.folder / "names"
        pytest(False, ["--collect-only", "-p", "write_names", *present], 600)
        return listed.read_text().splitlines() if listed.is_file() else []

    def run(names: Sequence[str], hooks: bool) -> Outcomes:
        outcomes: Outcomes = {}
        for name in names:  # each in a process of its own: what hangs costs itself
            report = place.folder / "report.xml"
            report.unlink(missing_ok=True)
            pytest(hooks, [name, f"--junitxml={report}"], _CASE_SECONDS)
            outcomes[name] = outcome(report)
        return outcomes

    names = sample(collect(), per_file) if present else []
    return Suite(title, source, tuple(names), run)


def outcome(report: Path) -> str:
    """What pytest's report says of its one test. No report: the test was killed."""
    try:
        case = next(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError, StopIteration):
        return FAILED
    children = {child.tag for child in case}
    return FAILED if children & {"failure", "error"} else SKIPPED if "skipped" in children else PASSED


def script_suite(
    title: str, package: str, place: Workplace, words: Mapping[str, Sequence[str]], **environment: str
) -> Suite:
    """Scripts of an installed package, by name with the words of their `python -m`. A script passes where it ends with
    0."""
    installed = importlib.util.find_spec(package) is not None
    source = f"{package} {importlib.metadata.version(package)}" if installed else f"{package}, which is not installed"

    def run(names: Sequence[str], hooks: bool) -> Outcomes:
        return {name: PASSED if script(words[name], hooks) == 0 else FAILED for name in names}

    def script(words: Sequence[str], hooks: bool) -> int:
        process = subprocess.Popen(
            place.command(hooks, *words),
            cwd=place.folder,
            env=place.environment(**environment),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return process.wait(_SCRIPT_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its ranks, Ray its cluster
            return process.wait() or 1

    return Suite(title, source, tuple(words) if installed else (), run)


def accelerate_suite(place: Workplace) -> Suite:
    launcher = ("torch.distributed.run", "--nproc-per-node", "2", "-m")
    scripts = {name: (*launcher, f"accelerate.test_utils.scripts.{name}") for name in ACCELERATE_SCRIPTS}
    return script_suite("Accelerate's test scripts, 2 ranks", "accelerate", place, scripts, ACCELERATE_USE_CPU="true")


def ray_suite(place: Workplace) -> Suite:
    examples = {name: (f"ray.train.examples.pytorch.{name}", "--smoke-test") for name in RAY_EXAMPLES}
    files = {"HOME": str(place.folder), "RAY_TMPDIR": str(place.folder)}  # Ray's logs and checkpoints
    return script_suite("Ray Train's examples, 2 workers", "ray", place, examples, **files)


def compare(suite: Suite, place: Workplace) -> Row:
    """Runs the suite without the hooks, and what passes with them."""
    bare = suite.run(suite.names, False)
    passed = [name for name in suite.names if bare[name] == PASSED]
    hooked = suite.run(passed, True)
    differing = [name for name in passed if hooked[name] != PASSED]
    again, again_bare = suite.run(differing, True), suite.run(differing, False)
    differences = tuple(name for name in differing if again[name] != PASSED == again_bare[name])
    ranks, errors = _hooks_were_in(place.rank_dir)
    return Row(suite.title, suite.source, len(suite.names), len(passed), len(passed) - len(differences), differences,
               ranks, errors)  # fmt: skip


def _hooks_were_in(rank_dir: Path) -> tuple[int, int]:
    ranks = errors = 0
    for path in rank_dir.rglob("*.rank"):
        with RankFileReader(str(path)) as file:
            counters = file.counters()
            ranks, errors = ranks + 1, errors + (counters.errors if counters else 0)
        path.unlink()
    return ranks, errors


def suites(arguments: argparse.Namespace, folder: Path, place: Workplace) -> Iterator[Suite]:
    torch = importlib.metadata.version("torch").partition("+")[0]
    few = arguments.per_file
    if arguments.deepspeed:
        source = fetch(arguments.deepspeed, None, folder / "deepspeed", "tests")
        title = f"DeepSpeed {importlib.metadata.version('deepspeed')}, tests/unit on the CPU"
        files = [f"unit/{name}" for name in DEEPSPEED_FILES]
        yield pytest_suite(title, source.revision, place, source.folder / "tests", files, few)
    if arguments.torch:
        source = fetch(arguments.torch, f"v{torch}", folder / "torch", "test/distributed")
        title = f"torch {torch}, test/distributed: c10d_gloo, c10d_pypg"
        tests = source.folder / "test" / "distributed"
        yield pytest_suite(title, source.revision, place, tests, TORCH_FILES, 4 * few)
    if arguments.torchtitan:
        source = fetch(arguments.torchtitan, None, folder / "torchtitan", *TORCHTITAN_FOLDERS)
        files = [f"tests/unit_tests/{name}" for name in TORCHTITAN_FILES]
        yield pytest_suite("torchtitan, tests/unit_tests on the CPU", source.revision, place, source.folder, files, few)
    if importlib.util.find_spec("expecttest") is None:
        print("torch's own tests, and torchtitan's, need expecttest: pip install expecttest", file=sys.stderr)
    if not arguments.no_installed:
        (folder / "test_distributed.py").write_text(DISTRIBUTED_TEST)
        title = f"torch {torch}, distributed_test.py: gloo, 2 ranks by spawn"
        yield pytest_suite(title, "the wheel", place, folder, ["test_distributed.py"], 6 * few)
        yield accelerate_suite(place)
        yield ray_suite(place)


def table(rows: Sequence[Row]) -> str:
    lines = ["| suite | of | sampled | pass without | pass with | differences | ranks hooked | errors counted |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        numbers = (
            row.sampled,
            row.without,
            row.with_hooks,
            ", ".join(row.differences) or "none",
            row.ranks,
            row.errors,
        )
        lines.append(f"| {row.title} | {row.source} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deepspeed", metavar="PATH|URL", help="DeepSpeed's sources")
    parser.add_argument("--torch", metavar="PATH|URL", help="torch's sources; of a URL, the installed version's tag")
    parser.add_argument("--torchtitan", metavar="PATH|URL", help="torchtitan's sources")
    parser.add_argument("--no-installed", action="store_true", help="leave out what the installed packages bring")
    parser.add_argument("--per-file", type=int, default=4, metavar="N", help="functions of each file; default: 4")
    arguments = parser.parse_args()
    os.nice(10)
    rows, began = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="others-suites-") as name:
        place = Workplace(Path(name), sys.executable)
        for suite in suites(arguments, Path(name), place):
            print(f"{suite.title}: {len(suite.names)} tests of {suite.source}", file=sys.stderr, flush=True)
            if not suite.names:
                continue
            rows.append(compare(suite, place))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    print(f"\n{time.monotonic() - began:.0f} s")
    if not rows:
        return 2
    return 1 if any(row.differences or row.errors for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
