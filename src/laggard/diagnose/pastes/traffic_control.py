"""The format `tc -s qdisc`: traffic shaping that holds back or drops what a host sends.

Source: iproute2, tc/tc_qdisc.c and tc/q_tbf.c, q_netem.c, q_htb.c; `tc -s class` has the same counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.diagnose.pastes.paste_format import paste_format
from laggard.diagnose.pastes.section import Section, parts_of
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

_HEAD: Final = re.compile(
    r"^[ \t]*(?:qdisc|class) (\w{2,20}) [0-9a-f]*:[0-9a-f]* ?(?:dev (\S{1,40}))?[^\n]*$", re.MULTILINE
)
_DEVICE: Final = re.compile(r"\bdev ([\w.@-]{1,40})")
_SHAPERS: Final = ("tbf", "netem", "htb", "hfsc", "police", "cbs", "etf")
_RATE: Final = re.compile(r"\brate ([\d.]+)([KMGT]?)(bit|bps)\b", re.IGNORECASE)
_COUNTS: Final = re.compile(r"Sent (\d+) bytes (\d+) pkt \(dropped (\d+), overlimits (\d+)")
_BACKLOG: Final = re.compile(r"\bbacklog (\d+)([KMG]?)b (\d+)p")
_HARM: Final = re.compile(r"\b(?:loss|delay|corrupt|duplicate|reorder) (?:random )?[\d.]+")
_SCALE: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SLOW_BITS: Final = 10**9
"""The rate below which a port is too slow for training, whatever the model."""
_MIN_DROPPED_SHARE: Final = 0.01
_FIX: Final = (
    "Find out who set this on the interface (tc's lines in a boot script, a container network, a test that was not "
    "ended), and take it away."
)


class _Shaper(NamedTuple):
    kind: str
    device: str
    bits: float | None
    sent: int
    dropped: int
    overlimits: int
    waiting: int
    line: str


def read(section: Section) -> Iterator[Finding | Fact]:
    named = _DEVICE.search(section.command)
    found = [_shaper(head, part, named[1] if named else "") for head, part in parts_of(_HEAD, section.text)]
    yield Fact("queueing_disciplines", len(found))
    for it in found:
        if says := _says(it):
            yield _finding(it, says)


def _shaper(head: re.Match[str], part: str, device: str) -> _Shaper:
    rate, counts, backlog = _RATE.search(head[0]), _COUNTS.search(part), _BACKLOG.search(part)
    bits = float(rate[1]) * _SCALE[rate[2].upper()] * (8 if rate[3].lower() == "bps" else 1) if rate else None
    sent, dropped, overlimits = (int(counts[place][:15]) for place in (2, 3, 4)) if counts else (0, 0, 0)
    waiting = int(backlog[3][:15]) if backlog else 0
    return _Shaper(head[1], head[2] or device, bits, sent, dropped, overlimits, waiting, head[0].strip())


def _says(it: _Shaper) -> str:
    """What a shaper does, continuing a sentence; empty where it does no harm."""
    lost = f" and dropped {it.dropped} packets of {it.dropped + it.sent}" if it.dropped else ""
    if it.kind == "netem" and (harm := _HARM.findall(it.line)):
        return f"delays or loses packets on purpose ({', '.join(harm)}){lost}"
    if it.kind in _SHAPERS and it.bits is not None and it.bits < _SLOW_BITS and (it.dropped or it.overlimits):
        return f"sends at {_rate_text(it.bits)} at most{lost}"
    if it.dropped and it.dropped >= _MIN_DROPPED_SHARE * (it.dropped + it.sent):
        return f"dropped {it.dropped} packets of {it.dropped + it.sent}"
    return ""


def _rate_text(bits: float) -> str:
    name = next((name for name in "GMK" if bits >= _SCALE[name]), "")
    return f"{bits / _SCALE[name]:g} {name.lower() if name == 'K' else name}bit/s"


def _finding(it: _Shaper, says: str) -> Finding:
    where = f" of {it.device}" if it.device else ""
    return finding(
        "NETWORK_DROPS",
        f"traffic shaping{where}" if it.kind in _SHAPERS else f"the queue{where}",
        f"({it.kind}) {says}",
        severity=Severity.CRITICAL if it.kind in _SHAPERS else Severity.WARNING,
        evidence={"line": it.line[:300], "dropped": it.dropped, "overlimits": it.overlimits, "backlog": it.waiting},
        fix=_FIX,
        commands=(f"tc qdisc del dev {it.device or 'DEV'} root", "tc -s qdisc"),
    )


TRAFFIC_CONTROL: Final = paste_format("tc", _HEAD, read)
