"""The third part of the gate, on request: the job's nodes meet, measure one another two by two, and compare how fast
they compute. A node fails for what accuses it alone; who does not come is named by the others.

Nobody waits beyond the deadline. What keeps a node from taking part (a busy port, a wrong token, a node 0 that is not
there) is unknown, and neither ok nor a fault of the node's.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import subprocess
import time
from typing import Final

from laggard.gate.settings import Gang
from laggard.gate.time_limit import TimeLimit
from laggard.kit.processes import own_process
from laggard.model import Report, Verdict
from laggard.probes.runner.report import ProbeAnswer, build_report, merge_reports
from laggard.probes.runner.worker import Observation
from laggard.rings.membership import MAX_BYTES, MODULE, Membership, RingEnd, RingOrder
from laggard.wire import WireError, decode, encode

NAME: Final = "gang"
"""The gang's name in a report, where it stands among the probes."""

SECONDS: Final = 60.0
"""The time for which the nodes measure at most. Eight nodes take ten rounds of a second or two."""

_EXTRA_SECONDS: Final = 60.0
"""The seconds for the start of processes, and the first connections."""

_END_SECONDS: Final = 2.0
"""The seconds for the last word of the gang's process, and for the end of its ranks."""

_SHARE_OF_DEADLINE: Final = 0.6
"""The share of the time that is left, where the probes that load the GPUs come after the gang."""


def run_gang(report: Report, gang: Gang, limit: TimeLimit, more_follows: bool) -> Report:
    """`report` with what the gang found about this node. `more_follows`: whether probes that load the GPUs come after
    it."""
    began = time.monotonic()
    if gang.place is None or gang.place.nodes == 1:
        observation = Observation(Verdict.SKIPPED, "the job has one node, which meets nobody")
    else:
        observation = _meet(gang.place, gang, _until(gang, began, limit.end_of_measurements, more_follows))
    answer = ProbeAnswer(NAME, observation, time.monotonic() - began)
    own = build_report(
        (answer,),
        node=report.node,
        elapsed_seconds=answer.elapsed_seconds,
        facts=dict(observation.facts),
        warnings_fail=False,
    )
    return merge_reports(report, own)


def gang_lines(report: Report) -> tuple[str, ...]:
    """The gang's lines about other nodes, one for each."""
    return tuple(f"gang: {line}" for line in report.facts.get(NAME, {}).get("others", ()))


def _until(gang: Gang, now: float, deadline: float, more_follows: bool) -> float:
    """`deadline`: of all measurements, in monotonic seconds; infinite: the gang's own is taken."""
    if deadline == math.inf:
        return now + 2 * gang.join_seconds + SECONDS + _EXTRA_SECONDS  # twice: node 0 may not come
    return now + max(1.0, (deadline - now) * (_SHARE_OF_DEADLINE if more_follows else 1.0))


def _meet(place: Membership, gang: Gang, until: float) -> Observation:
    order = RingOrder(
        place=place,
        tokens=gang.tokens,
        device="auto",
        seconds=SECONDS,
        join_seconds=gang.join_seconds,
        deadline_seconds=until - time.monotonic(),
    )
    try:
        process = subprocess.Popen(
            own_process(MODULE), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
    except OSError as error:
        return Observation(Verdict.UNKNOWN, f"the gang's process cannot be started: {error.strerror}")
    try:
        return _observation(_end(process, order, until + _END_SECONDS))
    except WireError:
        return Observation(Verdict.UNKNOWN, f"the gang's process ended without an answer (status {process.poll()})")
    finally:
        _leave(process)


def _end(process: subprocess.Popen[bytes], order: RingOrder, until: float) -> RingEnd:
    """Raises WireError if the process ends, or the time does, without an answer."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(encode(order) + b"\n")
    poll, data = select.poll(), b""
    poll.register(process.stdout, select.POLLIN)
    while not data.endswith(b"\n") and len(data) <= MAX_BYTES and poll.poll(1000 * max(0.0, until - time.monotonic())):
        chunk = os.read(process.stdout.fileno(), 1 << 16)
        if not chunk:
            break
        data += chunk
    return decode(data, RingEnd)


def _leave(process: subprocess.Popen[bytes]) -> None:
    """Ends the process: by the end of its input it ends its ranks itself."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _observation(ended: RingEnd) -> Observation:
    share = ended.share
    if share is None:
        return Observation(Verdict.UNKNOWN, ended.text or "the gang ended without an answer")
    facts = {NAME: {"nodes": share.judged, "others": list(share.others)}}
    if share.unknown:
        return Observation(Verdict.UNKNOWN, share.unknown, share.findings, facts)
    return Observation(Verdict.OK, f"{share.judged} nodes measured one another", share.findings, facts)
