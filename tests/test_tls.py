"""TLS of the real daemons: who may ask, what those are told who may not, and certificates that are replaced."""

import contextlib
import socket
import ssl
import urllib.request
from pathlib import Path

import pytest
from support.certificates import SECONDS, Files, Start, client
from support.daemons import Daemon, laggard
from support.rows import rows
from support.waiting import wait_for

from laggard.gate.cached_report import CachedReport, fetch_cached_report
from laggard.kit.errors import UsageError
from laggard.kit.http_client import NoResponse, get
from laggard.kit.tls import ENV_CA_FILE, ENV_CERT_FILE, ENV_KEY_FILE, client_context
from laggard.kit.web_config import load_web_config
from laggard.kubernetes.api_server import Answer, Exchange
from laggard.kubernetes.judge import CollectorError, read_view

DAEMONS = (("agent",), ("collector", "--target", "127.0.0.1:9"))


def asked(daemon: Daemon, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, path: str = "/-/healthy") -> str:
    """What the daemon answers, or why it does not."""
    for name in (ENV_CA_FILE, ENV_CERT_FILE, ENV_KEY_FILE):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    try:
        return get(f"{daemon.url}{path}", SECONDS).body.decode()
    except NoResponse as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize("words", DAEMONS, ids=("agent", "collector"))
