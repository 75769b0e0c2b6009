"""A PostgreSQL of a test's own: in a temporary folder, over a Unix socket alone, as a user who is not root."""

import contextlib
import glob
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

SETTINGS = """
listen_addresses = ''
max_connections = 40
shared_buffers = 16MB
max_wal_size = 96MB
logging_collector = off
"""


def why_none() -> str:
    """The reason why there is no PostgreSQL to be tested with; empty where there is."""
    if importlib.util.find_spec("psycopg") is None:
        return "needs psycopg (laggard[postgres])"
    if not programs():
        return "needs PostgreSQL's server (Debian: postgresql)"
    if os.geteuid() == 0 and user() is None:
        return "needs a user postgres, since PostgreSQL does not run as root"
    return ""


def programs() -> str:
    """The folder of the server's programs; empty where there is none."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    beside = shutil.which("initdb")
    return os.path.dirname(found[-1] if found else beside or "")


def user() -> pwd.struct_passwd | None:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    return None


class Server:
    """It may be killed and started again; its databases stay."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            found = user()
            assert found is not None
            os.chown(folder, found.pw_uid, found.pw_gid)
        self._run("initdb", "-D", str(self.data), "-A", "trust", "-U", "laggard", "-E", "UTF8", "--no-locale", "-N")
        more = f"unix_socket_directories = '{folder}'\nfsync = off\n"  # no machine loses its power
        with open(self.data / "postgresql.conf", "a") as file:
            file.write(SETTINGS + more)

    def _words(self, program: str, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
        command = [os.path.join(programs(), program), *words]
        found = user() if os.geteuid() == 0 else None
        return command, {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []} if found else {}

    def _run(self, program: str, *words: str) -> None:
        command, as_user = self._words(program, words)
        subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=self.folder, **as_user)

    def start(self) -> None:
        command, as_user = self._words("postgres", ["-D", str(self.data)])
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **as_user)
        deadline = time.monotonic() + 60
        while True:
            try:
                with self.connect("postgres"):
                    return
            except Exception as error:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    text = (self.folder / "log").read_text(errors="replace")[-2000:]
                    raise AssertionError(f"PostgreSQL does not start: {error}\n{text}") from None
                time.sleep(0.05)

    def kill(self) -> None:
        """Ends it as it is, in the middle of whatever it does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(60)
            self._process = None

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Meanwhile it and all its processes do nothing: its kernel takes what is sent, and nothing answers."""
        assert self._process is not None
        main = psutil.Process(self._process.pid)
        main.suspend()
        processes = main.children(recursive=True)
        for each in processes:
            each.suspend()
        try:
            yield
        finally:
            for each in (*processes, main):
                each.resume()

    def connect(self, name: str = "postgres") -> Any:
        import psycopg

        return psycopg.connect(self.url(name), autocommit=True)

    def url(self, name: str) -> str:
        return f"postgresql:///{name}?host={self.folder}&user=laggard"

    def database(self) -> str:
        """The URL of an empty database: the same each time, and what an earlier test left there is gone."""
        with self.connect() as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'tests'").fetchone():
                connection.execute("CREATE DATABASE tests")
        with self.connect("tests") as connection:
            connection.execute("SET client_min_messages = warning; DROP SCHEMA IF EXISTS laggard CASCADE")
        return self.url("tests")


@contextlib.contextmanager
def running(folder: str = "/tmp", configure: Callable[[Server], None] = lambda server: None) -> Iterator[Server]:
    """`configure`: is called before the server starts."""
    if why := why_none():
        pytest.skip(why)
    own = Path(tempfile.mkdtemp(prefix="laggard-pg-", dir=folder))  # its socket's path is to be short
    server = Server(own)
    try:
        configure(server)
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(own, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One for all tests of a process, which must not stop it."""
    with running() as server:
        yield server
