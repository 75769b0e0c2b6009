"""What each node of a gang is told of the ring's findings."""

from laggard.model import Finding, Severity, Verdict
from laggard.probes.probe import finding
from laggard.rings import messages
from laggard.rings.document import Accused, Ring, RingNode
from laggard.rings.messages import End
from laggard.rings.run import share_of

NODES = tuple(RingNode(number, f"n{number}", number, 1, "CPU") for number in range(4))


def found(code: str, device: str, **evidence: object) -> Finding:
    return finding(code, device, "is slow", evidence=evidence, fix="", severity=Severity.CRITICAL)


def ring(
    *findings: Finding, accused: dict[int, tuple[int, ...]], absent: tuple[str, ...] = (), unknown: str = ""
) -> Ring:
    who = tuple(Accused(node, places) for node, places in accused.items())
    return Ring(Verdict.FAIL, 4, {}, NODES, (), findings, unknown, accused=who, absent=absent)


def test_the_accused_node_alone_has_the_finding() -> None:
    slow = found("RING_SLOW", "node 2 (n2)")
    whole = ring(slow, accused={2: (0,)})
    assert share_of(whole, 2).findings == (slow,) and share_of(whole, 2).others == ()
    other = share_of(whole, 1)
    assert (other.findings, other.others, other.unknown, other.judged) == (
        (),
        ("RING_SLOW node 2 (n2) is slow",),
        "",
        4,
    )


def test_a_slow_link_is_a_warning_on_both_nodes_and_a_failing_one_is_critical() -> None:
    slow = found("RING_SLOW", "the link between node 0 (n0) and node 1 (n1)", nodes=[0, 1])
    broken = found("RING_FAILED", "the link between node 0 (n0) and node 1 (n1)", nodes=[0, 1])
    whole = ring(slow, broken, accused={0: (0, 1), 1: (0, 1)})
    for number in (0, 1):
        severities = [each.severity for each in share_of(whole, number).findings]
        assert severities == [Severity.WARNING, Severity.CRITICAL]
    assert share_of(whole, 2).findings == () and len(share_of(whole, 2).others) == 2


def test_who_did_not_come_is_named_and_what_accuses_nobody_is_told_to_all() -> None:
    shared = found("RING_FAILED", "the ring's all_reduce")
    share = share_of(ring(shared, accused={}, absent=("node 3 (n3)", "10.0.0.9 was refused: too late")), 0)
    assert share.others[:2] == ("node 3 (n3) did not come", "10.0.0.9 was refused: too late")
    assert share.others[2] == "RING_FAILED the ring's all_reduce is slow"


def test_a_share_fits_into_a_message_however_much_was_found() -> None:
    many = [found("RING_FAILED", f"node {number}", said="x" * 300, partners=["p" * 80] * 8) for number in range(64)]
    whole = ring(*many, accused={0: tuple(range(64))}, absent=tuple("a" * 1000 for _ in range(100)), unknown="u" * 9999)
    assert len(messages.line(End(1, "why", share_of(whole, 0)))) < messages.MAX_BYTES
    assert len(messages.line(End(1, "why", share_of(whole, 1)))) < messages.MAX_BYTES