def test_who_may_ask_and_what_the_others_are_told(
    words: tuple[str, ...], files: Files, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = files.config(
        client_ca_file="ca.pem",
        client_auth_type="RequireAndVerifyClientCert",
        client_allowed_sans="[collector.example, ops.example]",
    )
    daemon = start(*words, "--web.config.file", config)
    assert daemon.url.startswith("https://")
    assert asked(daemon, files.environment("client"), monkeypatch) == "healthy\n"
    without = asked(daemon, files.environment(), monkeypatch)
    assert "it asks for a client's certificate: set LAGGARD_TLS_CERT_FILE and" in without
    assert "certificate" in asked(daemon, files.environment("stranger"), monkeypatch)
    assert asked(daemon, {}, monkeypatch).startswith("its certificate is not accepted: ")
    assert asked(daemon, files.environment("other"), monkeypatch) != "healthy\n", "a name that is not allowed"
    assert asked(daemon, files.environment("client"), monkeypatch) == "healthy\n"


@pytest.mark.slow
def test_a_client_without_tls_is_told_so(files: Files, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = start("agent", "--web.config.file", files.config())
    with pytest.raises(NoResponse, match="it speaks TLS: write https:// before its name"):
        get(f"http://127.0.0.1:{agent.port}/metrics", SECONDS)
    plain = start("agent")
    plain.url = plain.url.replace("http:", "https:")
    assert asked(plain, files.environment(), monkeypatch) == "it does not speak TLS: write http://"
    collector = start("collector", "--target", "127.0.0.1:9", "--web.config.file", files.config())
    said = locate(f"http://127.0.0.1:{collector.port}", files.environment())
    assert "closed the connection; where it speaks TLS, write https://" in said


@pytest.mark.slow
def test_the_controller_says_what_is_wrong_with_the_address_that_it_was_given(
    files: Files, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line each, and it says what to do."""
    for name, value in files.environment().items():
        monkeypatch.setenv(name, value)
    exchange = Exchange(SECONDS, client_context)

    def said(url: str, scheme: str = "https") -> str:
        url = url.replace("https:", f"{scheme}:").replace("http:", f"{scheme}:")
        with pytest.raises(CollectorError) as told:
            read_view(exchange, url)
        return str(told.value).replace(url, "URL")

    no_collector = "URL is no collector: write a collector's address (a collector's port is 19401, an agent's 19400)"
    certificate = "it asks for a client's certificate: set LAGGARD_TLS_CERT_FILE and LAGGARD_TLS_KEY_FILE"
    agent = start("agent", "--web.config.file", files.config())
    assert said(agent.url) == no_collector
    assert said(agent.url, "http") == "URL speaks TLS: write https:// before its name"
    collector = start("collector", "--target", "127.0.0.1:9", "--web.config.file", files.config())
    assert said(collector.url, "http").endswith("it closed the connection: write https:// if it speaks TLS")
    plain = start("agent")
    assert said(plain.url, "http") == no_collector
    assert said(plain.url) == "the collector URL does not answer: it does not speak TLS: write http://"
    config = files.config(client_ca_file="ca.pem", client_auth_type="RequireAndVerifyClientCert")
    for words in DAEMONS:
        told = said(start(*words, "--web.config.file", config).url)
        assert told.count(certificate) == 1, told
    exchange.close()


def test_of_a_refusal_at_the_agents_port_the_controller_asks_whether_it_is_an_agent() -> None:
    class Refusing(Exchange):
        def send(self, *words: object, **more: object) -> Answer:
            return Answer(403, b"", "HTTP 403: the client's certificate has none of the names that may ask here")

    for port, asks in ((19400, True), (19401, False)):
        with pytest.raises(CollectorError) as told:
            read_view(Refusing(1.0), f"https://laggard-agents:{port}")
        assert ("is it an agent? a collector's port is 19401" in str(told.value)) is asks


@pytest.mark.slow
def test_the_chain_from_agent_to_people(files: Files, start: Start) -> None:
    """The collector shows agents its certificate, and `laggard locate` shows it one."""
    config = files.config(client_ca_file="ca.pem", client_auth_type="RequireAndVerifyClientCert")
    agent = start("agent", "--web.config.file", config)
    words = ("collector", "--interval", "1", "--web.config.file", config, "--target")
    collector = start(*words, agent.url, environ=files.environment("client"))
    tls = client(files, "client")
    collector.wait_until(lambda: '"state":"up"' in get_text(f"{collector.url}/api/v1/nodes", tls))
    assert "1 agent answers" in locate(collector.url, files.environment("client"))
    assert "it asks for a client's certificate: set" in locate(collector.url, files.environment())
    assert "is not accepted" in locate(collector.url, {})
    without = start(*words, agent.url)
    without.wait_until(lambda: "not accepted" in get_text(f"{without.url}/api/v1/nodes", tls))
    wrong = start(*words, agent.url.replace("https:", "http:"), environ=files.environment("client"))
    wrong.wait_until(lambda: "it speaks TLS" in get_text(f"{wrong.url}/api/v1/nodes", tls))


@pytest.mark.slow
@pytest.mark.parametrize("words", DAEMONS, ids=("agent", "collector"))
def test_handshakes_that_never_end_hold_up_nobody(words: tuple[str, ...], files: Files, start: Start) -> None:
    daemon = start(*words, "--web.config.file", files.config())
    with contextlib.ExitStack() as stack:
        stalled = []
        for _ in range(300):
            stalled.append(stack.enter_context(socket.create_connection(("127.0.0.1", daemon.port), 60)))
            stalled[-1].sendall(b"\x16\x03\x01")
        assert get(f"{daemon.url}/-/healthy", SECONDS, client(files)).body == b"healthy\n"
        for connection in stalled:
            connection.settimeout(SECONDS)
            with contextlib.suppress(ConnectionError):
                while connection.recv(100):
                    pass
        assert get(f"{daemon.url}/-/healthy", SECONDS, client(files)).body == b"healthy\n"
    assert "Traceback" not in daemon.said() and daemon.said().count("\n") < 12


@pytest.mark.slow
def test_the_gate_takes_the_report_of_an_agent_with_tls(
    files: Files, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its authority: who listens is known by the kernel."""
    agent = start("agent", "--web.config.file", files.config())

    def report() -> CachedReport | None:
        with contextlib.suppress(NoResponse):
            return fetch_cached_report(agent.port, "n0", 600.0, ())
        return None

    assert wait_for(report, agent.said).report.node == "n0"


@pytest.mark.slow
def test_systemd_hears_of_a_daemon_that_asks_for_certificates(files: Files, tmp_path: Path) -> None:
    config = files.config(client_ca_file="ca.pem", client_auth_type="RequireAndVerifyClientCert")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(SECONDS)
        (tmp_path / "ranks").mkdir()
        words = ("agent", "--rank-dir", str(tmp_path / "ranks"), "--web.config.file", config)
        daemon = Daemon(tmp_path / "log", words, {"NOTIFY_SOCKET": str(tmp_path / "notify")})
        try:
            assert systemd.recv(4096).startswith(b"READY=1\n")
        finally:
            daemon.stop()


@rows("tls_files")
def test_a_wrong_file_is_one_line(files: Files, text: str, message: str) -> None:
    (files.folder / "web.yaml").write_text(text)
    with pytest.raises(UsageError) as raised:
        load_web_config(str(files.folder / "web.yaml"))
    said = str(raised.value)
    assert message in said and "\n" not in said and str(files.folder) in said


def get_text(url: str, tls: ssl.SSLContext) -> str:
    with urllib.request.urlopen(url, timeout=SECONDS, context=tls) as answer:
        text: str = answer.read().decode()
        return text


def locate(url: str, environ: dict[str, str]) -> str:
    done = laggard("locate", "--collector", url, **environ)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", DAEMONS, ids=("agent", "collector"))
def test_certificates_are_replaced_without_a_restart(words: tuple[str, ...], files: Files, start: Start) -> None:
    daemon = start(*words, "--web.config.file", files.config())
    first = served(daemon)
    (files.folder / "server.key").write_text("half a key")
    assert served(daemon) == first
    daemon.wait_until(lambda: "the former certificates stay in use: cert_file, key_file: " in daemon.said())
    files.write("server", files.authority.issue_cert("127.0.0.1"))
    second = served(daemon)
    assert second != first and served(daemon) == second
    assert "certificates are read anew" in daemon.said() and "Traceback" not in daemon.said()


def served(daemon: Daemon) -> bytes:
    """The certificate that the daemon shows, in DER."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", daemon.port), SECONDS) as plain, context.wrap_socket(plain) as found:
        return found.getpeercert(binary_form=True) or b""
