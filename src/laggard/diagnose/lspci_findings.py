"""All PCI rules over one tree whose registers are known, as `lspci -vvv` of a node gives it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from laggard.model import Finding
from laggard.probes.pci import acs, numa
from laggard.probes.pci import link as pcie_links
from laggard.probes.pci import max_read_request as pcie_requests
from laggard.probes.pci.model.tree import PciTree
from laggard.probes.pci.rules.acs_faults import paths, unknown_ports
from laggard.probes.pci.rules.slow_links import segments, unjudged


def judge_tree(tree: PciTree, virtual: bool | None = None) -> Iterator[Finding]:
    """Links, read requests, ACS and NUMA nodes. `virtual`: is it a virtual machine's tree; None: nobody says."""
    ends = tree.endpoints()
    yield from pcie_links.judge(segments(tree, ends), pcie_links.LinkThresholds(), virtual)
    yield from pcie_requests.judge(ends, pcie_requests.RequestThresholds())
    yield from acs.judge(tree, paths(tree, ends), virtual)
    if len({device.node for device in tree if device.node is not None}) > 1:
        yield from numa.judge(tree, ends)


def unknowns(tree: PciTree) -> Iterator[str]:
    """What could not be judged, one reason each; also for a text that shows no machine."""
    ends = tree.endpoints()
    if not tree.devices:
        yield "no PCI device is in it"
    elif not ends:
        yield f"none of the {len(tree.devices)} PCI devices is a GPU or an RDMA NIC"
    elif not ends[0].placed:
        yield "no bridge shows the buses behind it: run lspci with -vvv"
    if ports := unknown_ports(tree, paths(tree, ends)):
        yield f"ACS of {len(ports)} bridges, {ports[0]} for one, is not shown: run lspci -vvv as root"
    if links := unjudged(segments(tree, ends)):
        yield f"{len(links)} links, that of {links[0]} for one, show no speed and width: run lspci -vvv as root"
