"""Broken twins: each is a healthy recorded machine with one fault of its kind of board, and what laggard says then.

A line of tests/data/twins.jsonl is the machine that it is a twin `of`, the fault in words, its changes to the recorded
machine, and the findings that are due beside those of the healthy one, as `severity GPU: CODE CODE`. GPUs go by their
index in the machine's nvml.json. `printed`: what is due of the text that tools print of it, where that is not the same.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from laggard.probes.nvml.model import NVML_PATH
from support.materialise import change_json, unlist_gpu
from support.paths import DATA

Change = Callable[[Path], None]
"""Changes the recorded machine in a folder, which is a copy."""

_BOOT: Final = "3f0a5c1e-6d6b-4f0e-9c55-0c6f2f1f7a10"
_UPTIME: Final = 864000.0
"""Boot and uptime, in seconds, of all machines here."""


_OUTSIDE: Final = {"fabric": {"state": 0}, "links": [False] * 18}


class Twin(NamedTuple):
    says: str
    changes: tuple[Change, ...]
    due: tuple[str, ...]
    printed: tuple[str, ...]


def gpu(index: int, **readings: Any) -> Change:
    """NVML's readings of a GPU; `rows__failed` is `failed` of its `rows`."""
    return nvml({f"gpus/{index}/{name.replace('__', '/')}": value for name, value in readings.items()})


def nvml(places: Mapping[str, Any] | None = None, **named: Any) -> Change:
    """Values of NVML's answers, by their place."""
    return lambda root: change_json(root / NVML_PATH.lstrip("/"), {**(places or {}), **named})


def memory_error(index: int) -> Change:
    """The GPU's memory had an error that ECC could not correct."""
    return gpu(index, ecc_volatile=1, ecc_aggregate=1)


def link_down(index: int) -> Change:
    """One of a GPU's eighteen NVLinks is down."""
    return gpu(index, links=[*[True] * 7, False, *[True] * 10])


def hot(index: int) -> Change:
    """The GPU is beyond the margin at which the hardware slows it down, which it does."""
    return gpu(index, temperature_celsius=90, margin_celsius=-3, clocks_event_reasons=0x48)


def unread(index: int) -> Change:
    """The GPU has a handle and its names, and fails for every other reading."""

    def fail(root: Path) -> None:
        path = root / NVML_PATH.lstrip("/")
        answers = json.loads(path.read_text())
        read = answers["gpus"][index]
        known = {name: read.pop(name) for name in ("index", "errors", "bus_id", "uuid", "name", "minor")}
        answers["gpus"][index] = {**known, "errors": {**known["errors"], **dict.fromkeys(read, "UNKNOWN")}}
        path.write_text(json.dumps(answers))

    return fail


def outside(*indices: int) -> Change:
    """GPUs know of no fabric, and none of their NVLinks is up."""
    return nvml({f"gpus/{index}/{name}": value for index in indices for name, value in _OUTSIDE.items()})


def lost(index: int) -> Change:
    """NVML counts the GPU and gives no access to it."""
    return nvml({f"gpus/{index}": {"index": index, "errors": {"handle": "GPU_IS_LOST"}}})


def unlisted(index: int) -> Change:
    """NVML does not list the GPU any more."""
    return lambda root: unlist_gpu(root, index)


def no_peers(index: int, other: int) -> Change:
    """Two GPUs cannot reach each other's memory."""
    pairs = ((index, other), (other, index))
    return nvml({f"{access}/{row}/{column}": 5 for access in ("p2p_read", "p2p_write") for row, column in pairs})


def logged(index: int, code: int, text: str) -> Change:
    """The driver logged an Xid of the GPU, ten minutes ago. It goes before a change that hides the GPU's address."""

    def add(root: Path) -> None:
        log, address = root / "laggard/kmsg", addresses(root)[index].rpartition(".")[0]
        line = f"NVRM: Xid (PCI:{address}): {code}, pid='<unknown>', name=<unknown>, {text}"
        log.write_text(f"{log.read_text()}3,2000,{(_UPTIME - 600) * 1e6:.0f},-;{line}\n")

    return add


def lanes(index: int, width: int) -> Change:
    """The GPU's PCIe link has that many lanes now."""

    def write(root: Path) -> None:
        (root / "sys/bus/pci/devices" / addresses(root)[index] / "current_link_width").write_text(f"{width}\n")

    return write


def ended(pid: int) -> Change:
    """A process of the machine runs no more."""

    def remove(root: Path) -> None:
        (root / f"proc/{pid}").rename(root / f"ended-{pid}")

    return remove


def throttled(share: float, reason: str, *indices: int) -> Change:
    """The clocks of GPUs were held down for a share of the last hour."""
    nanoseconds = round(share * 3600e9)
    return _in_the_last_hour(
        "gpu_throttle", "throttled_nanoseconds", {index: {reason: nanoseconds} for index in indices}
    )


def retrained(index: int, times: int) -> Change:
    """The GPU's NVLink 0 was trained anew that often in the last hour."""
    return _in_the_last_hour("nvlink_errors", "link_errors", {index: {"recovery": times}})


def _in_the_last_hour(probe: str, field: str, increases: Mapping[int, Mapping[str, int]]) -> Change:
    """Counters of GPUs, by index and name, have risen since a snapshot of an hour ago. `field`: the reading that has
    them, by name, or by name and link."""

    def write(root: Path) -> None:
        path = root / NVML_PATH.lstrip("/")
        answers = json.loads(path.read_text())
        before: dict[str, int] = {}
        for index, by_name in increases.items():
            for name, increase in by_name.items():
                counts = answers["gpus"][index][field]
                one, *more = counts[name] if isinstance(counts[name], list) else [counts[name]]
                before[f"{answers['gpus'][index]['uuid']} {name}"] = sum([one, *more])
                counts[name] = [one + increase, *more] if isinstance(counts[name], list) else one + increase
        path.write_text(json.dumps(answers))
        snapshot = {"boot_id": _BOOT, "probes": {probe: [{"uptime": _UPTIME - 3600, "counters": before}]}}
        (root / "laggard/last_look.json").write_text(json.dumps(snapshot))

    return write


def addresses(root: Path) -> list[str]:
    """The PCI addresses of a recorded machine's GPUs, by their index."""
    return [each["bus_id"] for each in json.loads((root / NVML_PATH.lstrip("/")).read_text())["gpus"]]


CHANGES: Final = {
    each.__name__: each
    for each in (
        gpu,
        nvml,
        unread,
        outside,
        memory_error,
        link_down,
        hot,
        lost,
        unlisted,
        no_peers,
        logged,
        lanes,
        ended,
        throttled,
        retrained,
    )
}


def _twin(row: Mapping[str, Any]) -> Twin:
    """Of a line of twins.jsonl. A change is the name of what makes it, and that function's values, the named ones
    last."""
    made = []
    for name, *values in row["changes"]:
        named = values.pop() if isinstance(values[-1], dict) else {}
        made.append(CHANGES[name](*values, **named))
    return Twin(row["says"], tuple(made), tuple(row["due"]), tuple(row.get("printed", row["due"])))


_ROWS: Final = [json.loads(line) for line in (DATA / "twins.jsonl").read_text().splitlines()]
TWINS: Final[Mapping[str, tuple[Twin, ...]]] = {
    base: tuple(_twin(row) for row in _ROWS if row["of"] == base) for base in dict.fromkeys(row["of"] for row in _ROWS)
}
