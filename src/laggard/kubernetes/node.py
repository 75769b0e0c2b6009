"""A Kubernetes node as the controller sees it, and what it writes there: values and patches. Pure.

The API's types: https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

import msgspec

CONDITION: Final = "LaggardHealthy"
TAINT_KEY: Final = "laggard/unhealthy"
OPT_OUT: Final = "laggard/ignore"
"""The annotation with which people take a node out: `kubectl annotate node NODE laggard/ignore=true`."""

MAX_MESSAGE_CHARACTERS: Final = 512
_MAX_TAINT_VALUE: Final = 63  # of a label's value

Patch = dict[str, Any]


class Health(NamedTuple):
    """The health of a node by laggard: `status` is True, False or Unknown, as of a condition; `reason` one word."""

    status: str
    reason: str
    message: str


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class Taint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class Node(NamedTuple):
    """`addresses` are those of the node itself; `taints` are everyone's, in order; `uid` tells it from an earlier node
    of its name."""

    name: str
    resource_version: str
    addresses: frozenset[str]
    opted_out: bool
    condition: Condition | None
    taints: tuple[Taint, ...]
    uid: str = ""

    @property
    def taint(self) -> Taint | None:
        """laggard's own."""
        return next((taint for taint in self.taints if taint.key == TAINT_KEY), None)


_BY_KEY: Final = {
    TAINT_KEY: "laggard",
    "node.kubernetes.io/unschedulable": "administrator",
    "node.kubernetes.io/not-ready": "kubernetes",
    "node.kubernetes.io/unreachable": "kubernetes",
    "node.kubernetes.io/out-of-service": "kubernetes",
    "ToBeDeletedByClusterAutoscaler": "kubernetes",
    "karpenter.sh/disrupted": "kubernetes",
}
"""Who keeps pods from a node, by the taint: https://kubernetes.io/docs/reference/labels-annotations-taints/. The first
one that it has counts; `kubectl cordon` is the second."""


def out_of(nodes: Iterable[Node]) -> dict[tuple[str, str, str], float]:
    """The samples of laggard_node_out: the nodes that get no pods."""
    found = {}
    for node in nodes:
        taints = {taint.key: taint for taint in node.taints}
        key = next((key for key in _BY_KEY if key in taints), None)
        if key:
            found[node.name, _BY_KEY[key], key] = max(0.0, unix_time(taints[key].time_added or ""))
    return found


class _Address(msgspec.Struct, frozen=True):
    address: str = ""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    resource_version: str = ""
    uid: str = ""
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True):
    taints: tuple[Taint, ...] | None = None


class _Status(msgspec.Struct, frozen=True):
    addresses: tuple[_Address, ...] | None = None
    conditions: tuple[Condition, ...] | None = None


class ApiNode(msgspec.Struct, frozen=True):
    """The fields of a v1 Node that are needed here."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()

    def node(self) -> Node:
        conditions = self.status.conditions or ()
        annotation = (self.metadata.annotations or {}).get(OPT_OUT, "")
        return Node(
            self.metadata.name,
            self.metadata.resource_version,
            frozenset(each.address for each in self.status.addresses or ()),
            annotation.lower() not in ("", "false"),
            next((each for each in conditions if each.type == CONDITION), None),
            self.spec.taints or (),
            self.metadata.uid,
        )


def condition_patch(node: Node, health: Health, now: str) -> Patch:
    """The strategic merge patch of nodes/status that says `health`; conditions are merged by their type. `now`: RFC
    3339. The transition's time changes with the status alone."""
    before = node.condition
    same = before is not None and before.status == health.status
    transition = before.last_transition_time if before is not None and same else None
    condition = {
        "type": CONDITION,
        "status": health.status,
        "reason": health.reason,
        "message": health.message[:MAX_MESSAGE_CHARACTERS],
        "lastHeartbeatTime": now,
        "lastTransitionTime": transition or now,
    }
    return {"status": {"conditions": [condition]}}


def without_condition() -> Patch:
    """The strategic merge patch that takes laggard's condition away."""
    return {"status": {"conditions": [{"type": CONDITION, "$patch": "delete"}]}}


def taint_patch(node: Node, taint: Taint | None) -> Patch:
    """The JSON merge patch that leaves the node with `taint` as laggard's only one (None: with none) and with all those
    of others. The list is replaced as a whole, so the patch holds for the version that was read alone: what another
    changed in between is refused as a conflict."""
    others = [each for each in node.taints if each.key != TAINT_KEY]
    taints = [*others, taint] if taint else others
    return {
        "metadata": {"resourceVersion": node.resource_version},
        "spec": {"taints": msgspec.to_builtins(taints) or None},
    }


def new_taint(reason: str, effect: str, now: str) -> Taint:
    return Taint(TAINT_KEY, reason[:_MAX_TAINT_VALUE], effect, now)


_RFC3339: Final = "%Y-%m-%dT%H:%M:%SZ"


def rfc3339(at: float | None = None) -> str:
    """A time as the API writes it; Unix time `at`, else now."""
    return datetime.fromtimestamp(time.time() if at is None else at, timezone.utc).strftime(_RFC3339)


def unix_time(text: str) -> int:
    """The Unix time that rfc3339() wrote so; 0 where `text` is none."""
    try:
        return int(datetime.strptime(text, _RFC3339).replace(tzinfo=timezone.utc).timestamp())
    except ValueError:
        return 0
