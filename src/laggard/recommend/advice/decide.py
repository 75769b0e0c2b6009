"""A recommendation from what is known: repairs first, then what is to be tuned, the largest gain first. A sick fabric
is not tuned, and neither is a job that died or hangs. Pure."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec import structs

from laggard.kit.words import capital, printable_line
from laggard.locate.describe import culprit_text
from laggard.model import Culprit, Severity
from laggard.recommend.advice.situation import Rule, Situation
from laggard.recommend.advice.values import Gain, Item, Recommendation


def recommended_files(
    items: Sequence[Item], shown: Mapping[str, str], document: Mapping[str, Any] | None
) -> dict[str, str]:
    """`shown`: the job's variables whose values may stand in files; `document`: its DeepSpeed configuration. Returns
    nccl.env and nccl.conf where variables change; ds_config.json and its difference where DeepSpeed's do; host.sh, in
    which every line is commented out, where machines are to be changed; hostfile where their order is."""
    files = _variable_files(items, shown)
    if document is not None:
        files |= _deepspeed_files(items, document)
    for item in items:
        if item.key == "hostfile":
            files["hostfile"] = "".join(f"{_one_line(host)}\n" for host in item.recommended)
    host = [item for item in items if item.target in ("pcie", "nic", "host")]
    if host:
        files["host.sh"] = _host_script(host)
    return files


def _variable_files(items: Sequence[Item], shown: Mapping[str, str]) -> dict[str, str]:
    own = [item for item in items if item.target == "nccl_env" and _is_name(item.key) and not _may_lose(item)]
    changes = {item.key: item.recommended for item in own}
    if not changes:
        return {}
    after = {name: value for name, value in shown.items() if name not in changes}
    after |= {name: str(value) for name, value in changes.items() if value is not None}
    removed = [name for name, value in changes.items() if value is None]
    unset = "".join(f"unset {name}\n" for name in sorted(removed))
    return {
        "nccl.env": unset + "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(after.items())),
        "nccl.conf": "".join(f"{name}={_one_line(value)}\n" for name, value in sorted(after.items())),
    }


def _may_lose(item: Item) -> bool:
    """Such an item is an option to be measured: it is in no file."""
    return not item.repairs and item.gain.low is not None and item.gain.low < 1


def _is_name(key: str) -> bool:
    return key.replace("_", "").isalnum() and key.isascii() and key.startswith("NCCL_")


def _deepspeed_files(items: Sequence[Item], document: Mapping[str, Any]) -> dict[str, str]:
    """Applies the settings that need no measurement first; the others are options, of which one at a time is tried."""
    after = copy.deepcopy(dict(document))
    for item in items:
        if item.target == "deepspeed" and _is_certain(item):
            _set(after, item.key.split("."), item.recommended)
    if after == document:
        return {}
    texts = [json.dumps(each, indent=2) + "\n" for each in (document, after)]
    lines = [text.splitlines(keepends=True) for text in texts]
    import difflib  # slow to import, and only for those whose configuration changes

    difference = "".join(difflib.unified_diff(lines[0], lines[1], "now/ds_config.json", "recommended/ds_config.json"))
    return {"ds_config.json": texts[1], "ds_config.diff": difference}


def _is_certain(item: Item) -> bool:
    """Whether it needs no measurement, since the job cannot run without it or loses little, or was measured and is
    faster."""
    certain = ("overlap_comm", "reduce_bucket_size", "allgather_bucket_size")
    measured = item.gain.basis == "measured" and item.gain.low is not None and item.gain.low > 1
    return item.repairs or measured or item.key.rpartition(".")[2] in certain


def _set(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        inner = tree.get(name)
        if not isinstance(inner, dict):
            inner = tree[name] = {}
        tree = inner
    tree[path[-1]] = value


def _host_script(items: Sequence[Item]) -> str:
    lines = ["#!/bin/sh", "# Read each line, and take the mark off those that you want to run, on the node named."]
    for item in items:
        lines += ["", f"# {item.key}: {_one_line(item.reason)}"]
        lines += [f"# {_one_line(line)}" for line in item.apply.splitlines()]
    return "".join(f"{line}\n" for line in lines)


def _one_line(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


_FABRIC: Final = ("RDMA_", "NVLINK_", "FABRIC_", "RING_", "PCIE_", "NCCL_WQE", "OFI_")
_FABRIC_CODES: Final = frozenset(
    [
        "TCP_FALLBACK",
        "GPUDIRECT_OFF",
        "ACS_ENABLED",
        "IOMMU_ENABLED",
        "PFC_OFF",
        "ECN_OFF",
        "NIC_MIXED",
        "PEERMEM_MISSING",
        "SHM_INSTEAD_OF_P2P",
        "P2P_DISABLED",
        "MEMLOCK_LIMIT",
        "NCCL_VERSION_MIXED",
        "NCCL_DIAGNOSTICS",
    ]
)


def decide(
    situation: Situation, rules: Sequence[Rule], shown: Mapping[str, str] = MappingProxyType({})
) -> Recommendation:
    """`shown`: as of recommended_files()."""
    blocked = _blocking_codes(situation)
    stands = [each for each in situation.culprits if each.kind in ("dead", "hung")]
    found = list(_distinct(item for rule in rules for item in rule(situation)))
    items = [item for item in found if item.repairs or not (blocked or stands)]
    if stands:  # what a job that stands still would gain in speed is no reason to change anything
        items = [structs.replace(item, gain=Gain(item.gain.basis)) for item in items]
    items.sort(key=_order)
    held_back = _held_back(blocked, len(found) - len(items)) if blocked else _not_tuned(stands)
    notes = [*situation.deepspeed_problems, *held_back, *_not_known(situation)]
    files = recommended_files(items, shown, situation.deepspeed_document)
    return Recommendation(blocked, tuple(items), files, tuple(notes))


def _blocking_codes(situation: Situation) -> tuple[str, ...]:
    """Returns the codes of critical findings of the fabric, each once."""
    return tuple(
        dict.fromkeys(
            found.code
            for found in situation.findings
            if found.severity is Severity.CRITICAL and (found.code in _FABRIC_CODES or found.code.startswith(_FABRIC))
        )
    )


def _order(item: Item) -> tuple[bool, float, float, float]:
    """Repairs come first; then what is expected to gain most; of unknown gains those that can lose least, then
    those that may gain most."""
    gain = item.gain
    return not item.repairs, -(gain.ratio or 1.0), -(gain.low or 0.0), -(gain.high or 1.0)


def _distinct(items: Iterable[Item]) -> Iterator[Item]:
    """Yields one item for each setting, by the first rule that has it: nodes that lack the same are one change."""
    seen: dict[tuple[str, str, str], Item] = {}
    for item in items:
        by_hand = item.repairs and item.target != "nccl_env"
        seen.setdefault((item.target, item.key, item.reason if by_hand else ""), item)
    yield from seen.values()


def _held_back(blocked: tuple[str, ...], count: int) -> Iterator[str]:
    if blocked:
        more = f" ({count} held back)" if count else ""
        yield f"Nothing is tuned until the fabric is well: {', '.join(blocked)}{more}."


def _not_tuned(stands: Sequence[Culprit]) -> Iterator[str]:
    """The reason why a job that died or hangs gets no advice about its speed."""
    if stands:
        first = stands[0]
        text = printable_line(f"{culprit_text(first)}: {first.advice}" if first.advice else culprit_text(first))
        yield f"{capital(text)}. Nothing is tuned in a job that stands still: see why first."


def _not_known(situation: Situation) -> Iterator[str]:
    if situation.deepspeed is None:
        yield "No DeepSpeed configuration was given: nothing is said of ZeRO, buckets and accumulation."
    elif situation.profile is None:
        yield "No recording was given: gains of DeepSpeed's settings are not modelled, and are to be measured."
    if not situation.environment_known:
        yield "The job's environment was not given: nothing is said of NCCL's variables."
