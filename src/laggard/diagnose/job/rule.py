"""A rule: the form of a line that says why a job failed, with its code, weight and kind. A pattern begins where the
line does, after the heads of launchers and loggers."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from laggard.diagnose.job.events import Weight

FAILED, DIED, WAITED, STOPPED, SUMMARY = (
    Weight.FAILED,
    Weight.DIED,
    Weight.WAITED,
    Weight.STOPPED,
    Weight.SUMMARY,
)
EXCEPTION_NAME: Final = (
    r"(?:[A-Za-z_][\w<>]*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Expired|Failure|Failed)"
)
RAISED: Final = rf"(?:{EXCEPTION_NAME}: |what\(\):\s+|.*\bterminated with exception: )"
NCCL_WARN: Final = r"(?:\S+:\d+:\d+ (?:\[-?\d+\] )?)?.{0,200}?NCCL WARN "
PEER_GONE: Final = (
    r"[Cc]onnection (?:was )?(?:closed|reset|refused)|[Bb]roken pipe|failed to recv, got 0 bytes|Socket closed"
    r"|remote process exited|ncclRemoteError|NCCL communicator was aborted|recvValue failed|sendBytes failed"
    r"|recvVector failed"
    r"|[Pp]eer (?:closed|disconnected)|[Ss]ocket Timeout|ncclCommAbort|TCPStore server has shut down"
)


class Rule(NamedTuple):
    code: str
    kind: str
    weight: Weight
    pattern: re.Pattern[str]
    summary: str
    """A text with `{0}`, `{1}` for the pattern's groups."""


def rule_of(code: str, kind: str, weight: Weight, pattern: str, summary: str) -> Rule:
    return Rule(code, kind, weight, re.compile(pattern), summary)
