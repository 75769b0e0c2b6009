"""The settings that providers of machines publish as NCCL's environment for them: data, each with its source and date.

AWS is not here: its plugin sets what p4d to p6 need by itself (aws-ofi-nccl, platform-aws.c).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Provider(NamedTuple):
    """Machines are known by their firmware's product, which begins with `product`, or by the network that NCCL names in
    its log. An empty one says nothing."""

    name: str
    product: str
    network: str
    variables: Mapping[str, str]
    source: str


PROVIDERS: Final = (
    Provider(
        "Google Cloud A3 Ultra and A4",
        "",
        "gIB",
        {
            "NCCL_NET": "gIB",
            "NCCL_IB_TC": "52",
            "NCCL_IB_FIFO_TC": "84",
            "NCCL_IB_QPS_PER_CONNECTION": "4",
            "NCCL_IB_ADAPTIVE_ROUTING": "1",
        },
        "GoogleCloudPlatform/cluster-toolkit, read in 2026-11",
    ),
    Provider(
        "Google Cloud A3 Mega",
        "",
        "FasTrak",
        {"NCCL_NET_GDR_LEVEL": "PIX", "NCCL_PROTO": "Simple,LL128", "NCCL_BUFFSIZE": "8388608"},
        "GoogleCloudPlatform/cluster-toolkit, read in 2026-11",
    ),
    Provider(
        "Google Cloud A3 High",
        "",
        "GPUDirectTCPX_v7",
        {
            "NCCL_ALGO": "Ring",
            "NCCL_PROTO": "Simple",
            "NCCL_CROSS_NIC": "0",
            "NCCL_NET_GDR_LEVEL": "PIX",
            "NCCL_P2P_PXN_LEVEL": "0",
            "NCCL_BUFFSIZE": "4194304",
        },
        "GoogleCloudPlatform/cluster-toolkit, read in 2026-11",
    ),
    Provider(
        "Azure ND",
        "Microsoft Corporation Virtual Machine",
        "",
        {"NCCL_IB_PCI_RELAXED_ORDERING": "1", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IGNORE_CPU_AFFINITY": "1"},
        "Azure/azhpc-images and azurehpc-health-checks 0e0a1ac, read in 2026-11",
    ),
)


def provider_of(products: frozenset[str], networks: tuple[str, ...]) -> Provider | None:
    """Returns whose machines they are; None where that is not known."""
    for provider in PROVIDERS:
        named = provider.network and provider.network in networks
        if named or (provider.product and any(product.startswith(provider.product) for product in products)):
            return provider
    return None
