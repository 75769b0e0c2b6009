"""Findings from pairs of nodes, and their part of the document. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from laggard.kit.words import counted
from laggard.model import Finding
from laggard.probes.probe import finding
from laggard.rings.document import PairResult, Pairs
from laggard.rings.judge import ring_failed, severity_of_ratio
from laggard.rings.options import bus_factor
from laggard.rings.pairs.judge import Judgement, Pair, culprits_of, judge_pairs, node_bests
from laggard.rings.pairs.rounds import PairsMeasured

_FIX_NODE: Final = (
    "Keep jobs off the node and look at what connects it: `laggard healthcheck` there (RDMA_RATE_LOW, "
    "PCIE_LINK_DEGRADED, RDMA_ERRORS_RISING), its cable and its switch port."
)
_FIX_LINK: Final = (
    "Both nodes are fast with others: look at what lies between these two, at the path's switches, uplinks and "
    "routing (ECMP, adaptive routing)."
)
_FIX_WRONG: Final = (
    "Keep jobs off it: gradients that it passes on are wrong without any error. The faulty part is a GPU's memory, a "
    "NIC or a driver."
)
_MAX_PAIRS_IN_EVIDENCE: Final = 8
_MAX_DISTURBED: Final = 4
"""The most disturbed pairs that are told of."""


class PairsJudged(NamedTuple):
    pairs: Pairs
    findings: list[Finding]
    accused: list[tuple[int, ...]]
    """The nodes that each of `findings` accuses: both of a link's."""
    unknown: list[str]


class _Ring(NamedTuple):
    measured: PairsMeasured
    judgement: Judgement
    size_bytes: int
    ranks: int
    name: Callable[[int], str]

    def bandwidth(self, seconds: float) -> float:
        return self.size_bytes / seconds * bus_factor("all_reduce", self.ranks) if seconds else 0.0


def judge_measured(
    measured: PairsMeasured,
    nodes: int,
    size_bytes: int,
    ranks: int,
    slow_compute: Collection[int],
    compute_exchanges: bool,
    name: Callable[[int], str],
    judgement: Judgement | None = None,
) -> PairsJudged:
    """`ranks`: of a pair; `slow_compute`: the nodes that compute slowly; `compute_exchanges`: what computes is also
    what exchanges data, as a CPU does, so that such a node's slow pairs are no second fault. `judgement`: of the times,
    where it is another than judge_pairs()'."""
    judgement = judge_pairs(measured.times) if judgement is None else judgement
    ring = _Ring(measured, judgement, size_bytes, ranks, name)
    explained = set(slow_compute) if compute_exchanges else set()
    slow_nodes = {node: ratio for node, ratio in judgement.slow_nodes.items() if node not in explained}
    found = [
        (_lost(failure.text, name(failure.node)), (failure.node,)) for failure in measured.lost if not failure.left
    ]
    found += [(_slow_node(ring, node, ratio), (node,)) for node, ratio in slow_nodes.items()]
    slow_links = {pair: ratio for pair, ratio in judgement.slow_links.items() if explained.isdisjoint(pair)}
    links = [(_slow_link(ring, pair, ratio), pair) for pair, ratio in slow_links.items()]
    accused = [*found, *links, *_wrong(ring)]
    pairs = Pairs(
        size_bytes=size_bytes,
        rounds=measured.rounds,
        links=nodes * (nodes - 1) // 2,
        links_measured=len(measured.times),
        slow_nodes=tuple(sorted(judgement.slow_nodes)),
        slow_links=tuple(sorted(judgement.slow_links)),
        slow_compute=tuple(sorted(slow_compute)),
        matrix=tuple(_result(ring, pair) for pair in sorted(measured.times)),
    )
    return PairsJudged(
        pairs,
        [finding for finding, _ in accused],
        [tuple(nodes) for _, nodes in accused],
        list(_not_judged(ring, explained)),
    )


def _slow_node(ring: _Ring, node: int, ratio: float) -> Finding:
    own = {pair: min(times) for pair, times in ring.measured.times.items() if node in pair}
    partners = [ring.name(pair[0] if pair[1] == node else pair[1]) for pair in own]
    if math.isinf(ratio):
        text = f"failed with each of {counted(len(own), 'node')}: {_error(ring, own)}"
        return ring_failed(ring.name(node), text, {"partners": partners[:_MAX_PAIRS_IN_EVIDENCE]})
    return _slow(ring, ring.name(node), ratio, _FIX_NODE, {"partners": partners[:_MAX_PAIRS_IN_EVIDENCE]}, len(own))


