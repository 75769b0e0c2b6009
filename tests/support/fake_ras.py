"""A stand-in for the server in NCCL's RAS thread, which needs GPUs.

It speaks the client protocol as NCCL's source does: version 2.30.7, src/ras/client_support.cc, rasClientEventLoop (the
commands and their answers), rasClientRun (one status, then the connection is closed) and rasDumpCommsToJSON with the
functions it calls (the JSON, field by field, with its white space). `nccl=(2, 28, 9)` leaves out the comma that 2.28.7
and 2.28.9 leave out before `status` of a missing rank; an older one has no SET FORMAT and answers STATUS in text, as
2.27.7 does. Every process of a job listens at one port (SO_REUSEPORT), and so may several of these.
"""

import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")  # ncclFuncStr, src/init.cc

Misbehaviour = Callable[[socket.socket], None]


class FakeRank(NamedTuple):
    """A rank of a communicator. `missing`: it does not answer NCCL RAS."""

    rank: int
    host: str = "127.0.0.1"
    pid: int = 4_000_000
    gpu: int = 0
    counts: Mapping[str, int] = {}
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    missing: bool = False
    unresponsive: bool = True
    dead: bool = False


class FakeCommunicator(NamedTuple):
    ranks: Sequence[FakeRank]
    hash: str = "0xae94423cfbb2ef4a"
    secondary_hash: str = "0xb7e7187447156001:0xb8242ed28a71381e"
    size: int | None = None


def status_json(communicators: Iterable[FakeCommunicator], nccl: tuple[int, int, int] = (2, 30, 7)) -> bytes:
    comms = list(communicators)
    head = [
        "{",
        f'  "nccl_version": "{".".join(map(str, nccl))}",',
        '  "cuda_runtime_version": 13000,',
        '  "cuda_driver_version": 13000,',
        '  "timestamp": "2026-11-22 13:06:53",',
        f'  "communicators_count": {len(comms)},',
        '  "communicators": [',
    ]
    body = ",\n".join(_communicator(each, nccl) for each in comms)
    foot = '  "ras": {\n    "collection_time_sec": 0.002,\n    "timeouts_count": 0\n  }\n}\n'
    return ("\n".join(head) + "\n" + body + "\n  ],\n" + foot).encode()


def _communicator(it: FakeCommunicator, nccl: tuple[int, int, int]) -> str:
    present = [rank for rank in it.ranks if not rank.missing]
    missing = [rank for rank in it.ranks if rank.missing]
    return (
        f'    {{\n      "hash": "{it.hash}",\n      "secondary_hash": "{it.secondary_hash}",\n'
        f'      "size": {len(it.ranks) if it.size is None else it.size},\n      "ranks_count": {len(present)},\n'
        f'      "missing_ranks_count": {len(missing)},\n      "ranks": [\n'
        + ",\n".join(map(_rank, present))
        + '\n      ],\n      "missing_ranks": [\n'
        + ",\n".join(_missing(rank, nccl) for rank in missing)
        + "\n      ]\n    }"
    )


def _who(it: FakeRank, comma: str = ",") -> str:
    return (
        f'        {{\n          "rank": {it.rank},\n          "host": "{it.host}",\n          "pid": {it.pid},\n'
        f'          "cuda_dev": {it.gpu},\n          "nvml_dev": {it.gpu}{comma}\n          "status": {{\n'
    )


def _rank(it: FakeRank) -> str:
    counts = ",\n".join(f'            "{name}": {it.counts.get(name, 0)}' for name in OPERATIONS)
    return (
        _who(it)
        + f'            "init_state": {it.init_state},\n            "async_error": {it.async_error},\n'
        + f'            "finalize_called": {str(it.finalize_called).lower()},\n'
        + '            "destroy_flag": false,\n            "abort_flag": false\n          },\n'
        + f'          "collective_counts": {{\n{counts}\n          }}\n        }}'
    )


def _missing(it: FakeRank, nccl: tuple[int, int, int]) -> str:
    return (
        _who(it, "" if nccl <= (2, 28, 9) else ",")
        + f'            "unresponsive": {str(it.unresponsive).lower()},\n'
        + f'            "considered_dead": {str(it.dead).lower()}\n          }}\n        }}'
    )


class FakeRas:
    """Listens on 127.0.0.1 until close(). `communicators` is what it answers, and may be replaced; `body` stands in for
    the whole JSON; `misbehave` is called in place of answering STATUS. `commands` is what it was told, in order."""

    def __init__(
        self,
        communicators: Sequence[FakeCommunicator] = (),
        port: int = 0,
        nccl: tuple[int, int, int] = (2, 30, 7),
        body: bytes | None = None,
        misbehave: Misbehaviour | None = None,
    ) -> None:
        self.communicators = communicators
        self.commands: list[str] = []
        self._nccl, self._body, self._misbehave = nccl, body, misbehave
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._listener.bind(("127.0.0.1", port))
        self._listener.listen(16_384)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        form = "text"
        with suppress(OSError), connection, connection.makefile("rb") as lines:
            for line in lines:
                command = line.rstrip(b"\r\n").decode()
                self.commands.append(command)
                lowered = command.lower()
                if lowered.startswith("client protocol "):
                    connection.sendall(b"SERVER PROTOCOL 2\n")
                elif lowered.startswith("timeout "):
                    number = command[len("timeout ") :]
                    ok = number.isdigit()
                    connection.sendall(b"OK\n" if ok else f"ERROR: Invalid timeout value {number}\n".encode())
                elif lowered.startswith("set format ") and self._nccl >= (2, 28, 7):
                    form = lowered[len("set format ") :]
                    ok = form in ("text", "json")
                    connection.sendall(b"OK\n" if ok else f"ERROR: Invalid format {form}\n".encode())
                elif lowered in ("status", "verbose status"):
                    self._status(connection, form)
                    return
                else:
                    connection.sendall(f"ERROR: Unknown command {command}\n".encode())

    def _status(self, connection: socket.socket, form: str) -> None:
        if self._misbehave:
            self._misbehave(connection)
        elif form == "json":
            connection.sendall(self._body or status_json(self.communicators, self._nccl))
        else:
            version = ".".join(map(str, self._nccl))
            connection.sendall(
                f"NCCL version {version} compiled with CUDA 12.9\nCUDA runtime version 12090, driver version 12090\n\n"
                "Job summary\n===========\n".encode()
            )
