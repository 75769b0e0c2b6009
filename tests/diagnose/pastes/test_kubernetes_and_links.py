"""`laggard diagnose`: pasted output of kubectl, ethtool, NCCL's topology and a stale lock; each has a healthy one."""

from __future__ import annotations

import json

import pytest
from support.diagnosed import diagnose_text

Rows = list[tuple[str, str, str]]


def found(text: str) -> Rows:
    return [(each.code, each.severity.value, each.device) for each in diagnose_text(text).findings]


EVENTS = "LAST SEEN   TYPE      REASON   OBJECT   MESSAGE\n"
POD = (
    "Name:             w-2\nNamespace:        a\nNode:             n1/10.0.0.1\nStatus:           {}\nContainers:\n"
    "  main:\n    State:          {}\n    Last State:     Terminated\n      Reason:       {}\n      Exit Code:    {}\n"
)
NO_GPU = "2m   Warning   FailedScheduling   pod/w-2   0/5 nodes are available: 3 Insufficient nvidia.com/gpu.\n"
PODS = "NAME               READY   STATUS             RESTARTS   AGE\nw-2   {}   {}          0          9m\n"


def event(reason: str, kind: str, message: str = "") -> str:
    item = {"kind": "Event", "reason": reason, "message": message, "involvedObject": {"kind": kind, "name": "x-1"}}
    return json.dumps({"kind": "List", "items": [item]}, indent=1)