def _slow_link(ring: _Ring, pair: Pair, ratio: float) -> Finding:
    device = f"the link between {ring.name(pair[0])} and {ring.name(pair[1])}"
    times = ring.measured.times[pair]
    if math.isinf(ratio):
        text = f"failed {len(times)} times, and both nodes are good with others: {_error(ring, (pair,))}"
        return ring_failed(device, text, {"nodes": list(pair)})
    best = node_bests({other: min(seconds) for other, seconds in ring.measured.times.items()})
    evidence = {
        "nodes": list(pair),
        "seconds": [round(seconds, 6) for seconds in times[:_MAX_PAIRS_IN_EVIDENCE]],
        "best_seconds_of_the_nodes": [round(best[node], 6) for node in pair],
    }
    return _slow(ring, device, ratio, _FIX_LINK, evidence, 1)


def _slow(ring: _Ring, device: str, ratio: float, fix: str, evidence: Mapping[str, object], partners: int) -> Finding:
    assert ring.judgement.centre is not None
    usual = ring.bandwidth(ring.judgement.centre.seconds)
    own = usual / ratio
    with_whom = f" with each of {counted(partners, 'node')}" if partners > 1 else ""
    return finding(
        "RING_SLOW",
        device,
        f"exchanges {_rate(own)}{with_whom}, {100 / ratio:.0f} % of the ring's usual {_rate(usual)}",
        evidence={
            "busbw_bytes_per_second": round(own),
            "usual_busbw_bytes_per_second": round(usual),
            "ratio": round(1 / ratio, 4),
            "size_bytes": ring.size_bytes,
            **evidence,
        },
        fix=fix,
        severity=severity_of_ratio(1 / ratio),
    )


def _wrong(ring: _Ring) -> list[tuple[Finding, tuple[int, ...]]]:
    nodes, links = culprits_of(ring.measured.wrong)
    accused: dict[str, tuple[int, ...]] = {ring.name(node): (node,) for node in nodes}
    accused |= {f"the link between {ring.name(one)} and {ring.name(other)}": (one, other) for one, other in links}
    evidence = {"pairs": [list(pair) for pair in sorted(ring.measured.wrong)][:_MAX_PAIRS_IN_EVIDENCE]}
    text = "gave wrong results in an all-reduce of two nodes"
    return [
        (finding("RING_FAILED", device, text, evidence=evidence, fix=_FIX_WRONG), own)
        for device, own in accused.items()
    ]


def _lost(text: str, name: str) -> Finding:
    return ring_failed(name, f"left the ring: {text.removeprefix(name).lstrip(': ')}", {"said": text})


def _not_judged(ring: _Ring, explained: Collection[int]) -> list[str]:
    judgement, texts = ring.judgement, []
    gone = {failure.node for failure in ring.measured.lost if failure.left}
    texts += list(ring.measured.disturbed.values())[:_MAX_DISTURBED]
    if judgement.centre is None:
        texts.append("too few nodes were measured to tell what is usual: pairs need three")
    links = [pair for pair in judgement.suspect_links if gone.isdisjoint(pair) and not set(explained) & set(pair)]
    suspects = [ring.name(node) for node in judgement.suspect_nodes if node not in explained and node not in gone]
    suspects += [f"the link between {ring.name(one)} and {ring.name(other)}" for one, other in links]
    if suspects:
        texts.append(f"{', '.join(suspects[:4])}: slow so far, and measured too few times to be sure")
    elif not ring.measured.complete:
        texts.append("--seconds were over before all pairs were measured")
    return texts


def _result(ring: _Ring, pair: Pair) -> PairResult:
    times = ring.measured.times[pair]
    best = min(times)
    if math.isinf(best):
        return PairResult(pair, len(times), None, None, ring.measured.wrong.get(pair, 0))
    return PairResult(pair, len(times), best, ring.bandwidth(best), ring.measured.wrong.get(pair, 0))


def _error(ring: _Ring, pairs: Collection[Pair]) -> str:
    return next((ring.measured.errors[pair] for pair in pairs if pair in ring.measured.errors), "no answer")


def _rate(per_second: float) -> str:
    return f"{per_second / 1e9:.3g} GB/s" if per_second >= 1e9 else f"{per_second / 1e6:.3g} MB/s"
