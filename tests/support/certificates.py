"""Certificates, and the real daemons that use them, each a process of its own."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from laggard.kit.tls import ENV_CA_FILE, ENV_CERT_FILE, ENV_KEY_FILE
from support.daemons import Daemon

SECONDS = 300.0


class Files(NamedTuple):
    """Certificates in `folder`: of a server, an authority, and clients, of which `stranger` has another authority."""

    folder: Path
    authority: trustme.CA

    @classmethod
    def make(cls, folder: Path) -> Files:
        files = cls(folder, trustme.CA())
        files.authority.cert_pem.write_to_path(folder / "ca.pem")
        files.write("server", files.authority.issue_cert("127.0.0.1", "localhost"))
        files.write("client", files.authority.issue_cert("collector.example"))
        files.write("other", files.authority.issue_cert("other.example"))
        files.write("stranger", trustme.CA().issue_cert("collector.example"))
        return files

    def write(self, name: str, certificate: trustme.LeafCert) -> None:
        """Both files as a whole: a daemon may read them at any moment."""
        for kind, blob in (("key", certificate.private_key_pem), ("pem", certificate.cert_chain_pems[0])):
            blob.write_to_path(self.folder / f"{name}.new")
            (self.folder / f"{name}.new").chmod(0o600)
            os.replace(self.folder / f"{name}.new", self.folder / f"{name}.{kind}")

    def config(self, **more: object) -> str:
        """The path of a --web.config.file; `more`: keys of tls_server_config."""
        keys = {"cert_file": "server.pem", "key_file": "server.key", **more}
        path = self.folder / "web.yaml"
        lines = "".join(f"  {key}: {value}\n" for key, value in keys.items())
        path.write_text(f"tls_server_config:\n{lines}")
        return str(path)

    def environment(self, client: str = "") -> dict[str, str]:
        shown = {ENV_CERT_FILE: f"{self.folder}/{client}.pem", ENV_KEY_FILE: f"{self.folder}/{client}.key"}
        return {ENV_CA_FILE: str(self.folder / "ca.pem"), **(shown if client else {})}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def files(made: Files, tmp_path: Path) -> Files:
    for path in made.folder.iterdir():
        shutil.copy(path, tmp_path)
    return Files(tmp_path, made.authority)


Start = Callable[..., Daemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Daemon] = []
    (tmp_path / "ranks").mkdir()

    def run(*words: str, environ: dict[str, str] | None = None) -> Daemon:
        own = ("--node", "n0", "--rank-dir", str(tmp_path / "ranks")) if words[0] == "agent" else ()
        started.append(Daemon(tmp_path / f"{len(started)}.log", (words[0], *own, *words[1:]), environ or {}))
        return started[-1]

    yield run
    for daemon in started:
        assert daemon.stop() == 0, daemon.said()


def client(files: Files, name: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files.folder / "ca.pem"))
    if name:
        context.load_cert_chain(files.folder / f"{name}.pem", files.folder / f"{name}.key")
    return context
