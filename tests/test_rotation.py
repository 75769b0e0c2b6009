"""Certificates and tokens that are replaced while agent and collector run, as docs/operate.md has it."""

import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trustme
from support.agents import put
from support.certificates import SECONDS, Files, Start, client
from support.daemons import Daemon

from laggard.agent.idle_rings.command import NoAnswer, ask_for_ring
from laggard.kit.http_client import NoResponse, get
from laggard.kit.secret_files import read_token_file
from laggard.kit.tls import ENV_CA_FILE, ENV_CERT_FILE, client_context
from laggard.rings.authentication import new_nonce
from laggard.wire import encode
from laggard.wire.exclusion import ConfirmAsk, Confirmation
from laggard.wire.signing import CONFIRM, STACKS, signed
from laggard.wire.stacks import StacksAsk

pytestmark = pytest.mark.slow

CLIENTS = {"client_ca_file": "ca.pem", "client_auth_type": "RequireAndVerifyClientCert"}


def pair(path: Path, authority: trustme.CA, name: str) -> None:
    """Key and certificate in one file, so that no moment has the one without the other."""
    put(path, authority.issue_cert(name).private_key_and_cert_chain_pem.bytes())


def state(collector: Daemon) -> str:
    """That of its one agent."""
    with urllib.request.urlopen(f"{collector.url}/api/v1/nodes", timeout=SECONDS) as answer:
        (node,) = json.load(answer)["nodes"]
    return str(node["state"])


class Watched:
    """An agent and its collector, which look at each other's certificates."""

    def __init__(self, files: Files, start: Start) -> None:
        self.files, self.folder = files, files.folder
        pair(self.folder / "node.pem", files.authority, "127.0.0.1")
        pair(self.folder / "collector.pem", files.authority, "collector.example")
        config = files.config(**CLIENTS, cert_file="node.pem", key_file="node.pem")
        self.agent = start("agent", "--web.config.file", config)
        self.environ = {ENV_CA_FILE: f"{self.folder}/ca.pem", ENV_CERT_FILE: f"{self.folder}/collector.pem"}
        self.collector = start("collector", "--interval", "0.3", "--target", self.agent.url, environ=self.environ)

    def round(self) -> str:
        """The seconds that the last round took, which no other round takes to the nanosecond."""
        with urllib.request.urlopen(f"{self.collector.url}/metrics", timeout=SECONDS) as answer:
            found = re.search(r"^laggard_collector_round_seconds (\S+)", answer.read().decode(), re.MULTILINE)
        return found[1] if found else ""

    def up(self) -> None:
        """Waits for three more rounds, none of which found the agent down."""
        seen = {self.round()}
        self.collector.wait_until(lambda: seen.add(self.round()) or len(seen) > 3)
        assert state(self.collector) == "up" and "down" not in self.collector.said()


def test_an_authority_is_replaced_without_a_gap(files: Files, start: Start) -> None:
    watched, new = Watched(files, start), trustme.CA()
    watched.up()
    put(watched.folder / "ca.pem", files.authority.cert_pem.bytes() + new.cert_pem.bytes())
    watched.up()
    pair(watched.folder / "collector.pem", new, "collector.example")
    watched.up()
    pair(watched.folder / "node.pem", new, "127.0.0.1")
    watched.up()
    put(watched.folder / "ca.pem", new.cert_pem.bytes())
    watched.up()
    pair_of_one = {"cert_file": "node.pem", "key_file": "node.pem"}
    files.config(**CLIENTS, **pair_of_one, client_allowed_sans="[nobody.example]")
    watched.up()  # the settings themselves hold until the agent is started again
    assert watched.agent.said().count("certificates are read anew") == 3, "its own file, and twice the authorities"
    assert get(f"{watched.agent.url}/-/healthy", SECONDS, tls=client_context(watched.environ)).body == b"healthy\n"
    with pytest.raises(NoResponse, match="does not accept this client's certificate"):
        put(watched.folder / "old.pem", new.cert_pem.bytes())
        old = client(files, "client")
        old.load_verify_locations(watched.folder / "old.pem")
        get(f"{watched.agent.url}/-/healthy", SECONDS, tls=old)


