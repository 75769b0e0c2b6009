"""The format `ethtool -m`: a transceiver that receives too little light, or raises another alarm.

Source: ethtool (qsfp.c, cmis.c, sfpdiag.c).
"""

from __future__ import annotations

import re
from typing import Final

from laggard.diagnose.pastes.ethtool import link_finding
from laggard.diagnose.pastes.paste_format import Items, Lack, paste_format
from laggard.diagnose.pastes.section import Section
from laggard.model import Severity
from laggard.probes.probe import Fact

_MODULE: Final = re.compile(r"^[^\S\n]*Identifier\s+: 0x[0-9a-f]{2} \(", re.MULTILINE)
_DEVICE: Final = re.compile(r"\bethtool (?:-\S+ )*([\w.-]+)")
_ALARM: Final = re.compile(r"^[^\S\n]*(\S.{3,60}?(?:alarm|warning))\s*(\([Cc]hannel \d+\))?\s*: On\b", re.MULTILINE)
_LOSS: Final = re.compile(r"^[^\S\n]*([RT]x loss of (?:signal|lock).{0,30}?)\s*: (?:Yes|True|On)\b", re.MULTILINE)
_POWER: Final = re.compile(
    r"^[^\S\n]*(?:Rcvr signal avg optical power|Receiver signal average optical power)\s*(\([^)\n]+\))?"
    r"\s*: \S+ mW / (-?[\d.]{1,8}|-inf) dBm",
    re.MULTILINE,
)
MIN_LIGHT_DBM: Final = -20.0
"""The least power that any transceiver of a data centre receives: below it there is no light."""


def read_module(section: Section) -> Items:
    named = _DEVICE.search(section.command)
    device = f"the transceiver of {named[1]}" if named else "the transceiver"
    light = _POWER.findall(section.text)
    lost = [_joined(*match) for match in light if _dbm(match[1]) < MIN_LIGHT_DBM]
    dark = bool(light) and len(lost) == len(light)  # the other end may be off, or nobody uses the port
    flags = [" ".join(filter(None, match)) for match in _ALARM.findall(section.text)]
    alarms = [flag for flag in flags if "alarm" in flag] + _LOSS.findall(section.text)
    yield Fact("alarms", len(alarms))
    if "optical power" not in section.text and "ermal" not in section.text and "emperature" not in section.text:
        yield Lack("no measured light is in it: a copper cable, or run ethtool -m DEV as root")
    if alarms or lost:
        told = ", ".join([*alarms[:3], *lost[:3]])
        summary = f"receives too little light, or has another alarm: {told}"
        severity = Severity.WARNING if dark else Severity.CRITICAL
        evidence = {"alarms": alarms[:16], "light": lost[:16]}
        yield link_finding("RDMA_ERRORS_RISING", device, summary, severity, evidence)
    elif flags:
        summary = f"is near its limits: {', '.join(flags[:3])}"
        yield link_finding("RDMA_ERRORS_RISING", device, summary, Severity.WARNING, {"warnings": flags[:16]})


def _joined(channel: str, dbm: str) -> str:
    return f"rx power {channel} {dbm} dBm".replace("  ", " ")


def _dbm(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


ETHTOOL_MODULE: Final = paste_format("ethtool -m", _MODULE, read_module)
