"""Who asks, by addresses, certificates and headers, and what that user sees."""

import dataclasses
from typing import Any

import pytest
from msgspec import structs
from starlette.datastructures import Headers
from support.rows import rows
from support.timings import of_states

from laggard.collector.incidents.incident import Incident
from laggard.collector.jobs.holdings import NotHeld
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.collector.outliers import fleet_lines
from laggard.collector.settings import CollectorSettings
from laggard.collector.tenants import Admission, NotAdmitted, NotLookedUp, Peer, PeerList, Viewer, peer_of
from laggard.collector.visible import visible, visible_incident
from laggard.locate.job_timings import NodeFindings, RankState
from laggard.locate.slow.host_facts import neighbours_text
from laggard.model import CpuNeighbour, Culprit, Finding, Fix, JobKey, Location, Note, Severity, Verdict, Window
from laggard.wire.nodes import NodeFinding, NodeRow, RingPairs

SETTINGS: dict[str, Any] = {
    "tenant_header": "X-Remote-User",
    "tenant_groups_header": "X-Remote-Groups",
    "tenant_certificates": True,
    "trusted_proxies": ("10.1.0.0/16", "fd00::7", "certificate:proxy.example"),
    "operators": ("ops", "@admins", "certificate:prometheus.example"),
    "tenant_users": {"ada": 61001},
    "tenant_domain": "example.org",
    "gate_clients": ("certificate:*.nodes.example",),
}

PROXY = Peer("10.1.2.3")
ELSEWHERE = Peer("10.2.0.1")


def viewer(peer: Peer, *headers: tuple[str, str], **changes: Any) -> Viewer:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    admission = Admission(CollectorSettings(**{**SETTINGS, **changes}))
    try:
        return admission.viewer(peer, Headers(raw=raw))
    except NotLookedUp as error:
        admission.look_up(error.name)
        return admission.viewer(peer, Headers(raw=raw))


def user(name: str) -> tuple[str, str]:
    return "X-Remote-User", name


@pytest.mark.parametrize(
    "peer", [PROXY, Peer("::ffff:10.1.2.3"), Peer("fd00::7"), Peer("10.2.0.1", ("Proxy.Example",), "whoever")]
)
def test_a_trusted_proxy_is_believed(peer: Peer) -> None:
    assert viewer(peer, user("ada")) == (61001, "ada")


@pytest.mark.parametrize(
    ("headers", "uid"),
    [
        ((user("ada"),), 61001),
        ((user("ada@example.org"),), 61001),
        ((user("nobody"),), 65534),  # of this machine
        ((user("ops"),), None),
        ((user("ops@example.org"),), None),
        ((user("stranger"), ("X-Remote-Groups", "users, admins")), None),
        ((user("ada"), ("X-Remote-Groups", "users, @admins")), 61001),
    ],
)
def test_whom_the_proxy_names(headers: tuple[tuple[str, str], ...], uid: int | None) -> None:
    assert viewer(PROXY, *headers).uid == uid


