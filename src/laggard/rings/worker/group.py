"""A process group of a ring: NCCL's between GPUs, gloo's between CPUs, and collectives on it that are timed.

The groups are made directly from a store. torch's init_process_group would make the default group, of which a process
has one, and its object collectives unpickle what others send; nothing here does.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from laggard.rings import messages
from laggard.rings.messages import MAX_PART_BYTES, Command, Connected, Learn, Publish, Put, Report, Value, Want

_CHUNK_BYTES: Final = 1 << 16


class Channel:
    """The two pipes between a rank and its supervisor: commands come on one, reports go on the other. Both are given
    as descriptors. One thread takes commands and values; any may send."""

    def __init__(self, commands: int, reports: int) -> None:
        self._commands, self._reports = commands, reports
        self._data = bytearray()
        self._kept: deque[Command] = deque()
        self._lock = threading.Lock()

    def send(self, report: Report) -> None:
        data = messages.line(report)
        with self._lock:
            while data:
                data = data[os.write(self._reports, data) :]

    def next_command(self) -> Command | None:
        """Returns the next command; None: the supervisor is gone. A value that nobody waits for any more is left
        out."""
        while True:
            command = self._kept.popleft() if self._kept else self._read(None)
            if not isinstance(command, Value):
                return command

    def put(self, key: str, value: bytes) -> None:
        """Tells the other ranks of the ring `value`, by the coordinator."""
        parts = [value[at : at + MAX_PART_BYTES] for at in range(0, len(value), MAX_PART_BYTES)] or [b""]
        for number, part in enumerate(parts):
            self.send(Put(key, number, len(parts), part))

    def get(self, key: str, seconds: float) -> bytes:
        """Returns what another rank put. Raises TimeoutError."""
        until = time.monotonic() + seconds
        first = self._part(key, 0, until, seconds)
        return first.value + b"".join(self._part(key, part, until, seconds).value for part in range(1, first.parts))

    def _part(self, key: str, part: int, until: float, seconds: float) -> Value:
        self.send(Want(key, part))
        while True:
            command = self._read(until)
            if command is None:
                raise TimeoutError(f"no other rank told {key} within {seconds:.0f} s")
            if not isinstance(command, Value):
                self._kept.append(command)
            elif (command.key, command.part) == (key, part):
                return command

    def _read(self, until: float | None) -> Command | None:
        """Returns None at `until`, and where the supervisor is gone."""
        while True:
            line, end, rest = self._data.partition(b"\n")
            if end:
                self._data = rest
                return messages.read_command(bytes(line))
            if until is not None and not select.select([self._commands], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            chunk = os.read(self._commands, _CHUNK_BYTES)
            if not chunk:
                return None
            self._data += chunk


Collective = Callable[[], None]


class Group:
    """`members` of the world exchange data through `store`; a collective that takes longer than `seconds` fails."""

    def __init__(
        self, torch: Any, device: str, store: Any, place: int, size: int, seconds: float, address: str
    ) -> None:
        self.torch, self.device, self.place, self.size = torch, device, place, size
        limit = timedelta(seconds=max(1.0, seconds))
        self._deadline = time.monotonic() + seconds
        make = _nccl if device.startswith("cuda") else _gloo
        self.backend = make(torch, store, place, size, limit, address)

    def all_reduce(self, tensor: Any, maximum: bool = False) -> None:
        options = self.torch.distributed.AllreduceOptions()
        if maximum:
            options.reduceOp = self.torch.distributed.ReduceOp.MAX
        self.backend.allreduce([tensor], options).wait()

    def reduce_scatter(self, output: Any, tensor: Any) -> None:
        self.backend._reduce_scatter_base(output, tensor).wait()

    def all_gather(self, output: Any, tensor: Any) -> None:
        self.backend._allgather_base(output, tensor).wait()

    def largest(self, value: float) -> float:
        """Returns the largest `value` of all members, the same on each."""
        tensor = self.torch.tensor([value], dtype=self.torch.float64, device=self.device)
        self.all_reduce(tensor, maximum=True)
        self.finish()
        return float(tensor.item())

    def finish(self) -> None:
        """Waits until the device has done what it was given. Raises TimeoutError at the group's deadline, since a GPU
        whose peer is gone would wait for ever."""
        if self.device == "cpu":
            return
        event = self.torch.cuda.Event()
        event.record()
        while not event.query():
            if time.monotonic() > self._deadline:
                raise TimeoutError("the collective did not end in time")
            time.sleep(0.0002)

    def timed(self, collective: Collective, times: int) -> list[float]:
        """Returns the seconds of each of `times` runs, on the device's own clock."""
        return self._timed_on_host(collective, times) if self.device == "cpu" else self._timed_on_gpu(collective, times)

    def _timed_on_host(self, collective: Collective, times: int) -> list[float]:
        seconds = []
        clock = time.perf_counter
        for _ in range(times):
            began = clock()
            collective()
            seconds.append(clock() - began)
        return seconds

    def _timed_on_gpu(self, collective: Collective, times: int) -> list[float]:
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
        events[0].record()
        for event in events[1:]:
            collective()
            event.record()
        self.finish()
        return [one.elapsed_time(two) / 1e3 for one, two in zip(events, events[1:], strict=False)]

    def close(self) -> None:
        """Ends the group. NCCL's is aborted: a peer that is gone would be waited for."""
        if self.device != "cpu":
            abort_nccl(self.backend)


