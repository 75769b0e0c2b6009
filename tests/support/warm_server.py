"""The program of warm.py's server: python warm_server.py own|shared DESCRIPTOR MODULE...

It imports the modules, then starts a job for each request on the socket DESCRIPTOR: a child that becomes what `python
WORDS` would be, but for the modules that it has already. It starts no thread and computes nothing before that, so that
the child has nothing of a process that forked. It ends, and its jobs with it, when the other end of the socket is
closed. Where it is `shared`, the socket is one that listens: each process that connects has a fork of the server to
itself, and the server ends after the last of them. The standard library only.

A request is the JSON {"words", "environment", "folder"} with three descriptors: standard input, output and error. The
answers are {"pid"}, in the order of the requests, and {"pid", "status"} when a job has ended.
"""

import array
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from types import ModuleType
from typing import Any, NamedTuple

LARGEST = 1 << 20
_LOOK_SECONDS = 0.5
_IDLE_SECONDS = 5.0


class Request(NamedTuple):
    words: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[int]


def accept(listener: socket.socket) -> socket.socket:
    """Forks a server for each process that connects. Returns in those servers only, each with its connection."""
    servers: set[int] = set()
    waited = 0.0
    while True:
        ready, _, _ = select.select([listener], [], [], _LOOK_SECONDS)
        if ready:
            connection, _ = listener.accept()
            pid = os.fork()
            if pid == 0:
                listener.close()
                return connection
            connection.close()
            servers.add(pid)
        servers -= {pid for pid in servers if os.waitpid(pid, os.WNOHANG)[0]}
        waited = 0.0 if servers or ready else waited + _LOOK_SECONDS
        if waited > _IDLE_SECONDS:
            os._exit(0)


def serve(channel: socket.socket) -> Request:
    """Forks a child for each request. Returns in the children only, each with its request."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who ask: it ends when they have gone
    running: set[int] = set()
    while True:
        ready, _, _ = select.select([channel, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(channel, running)
        if channel in ready:
            request = _receive(channel)
            if request is None:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for descriptor in (woken, wakes, channel.detach()):
                    os.close(descriptor)
                return request
            running.add(pid)
            for descriptor in request.streams:
                os.close(descriptor)
            _answer(channel, {"pid": pid})


def _receive(channel: socket.socket) -> Request | None:
    size = array.array("i").itemsize * 3
    text, ancillary, _, _ = channel.recvmsg(LARGEST, socket.CMSG_LEN(size))
    if not text:
        return None
    streams = array.array("i")
    streams.frombytes(ancillary[0][2])
    return Request(**json.loads(text), streams=list(streams))


def _report_ended(channel: socket.socket, running: set[int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        running.remove(pid)
        _answer(channel, {"pid": pid, "status": os.waitstatus_to_exitcode(status)})


def _answer(channel: socket.socket, answer: dict[str, int]) -> None:
    with contextlib.suppress(OSError):  # nobody is there any more, which the next request says
        channel.send(json.dumps(answer).encode())


def become(request: Request) -> None:
    """Does what `python WORDS` does: a script with its arguments, -m MODULE ..., or -c PROGRAM ..."""
    for number, descriptor in enumerate(request.streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    own_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    path = [word for word in request.environment.get("PYTHONPATH", "").split(os.pathsep) if word]
    first, *arguments = request.words
    sys.path[:] = ["", *path, *(each for each in sys.path[1:] if each not in own_path)]
    if first == "-m":
        sys.path[0] = request.folder
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *arguments[1:]]
        _run_as_main(arguments[0], "<string>", {})
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        sys.argv = request.words
        with open(first, encoding="utf-8") as file:
            _run_as_main(file.read(), first, {"__file__": first})


def _run_as_main(text: str, name: str, values: dict[str, Any]) -> None:
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(values)
    exec(compile(text, name, "exec"), main.__dict__)


if __name__ == "__main__":
    kind, descriptor, *modules = sys.argv[1:]
    if kind == "shared" and os.fork():
        os._exit(0)  # it is nobody's child: it may outlive who started it
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a child's first collection would otherwise copy all pages of the modules
    own = socket.socket(fileno=int(descriptor))
    become(serve(accept(own) if kind == "shared" else own))
