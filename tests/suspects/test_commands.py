"""`laggard exclude` and `laggard confirm`: what they make of a collector's documents, and tell it. The collector is
a stand-in, which sends the documents of the test; test_at_collector.py has the real one."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.fronts import served_by
from support.ports import free_port

from laggard.cli import main
from laggard.model import Verdict
from laggard.rings.document import Ring, RingNode, Suspect, Swap
from laggard.wire import decode, encode
from laggard.wire.exclusion import ConfirmAsk, ConfirmedDocument, Exclusion, ExclusionsDocument
from laggard.wire.nodes import NodeRow, NodesDocument
from laggard.wire.signing import CONFIRM, signer

TOKEN = "a secret of operators"
NOW = 1_790_000_000.0


def excluded(*nodes: str, **changes: Any) -> ExclusionsDocument:
    found = tuple(Exclusion(node, "culprit", f"a rank on {node} is slow", NOW - 60, NOW + 3600) for node in nodes)
    return structs.replace(ExclusionsDocument(found, 9, 20, 20, 43200.0, NOW), **changes)


class Collector:
    def __init__(self) -> None:
        self.url = ""
        self.exclusions: ExclusionsDocument | None = excluded("n2")
        self.posted: list[ConfirmAsk] = []

    def answer(self, path: str, body: bytes) -> bytes:
        if path.startswith("/api/v1/exclusions"):
            return b"<html>" if self.exclusions is None else encode(self.exclusions)
        if path.startswith("/api/v1/nodes"):
            rows = (NodeRow(f"http://{name}:1", name, "up", "", 1.0, "ok", (), ()) for name in ("n1", "n2", "n3"))
            return encode(NodesDocument(tuple(rows)))
        self.posted.append(decode(body, ConfirmAsk))
        return encode(ConfirmedDocument(self.posted[-1].confirmation, (7,)))


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    with served_by(lambda path, body, headers: (200, found.answer(path, body))) as found.url:
        yield found


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(collector: Collector, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)

    def laggard(command: str, *words: str, url: str = "") -> tuple[int, str, str]:
        flags = ("--scheduler", "none") if command == "exclude" else ("--token-file", str(tmp_path / "token"))
        status = main([command, *words, *flags, "--collector", url or collector.url])
        said = capsys.readouterr()
        return status, said.out, said.err

    return laggard


def test_the_list_is_printed_as_each_scheduler_takes_it(run: Run, collector: Collector, tmp_path: Path) -> None:
    collector.exclusions = excluded("n2", "n3")
    assert run("exclude") == (0, "n[2-3]\n", "")
    assert run("exclude", "--format", "kubernetes")[1].count("operator: NotIn") == 2
    status, text, _ = run("exclude", "--explain")
    assert status == 0 and text.startswith("2 nodes to leave out.\nn2: a rank on n2 is slow; ")
    document = json.loads(run("exclude", "--json")[1])
    assert (document["names"], document["hostlist"], document["scheduler"]) == (["n2", "n3"], "n[2-3]", "none")
    (tmp_path / "hosts").write_text("n1 slots=8\nn2 slots=8\n")
    assert run("exclude", "--hostfile", str(tmp_path / "hosts"))[:2] == (0, "n1 slots=8\n")
    (tmp_path / "hosts").write_text("n2 slots=8\n")
    status, text, errors = run("exclude", "--hostfile", str(tmp_path / "hosts"))
    assert (status, text) == (64, "") and "no host of" in errors
    collector.exclusions = excluded()
    assert run("exclude") == (0, "", "")


def test_what_the_cap_keeps_out_is_told_beside_the_list(run: Run, collector: Collector) -> None:
    collector.exclusions = excluded("n1", "n2", cap=1)
    status, text, errors = run("exclude")
    assert (status, text) == (1, "n1\n") and errors.startswith("laggard: 2 of 20 nodes are suspect, and at most 1 may")


def test_what_cannot_be_told_is_no_empty_list(run: Run, collector: Collector) -> None:
    def cannot_tell(why: str, **where: str) -> None:
        status, text, errors = run("exclude", **where)
        assert (status, text, errors.count("\n")) == (2, "", 1) and why in errors
        assert json.loads(run("exclude", "--json", **where)[1])["exit_status"] == 2

    collector.exclusions = excluded(unknown="no agent answers")
    cannot_tell("knows nothing: no agent answers")
    collector.exclusions = None
    cannot_tell("is of another version")
    cannot_tell("no collector answers", url=f"http://127.0.0.1:{free_port()}")
    assert run("exclude", "--for", "8d")[0] == 64


@pytest.fixture
def ring(tmp_path: Path) -> Callable[[str], str]:
    """Writes what a ring of three nodes found of n2, behind a line of srun's; returns the path."""

    def write(outcome: str) -> str:
        nodes = tuple(RingNode(number, f"n{number + 1}", number, 1, "") for number in range(3))
        rate = 2e6 if outcome == "confirmed" else 24e6
        swaps = (Swap(0, 2, 2, 0.1, 24e6), Swap(0, 1, 2, 0.1, rate), Swap(1, 0, 2, 0.1, None))
        suspect = Suspect(1, "n2", outcome, "it was so", rate / 24e6, 1.0, swaps)
        found = encode(Ring(Verdict.OK, 3, {}, nodes, (), (), suspect=suspect))
        (tmp_path / "ring.json").write_bytes(b"srun: job 7 started\n" + found + b"\n")
        return str(tmp_path / "ring.json")

    return write


def test_a_measured_suspect_is_told_to_the_collector_signed_with_its_figures(
    run: Run, collector: Collector, ring: Callable[[str], str]
) -> None:
    status, text, _ = run("confirm", "n2", "--ring", ring("confirmed"))
    assert status == 1 and text.startswith("n2 is confirmed as slow: it was so (8 % of their rate"), text
    assert "  n1 first, n2 second: 2 MB/s\n  n2 first, n1 second: failed\n  n1 first, n3 second: 24 MB/s\n" in text
    assert text.endswith("The collector keeps it, in 1 incident of it.\n")
    (asked,) = collector.posted
    told = asked.confirmation
    assert (
        signer([TOKEN], CONFIRM, asked)
        and not signer(["another"], CONFIRM, asked)
        and abs(asked.at - time.time()) < 600
    )
    assert (told.node, told.outcome, told.peers, told.compute_ratio) == ("n2", "confirmed", ("n1", "n3"), 1.0)
    status, text, _ = run("confirm", "n2", "--ring", ring("acquitted"), "--format", "json")
    assert (status, json.loads(text)["written"]) == (0, True)


def test_what_says_nothing_of_the_suspect_is_told_to_nobody(
    run: Run, collector: Collector, ring: Callable[[str], str], tmp_path: Path
) -> None:
    unsure = run("confirm", "n2", "--ring", ring("unknown"))
    assert unsure[:2] == (2, "Cannot tell of n2: it was so (100 % of their rate, 100 % of their computing).\n")
    assert run("confirm", "n2", "--only-measure", "--ring", ring("confirmed"))[0] == 1
    for words, why in (
        (("n3", "--ring", ring("confirmed")), "that ring's suspect was n2, and not n3"),
        (("n9", "--ring", ring("confirmed")), "the collector knows no node n9"),
        (("n2", "--ring", str(tmp_path / "token")), "is no document of `laggard ring --format json`"),
        (("n2", "--ring", str(tmp_path / "none")), "cannot be read: No such file"),
    ):
        status, text, errors = run("confirm", *words)
        assert (status, text, errors.count("\n")) == (64, "", 1) and why in errors
    assert not collector.posted