@pytest.mark.parametrize(
    ("peer", "headers", "status", "words"),
    [
        (ELSEWHERE, (), 401, "say who you are"),
        (PROXY, (), 401, "names nobody in X-Remote-User: log in there"),
        (PROXY, (user(" "),), 401, "names nobody"),
        (PROXY, (user("ada"), user("ops")), 403, "2 headers"),
        (PROXY, (user("eve"), ("X-Remote-Groups", "admins"), ("X-Remote-Groups", "x")), 403, "2 headers X-Remote-G"),
        (PROXY, (user("61001"),), 403, "no user 61001 is known"),
        (
            PROXY,
            (user("ops\xa0"),),
            403,
            "holds what no name does",
        ),  # what Python takes for a space, and a proxy for a letter
        (PROXY, (user("\x85ops"),), 403, "holds what no name does"),
        (PROXY, (user("ada@evil.org"),), 403, "no user ada@evil.org is known"),
        (PROXY, (user("@admins"),), 403, "no user"),
        (PROXY, (user("certificate:prometheus.example"),), 403, "no user"),
        (PROXY, (user("@example.org"),), 403, "no user"),
        (PROXY, (user("a" * 300),), 403, "too long"),
        (ELSEWHERE, (user("ada"),), 403, "believed from trusted_proxies alone"),
        (ELSEWHERE, (("X-Remote-Groups", "admins"),), 403, "believed from trusted_proxies alone"),
        (Peer("::ffff:10.2.0.1"), (user("ops"),), 403, "believed from trusted_proxies alone"),
        (Peer("10.1.2.3.evil.example"), (user("ops"),), 403, "believed from trusted_proxies alone"),
        (ELSEWHERE, (user("ops"), ("X-Forwarded-For", "10.1.2.3")), 403, "believed from trusted_proxies alone"),
        (Peer("", ("prometheus.example",)), (user("ops"),), 403, "believed from trusted_proxies alone"),
        (Peer("", ("x.proxy.example",), "stranger"), (), 403, "no user stranger is known"),
        (Peer("", ("n1.nodes.example",)), (), 403, "not one common name"),
    ],
)
def test_nobody_else_is_answered_and_is_told_why(
    peer: Peer, headers: tuple[tuple[str, str], ...], status: int, words: str
) -> None:
    with pytest.raises(NotAdmitted) as raised:
        viewer(peer, *headers)
    assert raised.value.status == status and words in str(raised.value) and "\n" not in str(raised.value)


def test_a_certificate_names_a_user_or_an_operator() -> None:
    assert viewer(Peer("", (), "ada")).uid == 61001
    assert viewer(Peer("", ("prometheus.example",), "ada")).is_operator
    with pytest.raises(NotAdmitted, match="say who you are"):
        viewer(Peer("", ("x",), "ada"), tenant_certificates=False)


def test_the_gate_is_known_by_its_certificate() -> None:
    admission = Admission(CollectorSettings(**SETTINGS))
    assert admission.is_gate(Peer("", ("n1.nodes.example",)))
    for name in ("nodes.example", "a.n1.nodes.example", "n1.nodes.example.evil"):
        assert not admission.is_gate(Peer("", (name,))), name


def test_of_several_common_names_none_counts() -> None:
    def subject(*names: str) -> dict[str, Any]:
        return {"subject": tuple((("commonName", name),) for name in names), "subjectAltName": (("DNS", "x"),)}

    assert peer_of("a", subject("ada")) == ("a", ("x",), "ada")
    assert peer_of("a", subject("ada", "ops")).common_name == "" and peer_of("a", None) == Peer("a")


ALLOWED = PeerList.parse(["certificate:*.nodes.example.org", "certificate:prom.example.org"], "trusted_proxies")


@rows("tenants/known")
def test_who_is_known(kind: str, name: str, known: bool) -> None:
    assert ALLOWED.has(peer_of("192.0.2.1", {"subjectAltName": ((kind, name),)})) is known


ADA, BOB = Viewer(1, "ada"), Viewer(2, "bob")


def job(owner: int, *nodes: str) -> JobSnapshot:
    state = RankState("running", 7, "forward", None)
    codes = {node: NodeFindings(("DISK_FULL",)) for node in ("n0", "n1")}
    timings = of_states([state] * len(nodes), nodes=nodes, findings_by_node=codes)
    culprit = Culprit("slow_link", (0,), node=nodes[0], findings=("DISK_FULL", "HOOK_BLIND"))
    location = Location(Verdict.FAIL, "j", len(nodes), len(nodes), Window(), None, (culprit,), (), owner=owner)
    urls = frozenset(f"http://{node}" for node in nodes)
    return JobSnapshot(JobKey(owner, "j"), True, timings, location, agents=urls)


def row(node: str) -> NodeRow:
    pairs = RingPairs(("n0", "secret-node"), 1, ((0, 1, 1.0),))
    codes = ("DISK_FULL", "HOOK_BLIND")
    return NodeRow(f"http://{node}", node, "up", "secret reason", 1.0, "fail", codes, (0, 1, 2), 5.0, pairs)