def abort_nccl(backend: Any) -> None:
    """Aborts a ProcessGroupNCCL: by abort() since torch 2.6, by _shutdown() before it, which aborts as well."""
    (getattr(backend, "abort", None) or backend._shutdown)()


def _gloo(torch: Any, store: Any, place: int, size: int, limit: timedelta, address: str) -> Any:
    gloo = torch.distributed.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = limit
    options._devices = [gloo.create_device(hostname=address)] if address else [gloo.create_default_device()]
    return gloo(store, place, size, options)


def _nccl(torch: Any, store: Any, place: int, size: int, limit: timedelta, address: str) -> Any:
    """NCCL chooses its network by itself, as it does for the job."""
    nccl = torch.distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = limit
    return nccl(store, place, size, options)


_MAX_ENDS: Final = 1000
"""The most ends that are told: more have no room in a message."""


def connections() -> Connected:
    """Returns this process's own ends, and the other ends of the connections that it took."""
    ends: set[str] = set()
    listening: set[int] = set()
    others: list[tuple[int, str]] = []
    for each in _sockets():
        with each, contextlib.suppress(OSError):
            own = each.getsockname()
            ends.add(_end(own))
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listening.add(own[1])
            else:
                others.append((own[1], _end(each.getpeername())))
    taken = {other for port, other in others if port in listening}
    if len(ends) + len(taken) > _MAX_ENDS:
        return Connected((), ())
    return Connected(tuple(sorted(ends)), tuple(sorted(taken)))


def _sockets() -> Iterator[socket.socket]:
    """Yields a copy of each socket of TCP."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            copy = os.dup(int(name))
            try:
                found = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                yield found
            else:
                found.close()


def _end(name: tuple[str, int]) -> str:
    """`127.0.0.1:4711`, and the same for a socket of IPv6 that takes IPv4 too."""
    return f"{name[0].removeprefix('::ffff:')}:{name[1]}"


# The store by which the ranks of a group find one another: torch's interface, over the ring's own channel.
#
# torch's TCPStore listens on all addresses of a machine and has no password, so that every user who reaches it can
# write over the addresses of ranks. Here what ranks tell one another goes to the supervisor by a pipe, and on by the
# coordinator's connections.


def make_store(torch: Any, channel: Channel, name: str, seconds: float) -> Any:
    """Returns a `torch.distributed.Store` of the group `name`, in which a rank waits for others for `seconds` at most.
    It has to be kept for as long as the group lives, since torch calls it from threads of its own."""

    class ChannelStore(torch.distributed.Store):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._known: dict[str, bytes] = {}
            self._thread = threading.get_ident()

        def set(self, key: str, value: bytes | str) -> None:
            channel.put(f"{name}/{key}", value.encode() if isinstance(value, str) else bytes(value))

        def get(self, key: str) -> bytes:
            return self._wait_for(key, seconds)

        def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
            for key in keys:
                self._wait_for(key, seconds if timeout is None else timeout.total_seconds())

        def check(self, keys: Sequence[str]) -> bool:
            """NCCL's watchdog asks, every second, whether another rank has a reason to stop: the coordinator would
            say so."""
            return all(key in self._known for key in keys)

        def multi_get(self, keys: Sequence[str]) -> list[bytes]:
            return [self.get(key) for key in keys]

        def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
            for key, value in zip(keys, values, strict=True):
                self.set(key, value)

        def has_extended_api(self) -> bool:
            return False

        def clone(self) -> Any:
            return self

        def _wait_for(self, key: str, seconds: float) -> bytes:
            if threading.get_ident() != self._thread:
                raise RuntimeError("the store of a ring answers the rank's own thread alone")
            if key not in self._known:
                self._known[key] = channel.get(f"{name}/{key}", seconds)
            return self._known[key]

    return ChannelStore()


_KEY: Final = "laggard/ring/coordinator"
_CONNECT_SECONDS: Final = 30.0
_MAX_CHARACTERS = 300


def publish(torch: Any, command: Publish) -> None:
    _store(torch, command.host, command.port, _CONNECT_SECONDS).set(_KEY, command.text)


def learn(torch: Any, command: Learn) -> str:
    value: bytes = _store(torch, command.host, command.port, command.seconds).get(_KEY)
    return value[:_MAX_CHARACTERS].decode(errors="replace")


def _store(torch: Any, host: str, port: int, seconds: float) -> Any:
    limit = timedelta(seconds=seconds)
    return torch.distributed.TCPStore(host, port, None, False, limit, wait_for_workers=False)
