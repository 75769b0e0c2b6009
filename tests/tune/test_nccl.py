"""`laggard tune nccl`: the variables that it tries, and that nothing fast and wrong is ever recommended."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import nccl_tests
from support.nccl_logs import log_text, logs_firing
from support.paths import TESTS
from support.rows import rows

from laggard.cli import main
from laggard.kit.errors import UsageError
from laggard.model import Verdict
from laggard.rings.document import Ring, RingResult
from laggard.tune.nccl import Message, environment, judge
from laggard.tune.nccl_variables import Facts, nccl_space
from laggard.tune.plan import Configuration, Found, Outcome, Parameter, Plan, Space, Status, changes
from laggard.tune.search import Search
from laggard.tune.trial import Ended
from laggard.wire import encode

MIB = 1 << 20
STAND_IN = TESTS / "support" / "nccl_tests.py"
COMMAND = f"{shlex.quote(sys.executable)} -S -E {shlex.quote(str(STAND_IN))} {{test}} -b {{bytes}} -e {{bytes}}"
H100_ROCE = Facts((2, 27, 5), "roce", 4, 8, 8, 90, True, frozenset({"all_reduce", "all_gather", "reduce_scatter"}))
FEW = ["NCCL_MIN_CTAS", "NCCL_NTHREADS", "NCCL_IB_SPLIT_DATA_ON_QPS"]


def names(facts: Facts) -> set[str]:
    return {each.name for each in nccl_space(facts, {}, {}).parameters}


def test_the_variables_of_hoppers_over_roce() -> None:
    assert names(H100_ROCE) == {
        "NCCL_ALGO",
        "NCCL_MIN_CTAS",
        "NCCL_MAX_CTAS",
        "NCCL_BUFFSIZE",
        "NCCL_NTHREADS",
        "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        "NCCL_CROSS_NIC",
        "NCCL_NVLS_ENABLE",
        "NCCL_NVLS_CHUNKSIZE",
        "NCCL_NVLSTREE_MAX_CHUNKSIZE",
    }


@pytest.mark.parametrize(
    ("facts", "gone", "come"),
    [
        (H100_ROCE._replace(compute_capability=80), {"NCCL_NVLS_ENABLE", "NCCL_NVLS_CHUNKSIZE"}, set()),
        (H100_ROCE._replace(nics=1), {"NCCL_CROSS_NIC"}, set()),
        (H100_ROCE._replace(nodes=1), {"NCCL_CROSS_NIC", "NCCL_IB_QPS_PER_CONNECTION"}, set()),
        (H100_ROCE._replace(transport="socket"), {"NCCL_IB_QPS_PER_CONNECTION"}, {"NCCL_SOCKET_NTHREADS"}),
        (H100_ROCE._replace(version=(2, 16, 5)), {"NCCL_MAX_CTAS"}, {"NCCL_MAX_NCHANNELS"}),
        (H100_ROCE._replace(collectives=frozenset({"all_to_all"})), {"NCCL_ALGO"}, {"NCCL_P2P_NET_CHUNKSIZE"}),
    ],
)
def test_what_cannot_matter_is_not_searched(facts: Facts, gone: set[str], come: set[str]) -> None:
    found = names(facts)
    assert not gone & found and come <= found, f"searched: {sorted(found)}"


def test_values_follow_the_version() -> None:
    for version, most in (((2, 21, 5), 32), ((2, 27, 5), 64)):
        space = nccl_space(H100_ROCE._replace(version=version), {}, {})
        (blocks,) = (each for each in space.parameters if each.name == "NCCL_MAX_CTAS")
        assert max(int(str(each)) for each in blocks.choices if each) == most, f"NCCL {version}"


@rows("tune/never_searched")
def test_what_is_never_searched_is_refused(name: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        nccl_space(H100_ROCE, {}, {name: ["1"]})


def judged(configuration: Configuration, traps: str, seed: int, messages: Sequence[Message]) -> Outcome:
    """What the tuner makes of the stand-in's output, without a process."""
    whole = 0.0
    for message in messages:
        environ = environment({"STAND_IN_TRAPS": traps}, configuration)
        if "hang" in nccl_tests.traps_of(environ):
            return Outcome(Status.HUNG)
        text, status = nccl_tests.output(environ, "all_reduce_perf", message.size_bytes, seed)
        outcome = judge(Ended(status, text, "", 0.1), message)
        if outcome.seconds is None:
            return outcome
        whole += outcome.seconds * message.times
    return Outcome(Status.OK, whole)


