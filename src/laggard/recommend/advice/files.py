"""A recommendation as files: for people to read, and then to use. Pure."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Item


def recommended_files(items: Sequence[Item], situation: Situation) -> dict[str, str]:
    """Returns nccl.env and nccl.conf where variables change; ds_config.json and its difference where DeepSpeed's do;
    host.sh, in which every line is commented out, where machines are to be changed; hostfile where their order is."""
    files = {**_variable_files(items, situation.environment)}
    if situation.deepspeed_document is not None:
        files |= _deepspeed_files(items, situation.deepspeed_document)
    for item in items:
        if item.key == "hostfile":
            files["hostfile"] = "".join(f"{_one_line(host)}\n" for host in item.recommended)
    host = [item for item in items if item.target in ("pcie", "nic", "host")]
    if host:
        files["host.sh"] = _host_script(host)
    return files


def _variable_files(items: Sequence[Item], environment: Mapping[str, str]) -> dict[str, str]:
    own = [item for item in items if item.target == "nccl_env" and _is_name(item.key) and not _may_lose(item)]
    changes = {item.key: item.recommended for item in own}
    if not changes:
        return {}
    from laggard.nccl.variables import may_be_shown  # a table that few recommendations need

    after = {name: value for name, value in environment.items() if name not in changes and may_be_shown(name)}
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
