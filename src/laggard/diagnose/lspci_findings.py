"""Judges a whole PCI tree with its registers, as `lspci -vvv` shows it, by all PCI rules. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from laggard.model import Finding
from laggard.probes.pci import acs, link, max_read_request, numa
from laggard.probes.pci.model.tree import PciTree
from laggard.probes.pci.rules.acs_faults import peer_paths, ports_without_acs_reading
from laggard.probes.pci.rules.slow_links import links_to_root, unjudged_links


def judge_pci_tree(tree: PciTree, virtual: bool | None = None) -> Iterator[Finding]:
    """Judges links, read requests, ACS and NUMA nodes. `virtual`: of a virtual machine; None: not known."""
    ends = tree.endpoints()
    yield from link.judge(links_to_root(tree, ends), link.PcieLinkThresholds(), virtual)
    yield from max_read_request.judge(ends, max_read_request.ReadRequestThresholds())
    yield from acs.judge(tree, peer_paths(tree, ends), virtual)
    if len({device.numa_node for device in tree if device.numa_node is not None}) > 1:
        yield from numa.judge(tree, ends)


def unjudged_parts(tree: PciTree) -> Iterator[str]:
    """Yields a reason for each part that could not be judged, also for a text without devices."""
    ends = tree.endpoints()
    if not tree.devices:
        yield "no PCI device is in it"
    elif not ends:
        yield f"none of the {len(tree.devices)} PCI devices is a GPU or an RDMA NIC"
    elif not ends[0].parent_known:
        yield "no bridge shows the buses behind it: run lspci with -vvv"
    if ports := ports_without_acs_reading(tree, peer_paths(tree, ends)):
        yield f"ACS of {len(ports)} bridges, {ports[0]} for one, is not shown: run lspci -vvv as root"
    if links := unjudged_links(links_to_root(tree, ends)):
        yield f"{len(links)} links, that of {links[0]} for one, show no speed and width: run lspci -vvv as root"
