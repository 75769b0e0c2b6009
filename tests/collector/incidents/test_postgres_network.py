"""PostgreSQL as sites have it: over TLS with its certificate checked and a password from a file; behind PgBouncer."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from support.ports import free_port
from support.postgres import Server, running, user, why_none
from support.rows import rows
from support.stores import WALL, incident, open_store, run

from laggard.cli import main
from laggard.collector.incidents import postgres as postgres_module
from laggard.collector.incidents.incident import IncidentQuery
from laggard.collector.incidents.reads import read_incidents
from laggard.collector.incidents.schema import DatabaseError
from laggard.collector.incidents.store import Batch

pytestmark = pytest.mark.slow

PASSWORD = "a password of the role"
ACCESS = """\
local all all trust
hostssl all all 127.0.0.1/32 scram-sha-256
"""
"""Over the network by TLS alone, and with a password."""


class OverTls:
    """A server that listens at a port of 127.0.0.1, with a certificate for `name`."""

    def __init__(self, server: Server, folder: Path, name: str = "127.0.0.1") -> None:
        self.server, self.folder, self.authority, self.port = server, folder, trustme.CA(), free_port()
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        certificate = self.authority.issue_cert(name)
        for file, blob in (("server.key", certificate.private_key_pem), ("server.crt", certificate.cert_chain_pems[0])):
            blob.write_to_path(server.data / file)
            self._give(server.data / file)
        (server.data / "pg_hba.conf").write_text(ACCESS)
        self._give(server.data / "pg_hba.conf")
        with open(server.data / "postgresql.conf", "a") as file:
            file.write(f"ssl = on\nlisten_addresses = '127.0.0.1'\nport = {self.port}\n")

    def _give(self, path: Path) -> None:
        """Gives a file to the server's user."""
        path.chmod(0o600)
        found = user() if os.geteuid() == 0 else None
        if found is not None:
            os.chown(path, found.pw_uid, found.pw_gid)

    def make_role(self) -> None:
        with self.server.connect() as connection:
            connection.execute(f"ALTER ROLE laggard PASSWORD '{PASSWORD}'")
            connection.execute("CREATE DATABASE incidents OWNER laggard ENCODING 'UTF8' TEMPLATE template0")
        self.put_password(PASSWORD)

    def put_password(self, password: str) -> None:
        path = self.folder / "pgpass"
        path.write_text(f"127.0.0.1:{self.port}:incidents:laggard:{password}\nlocalhost:*:*:*:{password}\n")
        path.chmod(0o600)

    def url(self, host: str = "127.0.0.1", **changes: str) -> str:
        """As docs/incidents.md has it."""
        checked = {"sslmode": "verify-full", "sslrootcert": f"{self.folder}/ca.pem"}
        options = {**checked, "passfile": f"{self.folder}/pgpass"}
        told = "&".join(f"{name}={value}" for name, value in {**options, **changes}.items())
        return f"postgresql://laggard@{host}:{self.port}/incidents?{told}"


@pytest.fixture
def over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OverTls]:
    if why := why_none():
        pytest.skip(why)
    made: list[OverTls] = []

    def configure(server: Server) -> None:
        made.append(OverTls(server, tmp_path))
        monkeypatch.setenv("PGPORT", str(made[0].port))  # its Unix socket has the port in its name

    with running(configure=configure):
        made[0].make_role()
        yield made[0]


def test_incidents_are_kept_over_tls_with_the_certificate_checked(
    over_tls: OverTls, capsys: pytest.CaptureFixture[str]
) -> None:
    open_store(over_tls.url()).write(Batch([incident(1)]), WALL)
    with over_tls.server.connect() as connection:
        text = "SELECT DISTINCT ssl, application_name FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)"
        assert connection.execute(f"{text} WHERE client_addr IS NOT NULL").fetchall() == [(True, "laggard")]
    assert main(["incidents", "--database", over_tls.url()]) == 1
    assert "rank 2 on n1 is slow" in capsys.readouterr().out


