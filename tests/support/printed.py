"""What the tools that people paste print of a recorded machine: `nvidia-smi -q`, `nvlink -s` and
`conf-compute -grs`, and `dmesg`.

tests/data/printed/nvidia_smi_q.txt is a GPU of the first, in the order of driver 580. A place there is the name of a
reading of NVML, `>>SHIFT&MASK` for bits of it, and `|` with the words for 0, 1 and so on, the last also for more.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from laggard.probes.nvml.model import NVML_PATH
from support.paths import DATA

_GPU: Final = (DATA / "printed/nvidia_smi_q.txt").read_text()
_PLACE: Final = re.compile(r"\{([\w.]+)(?:>>(\d+)&(\d+))?(?:\|([^}]*))?\}(?: (?:C|W|MHz)|x)?")
_ERRORS: Final = {"UNKNOWN": "Unknown Error", "GPU_IS_LOST": "GPU is lost", "RESET_REQUIRED": "GPU requires reset"}
_NO_HANDLE: Final = "Unable to determine the device handle for GPU {at}: {error}.  Reboot the system\n"
_DAMAGED: Final = "WARNING: infoROM is corrupted at gpu {at}\n"
_NOT_READY: Final = "Confidential Compute GPUs Ready state: not-ready\n"
_SPEEDS: Final = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}


def printed(root: Path, addresses: list[str]) -> dict[str, str]:
    """The text of each tool, by the name of a file for it. `addresses`: those of the GPUs, also of one that is lost."""
    nvml = json.loads((root / NVML_PATH.lstrip("/")).read_text())
    places = [gpu.get("bus_id", addresses[gpu["index"]]) for gpu in nvml["gpus"]]
    gpus = list(zip(nvml["gpus"], places, strict=True))
    head = f"==============NVSMI LOG==============\n\nDriver Version : {nvml['driver_version']}\n\n"
    head += f"Attached GPUs                             : {len(gpus)}\n"
    query = "".join(_of_gpu({**gpu, **_of_pci(root, at), "at": at.upper()}) for gpu, at in gpus)
    if not any("bus_id" in gpu for gpu, _ in gpus):
        head, query = query, "No devices were found\n"
    damaged = (_DAMAGED.format(at=at.upper()) for gpu, at in gpus if gpu.get("inforom_valid") is False)
    return {
        "nvidia-smi-q.txt": head + query + "".join(damaged),
        "nvlink-s.txt": "".join(_links(gpu) for gpu, _ in gpus if gpu.get("links")),
        "conf-compute.txt": _NOT_READY if nvml.get("confidential_ready") is False else "",
        "dmesg.txt": "".join(map(_of_kernel, (root / "laggard/kmsg").read_text().splitlines())),
    }


def _of_gpu(gpu: Mapping[str, Any]) -> str:
    if error := gpu.get("errors", {}).get("handle"):
        return _NO_HANDLE.format(at=gpu["at"], error=_ERRORS[error])
    return _PLACE.sub(lambda place: _reading(gpu, place), _GPU)


def _reading(gpu: Mapping[str, Any], place: re.Match[str]) -> str:
    path, shift, mask, words = place.groups()
    name, _, part = path.partition(".")
    value = gpu.get(name)
    value = value.get(part, 0 if value.get("state") else None) if part and value else value
    if value is None:
        return _ERRORS.get(gpu.get("errors", {}).get(name, ""), "N/A")
    if not words:
        return f"{value}{place[0].rpartition('}')[2]}"
    known = words.split(",")
    return known[min(int(value) >> int(shift or 0) & int(mask or -1), len(known) - 1)]


def _of_pci(root: Path, address: str) -> dict[str, Any]:
    """What nvidia-smi shows of the GPU's PCIe link: in a guest not the host's end."""
    folder = root / "sys/bus/pci/devices" / address
    link: dict[str, Any] = {}
    for file in folder.glob("*_link_*") if folder.exists() else ():
        end, _, kind = file.name.partition("_link_")
        text = file.read_text().split()[0]
        name = "width" if kind == "width" else "generation"
        link[name if end == "current" else f"max_{name}"] = text if kind == "width" else _SPEEDS[text]
    guest = "hypervisor" in (root / "proc/cpuinfo").read_text() if (root / "proc/cpuinfo").exists() else False
    link["host_generation"] = None if guest else link.get("max_generation")
    return {"link": link, "guest": guest}


def _links(gpu: Mapping[str, Any]) -> str:
    head = f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n"
    if not any(gpu["links"]):
        return f"{head}NVML: Unable to retrieve NVLink information as all links are inActive\n"
    states = (f"\t Link {link}: {'50 GB/s' if up else '<inactive>'}\n" for link, up in enumerate(gpu["links"]))
    return head + "".join(states)


def _of_kernel(record: str) -> str:
    head, _, text = record.partition(";")
    return f"[{int(head.split(',')[2]) / 1e6:12.6f}] {text}\n"
