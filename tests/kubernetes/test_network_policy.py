"""Whom the network policies let in, by the rules of policies. That a network enforces them is not tried."""

import re
from typing import Any

import pytest
from support.chart import NO_HELM, rendered
from support.network_policy import Peer, lets_in, selects
from support.paths import REPOSITORY

HOME = "laggard"
MAY_READ = {"laggard/may-read": "true"}
MONITORING = Peer("monitoring")
JOBS = Peer("team-a", labels={"app.kubernetes.io/name": "laggard-collector"})
"""A pod that has the collector's label, in another namespace."""


def policy_of(items: list[dict[str, Any]], part: str = "collector") -> dict[str, Any]:
    name = f"laggard-{part}"
    return next(it for it in items if (it["kind"], it["metadata"]["name"]) == ("NetworkPolicy", name))


@pytest.fixture
def items() -> list[dict[str, Any]]:
    pytest.importorskip("helm_python", reason=NO_HELM)
    return rendered()


@pytest.mark.parametrize(("part", "port"), [("collector", 19401), ("controller", 19402)])
def test_each_is_about_its_own_pods_and_their_port(items: list[dict[str, Any]], part: str, port: int) -> None:
    policy = policy_of(items, part)
    pods = [item["spec"]["template"] for item in items if item["kind"] in ("DaemonSet", "Deployment")]
    (pod,) = (pod for pod in pods if selects(policy["spec"]["podSelector"], pod["metadata"]["labels"]))
    (container,) = pod["spec"]["containers"]
    assert (container["name"], container["ports"][0]["containerPort"]) == (part, port)
    assert lets_in(policy, MONITORING._replace(namespace_labels=MAY_READ), port), "Prometheus is kept out"


def test_own_pods_and_labelled_namespaces_get_in_and_others_do_not(items: list[dict[str, Any]]) -> None:
    policy = policy_of(items)
    assert lets_in(policy, Peer(HOME, labels={"app.kubernetes.io/name": "laggard-controller"}), 19401)
    for peer in (MONITORING, JOBS):
        assert not lets_in(policy, peer, 19401), "a namespace without the label is let in"
        assert not lets_in(policy, peer._replace(namespace_labels={"laggard/may-read": "false"}), 19401)
        assert not lets_in(policy, peer._replace(labels=MAY_READ), 19401), "the label of a pod lets it in"
        assert lets_in(policy, peer._replace(namespace_labels=MAY_READ), 19401), "a labelled namespace is kept out"
        assert not lets_in(policy, peer._replace(namespace_labels=MAY_READ), 22)


def test_helm_lets_named_namespaces_in() -> None:
    pytest.importorskip("helm_python", reason=NO_HELM)
    policy = policy_of(rendered({"mayRead": ["monitoring"]}))
    assert lets_in(policy, MONITORING, 19401) and not lets_in(policy, JOBS, 19401)
    assert lets_in(policy, JOBS._replace(namespace_labels=MAY_READ), 19401)


@pytest.mark.parametrize("place", ["docs/kubernetes.md", "deploy/kubernetes/examples/gated-job.yaml"])
def test_readers_are_told_the_label(items: list[dict[str, Any]], place: str) -> None:
    """The command for kubectl, with the label that the policy has."""
    peers = policy_of(items)["spec"]["ingress"][0]["from"]
    ((key, value),) = next(it["namespaceSelector"] for it in peers if "namespaceSelector" in it)["matchLabels"].items()
    told = re.findall(r"kubectl label namespace \S+ (\S+)=(\S+)", (REPOSITORY / place).read_text())
    assert (key, value) in told