OLD, BOTH, TURNED, NEW = (
    b"the old one\n",
    b"the old one\nthe new one\n",
    b"the new one\nthe old one\n",
    b"the new one\n",
)
STEPS = (BOTH, TURNED, NEW)
"""Each of them everywhere, in any order, before the next: docs/operate.md."""
PARTS = ("agent", "collector", "node", "operator")


class Asking:
    """An agent and a collector, an operator who asks both, and an idle node; each has files of its own."""

    def __init__(self, folder: Path, start_agent: Any, start_collector: Any) -> None:
        self.folder, self.jobs = folder, 0
        for part in PARTS:
            self.put(part, OLD)
        (folder / "agent.yaml").write_text(f"stacks_token_file: {folder / 'agent.token'}\n")
        names = ("stacks_token_file", "confirm_token_file", "ring_token_file")
        own = dict.fromkeys(names, str(folder / "collector.token"))
        config = {**own, "incidents_database": "", "interval_seconds": 0.3}
        (folder / "collector.yaml").write_text(json.dumps(config))
        self.agent = start_agent("--config", str(folder / "agent.yaml"))
        flags = ("--config", str(folder / "collector.yaml"), "--target", self.agent.url)
        self.collector = start_collector(*flags)
        self.collector.wait_until(lambda: self.collector.get("/api/v1/location", job="j1").json()["ranks_seen"])

    def put(self, part: str, tokens: bytes) -> None:
        put(self.folder / f"{part}.token", tokens)

    def refused(self) -> list[str]:
        """Which of all questions is refused for its token: of the collector to the agent, of an operator to both, of a
        node to the collector and back."""
        sent = read_token_file(str(self.folder / "operator.token"), "--token-file")[0]
        found = []
        ask = signed(sent, STACKS, StacksAsk(time.time(), new_nonce(), "j1"))
        answer = self.collector.client.post("/api/v1/stacks/ask", content=encode(ask))
        if answer.status_code != 200 or "token" in answer.text:  # asked too often: who asks was known
            found.append(f"operator to collector to agent: {answer.text}")
        if (status := asked(self.agent.url, sent)) != 200:
            found.append(f"operator to agent: {status}")
        now = time.time()
        measured = ConfirmAsk(Confirmation("nobody", "confirmed", now, "x", "so", ("n0",)), now, new_nonce())
        answer = self.collector.client.post("/api/v1/confirm", content=encode(signed(sent, CONFIRM, measured)))
        if answer.status_code != 409 or "no agent has reported as nobody" not in answer.text:
            found.append(f"operator to collector: {answer.text}")
        try:
            ask_for_ring(self.collector.url, "n0", read_token_file(str(self.folder / "node.token"), "token_file"))
        except NoAnswer as error:
            found.append(f"node to collector: {error}")
        return found


def asked(url: str, token: str) -> int:
    request = urllib.request.Request(f"{url}/api/v1/stacks?owner=0&job=j")
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize("order", [PARTS, PARTS[::-1]], ids=["agents-first", "agents-last"])
def test_a_token_is_replaced_without_a_refused_request(
    order: tuple[str, ...], start_agent: Any, start_collector: Any, start_rank: Any, tmp_path: Path
) -> None:
    """All questions are asked after each file that is written, and no daemon is started again."""
    start_rank(rank=0)
    asking = Asking(tmp_path, start_agent, start_collector)
    assert asking.refused() == []
    for tokens in STEPS:
        for part in order:
            asking.put(part, tokens)
            assert asking.refused() == [], f"{part} has {tokens!r}"
    for part in ("operator", "node"):
        asking.put(part, OLD)
    refused = "\n".join(asking.refused())
    assert refused.count("another token than the") == 3, refused  # an agent asks none of its own user
    assert "node to collector" in refused, "the old one is gone everywhere"
