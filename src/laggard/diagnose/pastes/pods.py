"""The format `kubectl describe, get events`: the reasons for which pods did not start or were ended.

Sources: Kubernetes (pkg/kubelet/events/event.go, pkg/kubelet/images/types.go, pkg/kubelet/eviction/helpers.go,
pkg/scheduler), NVIDIA's k8s-device-plugin (internal/rm/health.go).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.diagnose.pastes.paste_format import paste_format
from laggard.diagnose.pastes.pod_events import PodEvent, parse_events
from laggard.diagnose.pastes.section import Section
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

_HEAD: Final = re.compile(
    r"^(?:LAST SEEN\s+TYPE\s+REASON|(?:NAMESPACE\s+)?NAME\s+READY\s+STATUS|NAME\s+STATUS\s+ROLES|\s*Type\s+Reason\s+Age"
    r"|Name:\s+\S+\s*$|kind: (?:Pod|Event|List)\s*$|\s*\"kind\": \"(?:Event|List|Pod)\")"
    r"|XidCriticalError: Xid=\d+ on Device=",
    re.MULTILINE,
)
_XID: Final = re.compile(r"XidCriticalError: Xid=(\d{1,4}) on Device=(\S{1,80}?)[;,\s]")


class _Row(NamedTuple):
    reason: str
    """A regular expression for the whole reason."""
    message: str
    """A regular expression that is found in the message; empty: any."""
    code: str
    words: str
    overcome: bool
    """True: it is none where the pod started after it."""
    fix: str


_MEMORY: Final = "Raise the container's memory limit, or use less: fewer DataLoader workers, smaller caches."
_STORAGE: Final = "Write to a volume, raise limits.ephemeral-storage, or clear the node's disk: df -h."
_IMAGE: Final = "Check the image's name and tag, that the registry has it, and the pod's imagePullSecrets."
_ADMISSION: Final = "Look at the GPUs of that node and at the device plugin's log: dmesg | grep Xid, nvidia-smi."
ROWS: Final[tuple[_Row, ...]] = (
    _Row("OOMKilled|SystemOOM|OOMKilling", "", "JOB_HOST_OUT_OF_MEMORY", "was killed for its memory limit", False,
         _MEMORY),
    _Row("Evicted", "ephemeral|disk|inodes", "JOB_DISK_FULL", "was evicted: its node ran out of disk", False, _STORAGE),
    _Row("Evicted", "memory", "JOB_HOST_OUT_OF_MEMORY", "was evicted: its node ran out of memory", False, _MEMORY),
    _Row("Evicted|Preempted|Preempting|NodeShutdown|Terminated|TaintManagerEviction", "", "JOB_PREEMPTED",
         "was taken off its node", False, "Start it again from its checkpoint; look for what drained the node."),
    _Row("NodeNotReady|NodeLost", "", "NODE_DRAINED", "is not ready: its kubelet does not report", False,
         "Look at the node: is it reachable, does its kubelet run (systemctl status kubelet, journalctl -u kubelet)?"),
    _Row("NodeHasDiskPressure|FreeDiskSpaceFailed", "", "DISK_FULL", "has too little disk left", False, _STORAGE),
    _Row("NodeHasMemoryPressure|NodeHasInsufficientMemory", "", "HOST_MEMORY_LOW", "has too little memory left", False,
         "Look for the pods that use more than they request: kubectl top pods."),
    _Row("UnexpectedAdmissionError", "unhealthy|no healthy", "GPU_MISSING",
         "was rejected: its node has no healthy device for it", False, _ADMISSION),
    _Row(r"UnexpectedAdmissionError|OutOf[\w.-]+", "", "POD_NOT_STARTED", "was rejected by its node", True, _ADMISSION),
    _Row("FailedScheduling|Unschedulable", "", "POD_NOT_STARTED", "is not scheduled: no node has what it needs", True,
         "Compare its requests, tolerations and affinity with what nodes have free: kubectl describe nodes."),
    _Row("ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull", "", "POD_NOT_STARTED",
         "does not get its image", True, _IMAGE),
    _Row("Failed", "pull|image", "POD_NOT_STARTED", "does not get its image", True, _IMAGE),
    _Row("ContainerCannotRun|RunContainerError|StartError|CreateContainerError|FailedCreatePodSandBox",
         "nvidia|nvml|driver", "POD_NOT_STARTED", "cannot start: the container gets no GPU driver", True,
         "Check the driver on its node: nvidia-smi, lsmod | grep nvidia; then the container toolkit."),
    _Row("ContainerCannotRun|RunContainerError|StartError|CreateContainer(?:Config)?Error|FailedCreatePodSandBox", "",
         "POD_NOT_STARTED", "cannot start its container", True, "The message names what the runtime lacks."),
    _Row("FailedMount|FailedAttachVolume", "", "POD_NOT_STARTED", "does not get a volume", True,
         "Check the volume, its claim, and the storage driver on the node."),
    _Row("CrashLoopBackOff", "", "JOB_EXCEPTION", "ends again and again", True,
         "Read what it printed before it ended: kubectl logs --previous POD."),
)  # fmt: skip
"""The first that fits a reason and its message counts; other reasons are no faults."""
_WARNINGS: Final = ("JOB_EXCEPTION",)


def read(section: Section) -> Iterator[Finding | Fact]:
    events = parse_events(section.text)
    yield Fact("events", len(events))
    for xid, device in dict.fromkeys(_XID.findall(section.text)):
        yield _xid(xid, device)
    told: set[tuple[str, str]] = set()
    for event, row in _worst_first(events):
        if (row.code, event.subject) not in told:
            told.add((row.code, event.subject))
            yield _finding(event, row)


def _worst_first(events: list[PodEvent]) -> list[tuple[PodEvent, _Row]]:
    """Returns the faults by the order of the table; a pod that ends again and again has its reason named elsewhere."""
    found = [(event, row) for event in events if (row := row_of(event)) and not (event.again and row.overcome)]
    named = {event.subject for event, row in found if row.code not in _WARNINGS}
    kept = [pair for pair in found if pair[1].code not in _WARNINGS or pair[0].subject not in named]
    return sorted(kept, key=lambda pair: (not pair[0].message, ROWS.index(pair[1])))


def row_of(event: PodEvent) -> _Row | None:
    return next(
        (
            row for row in ROWS
            if re.fullmatch(row.reason, event.reason) and re.search(row.message, event.message, re.IGNORECASE)
        ),
        None,
    )  # fmt: skip


def _finding(event: PodEvent, row: _Row) -> Finding:
    is_node = event.node == event.subject and bool(event.node)
    on = f" on {event.node}" if event.node and not is_node else ""
    limit = f" of {event.memory_limit}" if row.code == "JOB_HOST_OUT_OF_MEMORY" and event.memory_limit else ""
    said = f": {event.message}" if event.message else ""
    again = " before it started again" if event.again else ""
    mild = event.again or row.code in _WARNINGS
    return finding(
        row.code,
        f"{'node' if is_node else 'pod'} {event.subject or '(not named)'}{on}",
        f"{row.words}{limit} ({event.reason}){again}{said}"[:400],
        severity=Severity.WARNING if mild else Severity.CRITICAL,
        evidence={"node": event.node or None, "reason": event.reason, "message": event.message or None},
        fix=row.fix,
        commands=(f"kubectl describe {'node' if is_node else 'pod'} {event.subject}",),
    )


def _xid(xid: str, device: str) -> Finding:
    return finding(
        "GPU_XID",
        device,
        f"was marked unhealthy by the device plugin for Xid {xid}",
        evidence={"xid": int(xid)},
        fix="Read the kernel's log of that node, and do what its Xid asks for: reset the GPU, or restart the node.",
        commands=("dmesg -T | grep Xid", "nvidia-smi -q"),
    )


PODS: Final = paste_format("kubectl describe, get events", _HEAD, read)
