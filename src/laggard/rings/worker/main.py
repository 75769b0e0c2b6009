"""A rank of a ring, in a process of its own: it takes commands on one pipe and reports on another.

    python -m laggard.rings.worker.main COMMANDS REPORTS PARENT DEVICE LOCAL_RANK

A worker ends when its supervisor does, whatever it is in: by the kernel's signal, or by the end of the commands.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from laggard.rings import messages
from laggard.rings.worker.devices import describe_device, load_torch, observe
from laggard.rings.worker.group import Channel, learn, publish
from laggard.rings.worker.rank import Rank, compute

_PR_SET_PDEATHSIG = 1


def main(words: list[str]) -> int:
    commands, reports, parent, device, local_rank = int(words[0]), int(words[1]), int(words[2]), words[3], int(words[4])
    _end_with(parent)
    channel = Channel(commands, reports)
    torch, ready = _load(device, local_rank)
    channel.send(ready)
    if torch is not None and not ready.reason:
        _serve(torch, ready, local_rank, channel)
    while channel.next_command() is not None:  # the supervisor decides when this ends
        pass
    return 0


def _end_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, also where that is killed."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _load(device: str, local_rank: int) -> tuple[Any, messages.Ready]:
    try:
        torch = load_torch()
        return torch, describe_device(torch, device, local_rank)
    except Exception as error:  # whatever torch or the driver raises, the supervisor is to hear it
        return None, messages.Ready("", 0, "", "", "", reason=f"torch cannot be used: {one_line(error)}")


def _serve(torch: Any, ready: messages.Ready, local_rank: int, channel: Channel) -> None:
    rank = Rank(torch, ready.device, local_rank, channel, ready.nccl)
    while (command := channel.next_command()) is not None:
        try:
            for report in _obey(rank, command):
                channel.send(report)
        except Exception as error:
            channel.send(messages.Failed(one_line(error)))


def _obey(rank: Rank, command: messages.Command) -> Iterator[messages.Report]:
    if isinstance(command, messages.Publish):
        publish(rank.torch, command)
        yield messages.Done()
    elif isinstance(command, messages.Learn):
        yield messages.Learned(learn(rank.torch, command))
    elif isinstance(command, messages.Join):
        rank.join(command)
        yield messages.Done()
    elif isinstance(command, messages.Sweep):
        yield from rank.sweep(command)
        yield messages.Done()
    elif isinstance(command, messages.Compute):
        yield compute(rank, command.seconds)
    elif isinstance(command, messages.Pair):
        yield from rank.pair(command)
    elif isinstance(command, messages.Observe):
        yield observe(os.environ, rank.rank, rank.nccl_version)


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:400]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
