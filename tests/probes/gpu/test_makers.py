"""A machine with GPUs of two makers: each is judged, and what is unknown of one hides nothing of the other."""

from collections.abc import Iterator
from typing import Any

import pytest

from laggard.probes.errors import Unknown
from laggard.probes.gpu.model import pci_devices
from laggard.probes.gpu.model.pci_devices import NvidiaDevices, of_each_maker

HOST: Any = None


def told(monkeypatch: pytest.MonkeyPatch, nvidia: int, amd: int, fails: bool = False) -> tuple[list[str], str]:
    """What the probes of both makers say on a machine with so many GPUs of each, and what is unknown."""
    found = NvidiaDevices(9, ("n",) * nvidia, (), (), (), ("a",) * amd, ())
    monkeypatch.setattr(pci_devices, "find_nvidia_devices", lambda host: found)

    def of_amd() -> Iterator[str]:
        yield "amd"
        if fails:
            raise Unknown("no sysfs")

    said: list[str] = []
    try:
        for each in of_each_maker(lambda *_: iter(["nvidia"]), lambda *_: of_amd())(HOST, None):
            said.append(each)
    except Unknown as error:
        return said, str(error)
    return said, ""


def test_each_maker_is_judged_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, nvidia=2, amd=0) == (["nvidia"], "")
    assert told(monkeypatch, nvidia=0, amd=2) == (["amd"], "")
    assert told(monkeypatch, nvidia=1, amd=1) == (["amd", "nvidia"], "")
    assert told(monkeypatch, nvidia=0, amd=0) == (["nvidia"], ""), "it says why there is nothing to judge"


def test_what_is_unknown_of_one_hides_nothing_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, nvidia=1, amd=1, fails=True) == (["amd", "nvidia"], "no sysfs")