@rows("collector/untrusted_postgres")
def test_what_cannot_be_trusted_is_one_line_without_a_secret(
    over_tls: OverTls, tmp_path: Path, changes: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other")
    if "passfile" in changes:
        over_tls.put_password("another password")
        changes = {}
    if "sslrootcert" in changes:
        changes = {"sslrootcert": f"{tmp_path}/other"}
    url = over_tls.url(**changes)
    with pytest.raises(DatabaseError) as error:
        open_store(url)
    text = str(error.value)
    assert (
        said in text
        and "\n" not in text
        and "password of the role" not in text
        and "passfile" not in text.split(";")[0]
    )
    assert main(["incidents", "--database", url]) == 64 and said in capsys.readouterr().err


class PgBouncer:
    """PgBouncer before a server, with a pool of `size` connections."""

    def __init__(self, server: Server, folder: Path, mode: str, size: int = 20) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir()
        (folder / "users").write_text('"laggard" ""\n')
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\ntests = host={server.folder} dbname=tests\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {folder}/users\n"
            f"pool_mode = {mode}\ndefault_pool_size = {size}\nlogfile = {folder}/log\n"
        )
        found = user() if os.geteuid() == 0 else None
        as_user: dict[str, Any] = {}
        if found is not None:
            shutil.chown(folder, found.pw_uid, found.pw_gid)
            as_user = {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
        words = [shutil.which("pgbouncer") or "/usr/sbin/pgbouncer", "-q", str(folder / "pgbouncer.ini")]
        self._process = subprocess.Popen(words, cwd=folder, stderr=subprocess.DEVNULL, **as_user)
        self._wait()

    @property
    def url(self) -> str:
        return f"postgresql://laggard@127.0.0.1:{self.port}/tests"

    def _wait(self) -> None:
        import psycopg

        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                said = (self.folder / "log").read_text() if (self.folder / "log").exists() else ""
                assert time.monotonic() < deadline and self._process.poll() is None, said
                time.sleep(0.05)

    def close(self) -> None:
        self._process.kill()  # what its signals mean differs between releases, and a shell's background ignores some
        self._process.wait(60)


@pytest.fixture
def bouncer(postgres: Server) -> Iterator[Callable[..., PgBouncer]]:
    if not (shutil.which("pgbouncer") or os.path.exists("/usr/sbin/pgbouncer")):
        pytest.skip("needs pgbouncer")
    postgres.database()
    made: list[PgBouncer] = []
    with tempfile.TemporaryDirectory(prefix="laggard-bouncer-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)

        def start(mode: str, size: int = 20) -> PgBouncer:
            made.append(PgBouncer(postgres, Path(folder) / str(len(made)), mode, size))
            return made[-1]

        yield start
        for each in made:
            each.close()


def test_collectors_share_a_database_behind_pgbouncer_in_session_mode(bouncer: Any) -> None:
    """One incident, as without it (test_postgres.py)."""
    url = bouncer("session").url
    one, other = open_store(url, writer="one"), open_store(url, writer="other")
    one.write(Batch([incident(1)]), WALL)
    other.write(Batch([incident(2)]), WALL)
    one.close()
    other.close()
    assert [it.id for it in open_store(url, writer="other").open_incidents(10)] == [1], "who told of it last goes on"
    assert [it.id for it in read_incidents(url, IncidentQuery()).incidents] == [1]


def test_transaction_mode_is_told_in_one_line_and_nothing_is_made(bouncer: Any, postgres: Server) -> None:
    with pytest.raises(DatabaseError) as error:
        open_store(bouncer("transaction").url)
    reason = str(error.value)
    assert "a pooler that lends a connection for a transaction" in reason and "set pool_mode to session" in reason
    assert "\n" not in reason
    with postgres.connect("tests") as connection:
        assert not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'laggard'").fetchall()


def test_a_transaction_with_another_process_of_the_server_is_refused(
    bouncer: Any, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where other clients come between later, after a start that has seen nothing."""
    import psycopg

    monkeypatch.setattr(postgres_module, "refuse_lent", lambda place, connection: None)
    url = bouncer("transaction").url
    with contextlib.closing(open_store(url)) as store:
        assert run(store, "SELECT count(*) FROM incidents") == [(0,)]
        with psycopg.connect(url, autocommit=True) as other, other.transaction():
            assert other.execute("SELECT count(*) FROM laggard.incidents").fetchone() == (0,)  # on this one's process
            with pytest.raises(DatabaseError, match="set pool_mode to session"), store.transaction():
                raise AssertionError("it has the settings and locks of nobody")