def found(node: str, code: str, owner: int | None = None) -> NodeFinding:
    evidence = {} if owner is None else {"owner": owner, "value": "secret value"}
    finding = Finding(code, Severity.WARNING, "secret device", "secret words", evidence, Fix("secret fix"), "doc")
    return NodeFinding(f"http://{node}", node, finding)


WHOLE = ClusterSnapshot(
    nodes=(row("n0"), row("n1")),
    ignored="secret file",
    findings=(
        found("n0", "DISK_FULL"),
        found("n0", "HOOK_BLIND", 2),
        found("n1", "DISK_FULL"),
        found("n0", "NEW_CODE"),
    ),
    fleet_findings=(found("n0", "FLEET_OUTLIER"), found("n1", "FLEET_OUTLIER")),
    fleet_notes=(Note("discovery", "secret file of targets"),),
    jobs=(job(2, "n0", "n1"), job(1, "n0")),
    not_held=NotHeld({JobKey(1, "mine"): 1, JobKey(2, "secret job"): 4}, frozenset({JobKey(2, "secret job")})),
)


def test_a_user_sees_the_nodes_of_their_jobs_and_no_text_about_others() -> None:
    seen = visible(WHOLE, ADA)
    assert "secret" not in repr(dataclasses.replace(seen, jobs=()))
    assert [it.key.owner for it in seen.jobs] == [1] and [it.node for it in seen.nodes] == ["n0"]
    assert seen.nodes[0].ranks == (0,) and seen.nodes[0].findings == ("DISK_FULL",)
    assert [it.finding.code for it in seen.findings] == ["DISK_FULL"], "a code in no list is not shown"
    assert seen.jobs[0].location.culprits[0].findings == ("DISK_FULL",)
    assert seen.not_held.text().startswith("1 rank of user 1 is not watched")
    assert len(fleet_lines(seen.fleet_findings, seen.fleet_notes)) == 1
    assert {it.node for it in visible(WHOLE, BOB).nodes} == {"n0", "n1"}


def test_an_operator_sees_everything() -> None:
    assert visible(WHOLE, Viewer(None, "ops")) is WHOLE


def test_a_user_without_jobs_is_told_so_and_of_no_node() -> None:
    seen = visible(WHOLE, Viewer(3, "eve"))
    assert (seen.nodes, seen.findings, seen.jobs) == ((), (), ())
    assert seen.location(None).notes[0].text == "no job of user eve is known, and no other is shown to them"


def test_a_job_that_only_says_where_it_runs_shows_no_node() -> None:
    """As one that Prometheus alone knows: its user may have said so, no agent did."""
    claimed = dataclasses.replace(job(1, "n1"), agents=frozenset())
    assert visible(dataclasses.replace(WHOLE, jobs=(claimed,)), ADA).nodes == ()


def test_incidents_hide_neighbours_as_verdicts_do() -> None:
    neighbours = (CpuNeighbour(41, 2, 3.0, "secret"), CpuNeighbour(42, 1, 2.0, "own"))
    line = f"waited{neighbours_text(neighbours)}"
    culprit = Culprit("slow_host", (0,), evidence=(line, "busier"), neighbours=neighbours)
    incident = Incident(1, 1, "j", "what", 0.0, 0.0, culprit, culprit)
    kept = visible_incident(incident, 1).culprit
    words = "another user's process ran 3.00 s and process 42 (own) of user 1 ran 2.00 s on its cores"
    assert kept.evidence == (f"waited: {words}", "busier")
    for changed in (
        structs.replace(culprit, neighbours=None),  # of a database that does not tell them
        structs.replace(culprit, evidence=(line[:-9], "busier")),  # cut short in the database
    ):
        assert visible_incident(structs.replace(incident, opened_as=changed), 1).opened_as.evidence == ()
