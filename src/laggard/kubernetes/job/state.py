"""The state of a Job, from what the API server has of it and of its pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

INDEX: Final = "batch.kubernetes.io/job-completion-index"

_STUCK: Final = (
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
    "RunContainerError",
)  # fmt: skip
"""The reasons of a container that will not start by waiting, as the kubelet gives them."""


class State(NamedTuple):
    """`status`: the exit status of the command, None while it is not known to have ended. `runs`: whether all pods have
    begun. `why`: why it failed, or why it has not begun."""

    status: int | None
    runs: bool
    why: str = ""


def state_of(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> State:
    conditions = {it["type"]: it for it in job.get("status", {}).get("conditions") or () if it.get("status") == "True"}
    if "Complete" in conditions:
        return State(0, True)
    if failed := conditions.get("Failed"):
        status, why = next(_failures(pods), (1, ""))
        told = f"{failed.get('reason', '')}: {failed.get('message', '')}"
        return State(status, True, why or told)
    expected = int(job["spec"].get("parallelism", 1))
    begun = sum(pod.get("status", {}).get("phase") in ("Running", "Succeeded", "Failed") for pod in pods)
    return State(None, begun >= expected, next(_waits(pods), "it has no pod yet" if not pods else ""))


def in_order(pods: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The pods by their index; of those without one the oldest first."""

    def place(pod: Mapping[str, Any]) -> tuple[int, str, str]:
        metadata = pod["metadata"]
        index = str((metadata.get("annotations") or {}).get(INDEX, ""))
        number = int(index) if index.isdecimal() and len(index) < 9 else 0
        return number, str(metadata.get("creationTimestamp") or ""), str(metadata["name"])

    return sorted(pods, key=place)


def failed_pod(pods: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((it for it in in_order(pods) if it.get("status", {}).get("phase") == "Failed"), None)


def _containers(pods: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The state of each container, with its pod's and its own name."""
    for pod in in_order(pods):
        status = pod.get("status", {})
        for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            yield f"{pod['metadata']['name']}/{each['name']}", each.get("state") or {}


def _failures(pods: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    for name, state in _containers(pods):
        ended = state.get("terminated") or {}
        if status := int(ended.get("exitCode", 0)):
            is_killed = ended.get("reason") == "OOMKilled"
            yield status, f"{name} ended with status {status}" + (", killed: out of memory" if is_killed else "")


def _waits(pods: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The reasons why pods do not begin, those that will not change first."""
    found = [(name, state.get("waiting") or {}) for name, state in _containers(pods)]
    for name, waiting in sorted(found, key=lambda it: it[1].get("reason") not in _STUCK):
        if reason := waiting.get("reason"):
            yield f"{name}: {reason} {waiting.get('message', '')}".rstrip()
    for pod in in_order(pods):
        for each in pod.get("status", {}).get("conditions") or ():
            if each.get("type") == "PodScheduled" and each.get("status") == "False":
                yield f"{pod['metadata']['name']}: {each.get('reason', '')} {each.get('message', '')}".rstrip()