MAX_SHOWN = 64
"""The findings of one tool, however long a paste is."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EVENTS + NO_GPU, ("POD_NOT_STARTED", "critical", "pod w-2")),
        (PODS.format("0/1", "ImagePullBackOff"), ("POD_NOT_STARTED", "critical", "pod w-2")),
        (POD.format("Failed", "Terminated", "OOMKilled", 137), ("JOB_HOST_OUT_OF_MEMORY", "critical", "pod w-2 on n1")),
        (POD.format("Running", "Running", "OOMKilled", 137), ("JOB_HOST_OUT_OF_MEMORY", "warning", "pod w-2 on n1")),
        (event("NodeNotReady", "Node"), ("NODE_DRAINED", "critical", "node x-1")),
        (event("Evicted", "Pod", "The node was low on resource: ephemeral-storage."),
         ("JOB_DISK_FULL", "critical", "pod x-1")),
        ("XidCriticalError: Xid=79 on Device=GPU-1; marking device as unhealthy.\n", ("GPU_XID", "critical", "GPU-1")),
        (
            "kind: Pod\nmetadata:\n  name: c-0\nspec:\n  nodeName: n9\nstatus:\n"
            "  message: 'Pod was rejected: no healthy\n"
            "    devices present'\n  reason: UnexpectedAdmissionError\n",
            ("GPU_MISSING", "critical", "pod c-0 on n9"),
        ),
    ],
)  # fmt: skip
def test_kubernetes(text: str, expected: tuple[str, str, str]) -> None:
    assert found(text)[0] == expected


@pytest.mark.parametrize(
    "text",
    [
        EVENTS + NO_GPU + "1m   Normal   Started   pod/w-2   Started container main\n",
        EVENTS + "1m   Warning   Unhealthy   pod/w-2   Readiness probe failed: connection refused\n",
        PODS.format("1/1", "Running"),
        POD.format("Succeeded", "Terminated", "Completed", 0),
        event("Killing", "Pod", "Stopping container istio-proxy"),
    ],
)
def test_pods_that_are_well(text: str) -> None:
    assert found(text) == []


SETTINGS = (
    "Settings for ens{0}:\n\tSupported link modes:   100000baseCR4/Full\n\t                        400000baseCR4/Full\n"
    "\tAdvertised link modes:  {3}\n\tLink partner advertised link modes:  {4}\n\tSpeed: {1}\n\tLink detected: {2}\n"
)
BOTH = "100000baseCR4/Full 400000baseCR4/Full"
UP, DOWN = "100000Mb/s", "Unknown!"
FEC = "# {0}\nFEC parameters for ens3:\nSupported/Configured FEC encodings: {1}\nActive FEC encoding: {1}\n"
MODULE = (
    "\tIdentifier                                : 0x18 (QSFP-DD)\n"
    "\tModule temperature                        : 48.11 degrees C\n"
    "\tRcvr signal avg optical power (Channel 1) : 1.1021 mW / 0.42 dBm\n"
    "\tRcvr signal avg optical power (Channel 2) : {} dBm\n\tRx power low alarm (Channel 2)            : {}\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SETTINGS.format(1, UP, "yes", BOTH, BOTH), [("RDMA_RATE_LOW", "warning", "ens1")]),
        (SETTINGS.format(1, UP, "yes", "400000baseCR4/Full", "Not reported"), [("RDMA_RATE_LOW", "warning", "ens1")]),
        (SETTINGS.format(1, DOWN, "no (No cable)", BOTH, "Not reported"), [("RDMA_NETDEV_DOWN", "warning", "ens1")]),
        (SETTINGS.format(1, UP, "yes", BOTH, "Not reported") * 2 + SETTINGS.format(2, DOWN, "no", BOTH, "Not reported"),
         [("RDMA_NETDEV_DOWN", "critical", "ens2")]),
        (SETTINGS.format(1, UP, "yes", BOTH, "100000baseCR4/Full"), []),
        (SETTINGS.format(1, UP, "yes", BOTH, "Not reported"), []),
        (SETTINGS.format(1, DOWN, "no", BOTH, "Not reported")
         + SETTINGS.format(2, DOWN, "no", BOTH, "Not reported"), []),
        (FEC.format("n1", "Off") + FEC.format("n2", "RS"), [("RDMA_NETDEV_DOWN", "warning", "ens3")]),
        (FEC.format("n1", "RS") + FEC.format("n2", "RS"), []),
        (FEC.format("n1", "Off"), []),
        (MODULE.format("0.0001 mW / -40.00", "On"), [("RDMA_ERRORS_RISING", "critical", "the transceiver")]),
        (MODULE.format("1.0911 mW / 0.38", "Off"), []),
    ],
)  # fmt: skip
def test_ethtool(text: str, expected: Rows) -> None:
    assert found(text) == expected


PCI = (
    '<pci busid="0000:{}b:00.0" class="0x030200" vendor="0x10de" device="0x2330" '
    'link_speed="{} GT/s PCIe" link_width="{}">\n'
    '<gpu dev="0"><nvlink target="a" count="{}" tclass="0x068000"/></gpu></pci>\n'
)


def topology(*gpus: tuple[float, int, int]) -> str:
    return (
        '<system version="1">\n' + "".join(PCI.format(number, *gpu) for number, gpu in enumerate(gpus)) + "</system>\n"
    )


GOOD = (32.0, 16, 18)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (topology(GOOD, (16.0, 8, 18), GOOD, GOOD), [("PCIE_LINK_DEGRADED", "warning", "0000:1b:00.0")]),
        (topology(GOOD, GOOD, GOOD, (32.0, 16, 12)), [("NVLINK_DOWN", "critical", "0000:3b:00.0")]),
        (topology(GOOD, (2.5, 16, 18), GOOD, GOOD), []),  # idle
        (topology(GOOD, (16.0, 8, 18)), []),  # no majority
        (topology(GOOD, GOOD, (16.0, 8, 18))[:-60], [("PCIE_LINK_DEGRADED", "warning", "0000:2b:00.0")]),
    ],
)
def test_nccl_topology(text: str, expected: Rows) -> None:
    assert found(text)[:1] == expected


def test_a_graph_alone_asks_for_the_topology() -> None:
    assert "NCCL_TOPO_DUMP_FILE" in diagnose_text('<graphs version="1">\n</graphs>\n').files[0].unknown


LS = "$ ls -la /root/.cache/torch_extensions/py310/fused_adam\n-rw-r--r-- 1 root root     {} Dec 29 21:12 {}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LS.format(0, "lock"), [("JOB_STALE_LOCK", "warning", "/root/.cache/torch_extensions/py310/fused_adam")]),
        ('Thread 1 (idle): "MainThread"\n    wait (torch/utils/file_baton.py:42)\n',
         [("JOB_STALE_LOCK", "warning", "~/.cache/torch_extensions")]),
        (LS.format(2641, "build.ninja"), []),
        ("$ ls -l /var/lib/x\n-rw-r--r-- 1 root root 0 Dec 29 21:12 lock\n", []),
    ],
)  # fmt: skip
def test_a_stale_lock(text: str, expected: Rows) -> None:
    assert found(text) == expected


@pytest.mark.parametrize("line", [NO_GPU, POD, SETTINGS, FEC, MODULE, PCI, LS, "Name: x\n", "- name: x\n"])
def test_any_text_is_judged_within_bounds(line: str) -> None:
    for text in (EVENTS + line * 5_000, EVENTS + line + "a 1 " * 60_000):
        assert len(diagnose_text(text).findings) <= MAX_SHOWN
