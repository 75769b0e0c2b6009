"""The advice about NCCL's variables: those that do harm, do nothing or that nothing reads, and those that the
machines' provider publishes.

A name that a newer NCCL may read is left alone. A GID index is for old NCCLs. Providers' settings are data, each with
its source and date; a virtual machine hides what NCCL would find by itself. AWS is not here: its plugin sets what p4d
to p6 need by itself (aws-ofi-nccl, platform-aws.c).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from laggard.model import Severity
from laggard.recommend.advice.rules.repairs import gain_without
from laggard.recommend.advice.situation import Situation, variable_item
from laggard.recommend.advice.values import Gain, Item

VARIABLES_SOURCE: Final = "NCCL's user guide, environment variables; NCCL's source by release"
_CODES: Final = ("NCCL_ENV_HARMFUL", "NCCL_ENV_UNKNOWN", "NCCL_ENV_INERT")
_GID_FINDS_ITSELF: Final = (2, 21)


def judge_variables(situation: Situation) -> Iterator[Item]:
    """It holds for the table of NCCL 2.3 to 2.32."""
    seen = set()
    for found in situation.findings:
        name = found.device
        may_be_newer = found.code == "NCCL_ENV_UNKNOWN" and found.severity is Severity.INFO
        if found.code in _CODES and not may_be_newer and name in situation.environment and name not in seen:
            seen.add(name)
            harmful = found.code == "NCCL_ENV_HARMFUL"
            without = gain_without(name, situation.environment[name]) or Gain("rule")
            gain = without if harmful else Gain("rule", 1.0, 1.0, 1.0)
            yield _removal(situation, name, f"{name} {found.summary}", (found.code,), gain, harmful)
    name = "NCCL_IB_GID_INDEX"
    if name in situation.environment and name not in seen and situation.nccl_version >= _GID_FINDS_ITSELF:
        reason = f"{name} is pinned: since NCCL 2.21 the right GID is found on each node, and a pinned one may be wrong"
        yield _removal(situation, name, reason, (), Gain("rule", 1.0, 1.0, None))


def _removal(
    situation: Situation, name: str, reason: str, evidence: tuple[str, ...], gain: Gain, harmful: bool = False
) -> Item:
    return variable_item(
        name,
        situation.environment[name] or None,  # what may be a secret is not known here
        None,
        reason=reason,
        evidence=evidence,
        gain=gain,
        risk="Somebody may have set it for a reason that is not in the file: ask.",
        source=VARIABLES_SOURCE,
        repairs=harmful,
    )


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


def judge_provider(situation: Situation) -> Iterator[Item]:
    provider = provider_of(situation.products, situation.networks)
    if provider is None or not situation.environment_known:
        return
    for name, published in provider.variables.items():
        given = situation.environment.get(name)
        if given == published:
            continue
        yield variable_item(
            name,
            given,
            published,
            "its default",
            reason=f"{provider.name} publishes {name}={published} for these machines",
            evidence=(),
            gain=Gain("rule", None, 0.9, None),
            risk="Such lists grow old, and are for the provider's images: an option to be measured, alternately.",
            source=provider.source,
        )
