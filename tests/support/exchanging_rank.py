"""A rank for tests that really exchanges bytes over TCP, and the other side of its connections.

    exchanging_rank.py serve HOST PORT      answers everybody, until it is ended
    exchanging_rank.py rank                 obeys lines on standard input, and prints `done` after each

A line is `HOST PORT SOURCE SEND RECEIVE`: on its connection to HOST from the address SOURCE (`-`: any) the rank sends
so many bytes, and receives so many.
"""

import contextlib
import socket
import sys
import threading

CHUNK = 1 << 16


def receive(connection: socket.socket, size: int) -> None:
    while size:
        data = connection.recv(min(size, CHUNK))
        if not data:
            raise ConnectionError
        size -= len(data)


def send(connection: socket.socket, size: int) -> None:
    while size:
        connection.sendall(b"x" * min(size, CHUNK))
        size -= min(size, CHUNK)


def serve(host: str, port: int) -> None:
    with socket.create_server((host, port)) as server:
        print("done", flush=True)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    """First comes a line of 32 bytes: how many to receive, how many to send."""
    with contextlib.suppress(OSError), connection:
        while True:
            head = connection.recv(32, socket.MSG_WAITALL).split()
            if len(head) != 2:
                return
            receive(connection, int(head[0]))
            send(connection, int(head[1]))


def obey() -> None:
    connections: dict[tuple[str, str], socket.socket] = {}
    for line in sys.stdin:
        host, port, source, sent, received = line.split()
        if (host, port) not in connections:
            own = None if source == "-" else (source, 0)
            connections[host, port] = socket.create_connection((host, int(port)), 60, source_address=own)
        connection = connections[host, port]
        connection.sendall(f"{sent} {received}".encode().ljust(32))
        send(connection, int(sent))
        receive(connection, int(received))
        print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        obey()
