"""Label selectors and network policies as Kubernetes documents them, as pure functions. They stand in for the cluster's
network, which enforces policies: here no packet is held back. Policies without `endPort` and `ipBlock` alone."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Labels = Mapping[str, str]


class Peer(NamedTuple):
    """A pod as a policy sees it."""

    namespace: str
    namespace_labels: Labels = {}
    labels: Labels = {}


def selects(selector: Mapping[str, Any], labels: Labels) -> bool:
    """Whether a label selector selects these labels. An empty one selects all."""
    wanted = selector.get("matchLabels", {}).items()
    return all(labels.get(key) == value for key, value in wanted) and all(
        _holds(requirement, labels) for requirement in selector.get("matchExpressions", ())
    )


def _holds(requirement: Mapping[str, Any], labels: Labels) -> bool:
    value, values = labels.get(requirement["key"]), requirement.get("values", ())
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise ValueError(f"no operator of label selectors: {requirement['operator']}")


def lets_in(policy: Mapping[str, Any], peer: Peer, port: int) -> bool:
    """Whether the pods that `policy` selects may be reached by `peer` at a TCP port. A namespace has the label that the
    API server gives each: kubernetes.io/metadata.name."""
    home = policy["metadata"]["namespace"]
    rules = policy["spec"].get("ingress", ())
    return any(_has_port(rule, port) and _has_peer(rule, peer, home) for rule in rules)


def _has_port(rule: Mapping[str, Any], port: int) -> bool:
    ports = rule.get("ports")
    return not ports or any(it.get("protocol", "TCP") == "TCP" and it.get("port", port) == port for it in ports)


def _has_peer(rule: Mapping[str, Any], peer: Peer, home: str) -> bool:
    return not rule.get("from") or any(_is(entry, peer, home) for entry in rule["from"])


def _is(entry: Mapping[str, Any], peer: Peer, home: str) -> bool:
    labels = {**peer.namespace_labels, "kubernetes.io/metadata.name": peer.namespace}
    spaces = entry.get("namespaceSelector")
    there = peer.namespace == home if spaces is None else selects(spaces, labels)
    return there and selects(entry.get("podSelector", {}), peer.labels)