def searched(space: Space, traps: str, seed: int) -> tuple[Search, Found]:
    search = Search(space, Plan(trials=120, seed=seed))
    steps, count = search.run(), seed * 1000
    proposal = next(steps)
    while True:
        count += 1
        try:
            proposal = steps.send(judged(proposal.configuration, traps, count, [Message("all_reduce", 64 * MIB)]))
        except StopIteration as stop:
            return search, stop.value


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(5))
def test_a_setting_that_is_fast_and_wrong_is_never_chosen(tens: int) -> None:
    """Fifty seeds. NCCL_CHUNK_SIZE stands in the space here, past the rule that refuses it: its wrong results alone
    must keep it out; so must those of a variable that is wrong in every second run."""
    traps = "NCCL_MAX_CTAS=24:sometimes NCCL_NTHREADS=64:wrong NCCL_MIN_CTAS=32:hang NCCL_BUFFSIZE=16777216:crash"
    whole = nccl_space(H100_ROCE, {}, {})
    chunk = Parameter("NCCL_CHUNK_SIZE", (None, "524288", "1048576", "2097152"), None, "added")
    space = whole._replace(parameters=(*whole.parameters, chunk))
    wrong = {"NCCL_CHUNK_SIZE": ("1048576", "2097152"), "NCCL_MAX_CTAS": ("24",), "NCCL_NTHREADS": ("64",)}
    for seed in range(10 * tens, 10 * tens + 10):
        search, found = searched(space, traps, seed)
        assert found.best is not None, f"seed {seed} found nothing faster: {found}"
        chosen = changes(space, found.best.configuration)
        assert not [name for name, values in wrong.items() if chosen.get(name) in values], f"seed {seed}: {chosen}"
        truth = [nccl_tests.seconds_of(environment({}, each), 64 * MIB) for each in (space.default, chosen)]
        assert truth[0] / truth[1] > 1.25, f"seed {seed}: {chosen} is {truth[0] / truth[1]:.2f} times as fast"
        assert search.board.spent <= 120 + 24, f"seed {seed} took {search.board.spent} trials"


def tune(tmp_path: Path, *words: str, traps: str = "", trials: int = 60, deadline: int = 20) -> list[str]:
    flags = ["--transport", "roce", "--nodes", "2", "--messages", "all_reduce:64M", "--trials", str(trials)]
    own = [word for name in FEW for word in ("--leave-out", name)]
    study = ["--study", str(tmp_path / "study.db"), "--deadline", str(deadline), "--format", "json"]
    command = f"env STAND_IN_TRAPS={shlex.quote(traps)} STAND_IN_RUNS={tmp_path / 'runs'} {COMMAND}"
    return ["tune", "nccl", "--command", command, *flags, *own, *study, *words]


@pytest.mark.wall_clock("2026-11-25, at load 8 to 18: another setting won")
@pytest.mark.slow
def test_a_campaign_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole: processes, study, a trap of every kind, the recommendation and its files."""
    traps = (
        "NCCL_MAX_CTAS=8:crash NCCL_MAX_CTAS=24:wrong NCCL_BUFFSIZE=16777216:memory NCCL_BUFFSIZE=1048576:garbage "
        "NCCL_IB_QPS_PER_CONNECTION=8:hang"
    )
    page, files = tmp_path / "report.html", tmp_path / "files"
    assert main(tune(tmp_path, "--html", str(page), "--write", str(files), traps=traps)) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    statuses = {each["status"] for each in document["trials"]}
    assert statuses == {"ok", "crashed", "wrong", "out of memory", "garbage", "hung"}
    assert document["rejected"] == {"NCCL_MAX_CTAS": "'24'"}
    items = {each["key"]: each for each in document["recommendation"]["items"]}
    assert items and all(each["gain"]["basis"] == "measured" and each["gain"]["low"] > 1 for each in items.values())
    assert not {"8", "24"} & {each["recommended"] for each in items.values() if each["key"] == "NCCL_MAX_CTAS"}
    written = (files / "nccl.env").read_text()
    assert all(f"export {name}={each['recommended']}" in written for name, each in items.items()), written
    assert "<svg" in page.read_text() and "http://www.w3.org" in page.read_text()
    assert "[60/60]" in captured.err or "confirm" in captured.err, "no progress was shown"


def test_a_sick_fabric_is_not_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "nccl.log"
    log.write_text(log_text(logs_firing("TCP_FALLBACK")[0]))
    assert main(tune(tmp_path, "--from", str(log))) == 1
    assert "TCP_FALLBACK" in capsys.readouterr().err
    assert not (tmp_path / "study.db").exists(), "a trial was made"


def test_output_that_says_nothing_of_results_is_not_believed() -> None:
    message = Message("all_reduce", 64 * MIB)
    text, _ = nccl_tests.output({}, "all_reduce_perf", 64 * MIB, 0)
    assert judge(Ended(0, text, "", 1.0), message).status is Status.OK
    cases = {
        "not checked": text.replace("       0", "     N/A"),
        "Out of bounds": "\n".join(line for line in text.splitlines() if "Out of bounds" not in line),
        "no row": text.replace(f"{64 * MIB:12d}", f"{32 * MIB:12d}"),
        "not all_reduce": text.replace("all_reduce_perf", "all_gather_perf"),
    }
    for why, changed in cases.items():
        outcome = judge(Ended(0, changed, "", 1.0), message)
        assert outcome.status is Status.GARBAGE and why in outcome.detail, f"{why}: {outcome}"
    failed = text.replace("Out of bounds values : 0 OK", "Out of bounds values : 1 FAILED")
    assert judge(Ended(0, failed, "", 1.0), message).status is Status.WRONG, "only the last line says it"


def test_a_ring_on_cpus_measures_no_variable_of_nccl() -> None:
    result = RingResult("all_reduce", MIB, 1e-3, 1e9, 1e9, 0, 10, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3)
    for backend, status in (("gloo", Status.GARBAGE), ("nccl", Status.OK)):
        ring = Ring(Verdict.OK, 2, {"backend": backend}, (), (result,), ())
        outcome = judge(Ended(0, encode(ring).decode(), "", 1.0), Message("all_reduce", MIB))
        assert outcome.status is status, outcome
        assert ("on CPUs" in outcome.detail) == (backend == "gloo")
