"""What a ring leaves on its nodes, for their agents."""

import os
from pathlib import Path

import pytest

from laggard import wire
from laggard.model import Severity, Verdict
from laggard.probes.nccl.last_ring import LastRing
from laggard.probes.probe import finding
from laggard.rings.document import PairResult, Pairs, Ring, RingNode
from laggard.rings.membership import NodeShare
from laggard.rings.run import keep_share, pairs_of

SLOW = finding("RING_SLOW", "node 1", "is slow", evidence={}, fix="", severity=Severity.CRITICAL)


@pytest.fixture(autouse=True)
def no_state_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAGGARD_STATE_DIR", raising=False)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's rings count")


@needs_root
def test_the_last_ring_that_judged_this_node_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "laggard/last_ring.json"
    keep_share(NodeShare((SLOW,), (), "", 4), str(path))
    assert wire.decode(path.read_bytes(), LastRing).findings == (SLOW,)
    keep_share(NodeShare((), (), "too few nodes", 2), str(path))
    assert wire.decode(path.read_bytes(), LastRing).nodes == 4
    keep_share(NodeShare((), ("RING_SLOW node 2",), "", 5), str(path))
    left = wire.decode(path.read_bytes(), LastRing)
    assert (left.findings, left.nodes) == ((), 5)
    assert [each.name for each in path.parent.iterdir()] == ["last_ring.json"]
    assert path.stat().st_mode & 0o777 == 0o644


@needs_root
def test_where_nothing_can_be_written_nothing_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    keep_share(NodeShare((SLOW,), (), "", 4), str(tmp_path / "file/last_ring.json"))
    assert capfd.readouterr() == ("", "") and (tmp_path / "file").read_text() == ""


def test_another_users_ring_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    keep_share(NodeShare((SLOW,), (), "", 4), str(tmp_path / "rings/last_ring.json"))
    assert not list(tmp_path.iterdir()), "root alone makes the folder, and decides whose it is"


@needs_root
def test_a_ring_whose_state_is_elsewhere_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))
    keep_share(NodeShare((SLOW,), (), "", 4), str(tmp_path / "rings/last_ring.json"))
    assert not list(tmp_path.iterdir())


def test_the_node_that_led_keeps_what_was_measured_in_pairs(tmp_path: Path) -> None:
    """By places among the nodes that are left, which are numbered as the ring numbered them."""
    nodes = tuple(RingNode(number, f"n{number}", number, 1, "") for number in (0, 2, 3))
    matrix = (
        PairResult((0, 2), 1, 0.1, 5e9, 0),
        PairResult((2, 3), 2, None, None, 0),
        PairResult((0, 1), 1, 0.1, 5e9, 0),
    )
    pairs = Pairs(1 << 20, 2, 3, 2, slow_nodes=(3,), slow_links=((2, 3),), slow_compute=(), matrix=matrix)
    ring = Ring(verdict=Verdict.FAIL, world_size=3, transport={}, nodes=nodes, results=(), findings=(), pairs=pairs)
    found = pairs_of(ring)
    assert found is not None and found.nodes == ("n0", "n2", "n3")
    assert found.pairs == ((0, 1, 5e9), (1, 2, None)) and (found.slow_nodes, found.slow_links) == ((2,), ((1, 2),))
    assert pairs_of(None) is None
    path = tmp_path / "last_ring.json"
    keep_share(NodeShare((), (), "", 3), str(path), found)
    assert wire.decode(path.read_bytes(), LastRing).pairs == found
