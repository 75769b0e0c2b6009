"""The plugin of node-problem-detector: bash alone, which asks the real agent; and servers that misbehave."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec
import pytest
from support.agents import AgentProcess
from support.paths import REPOSITORY
from support.ports import free_port

FOLDER = REPOSITORY / "deploy" / "kubernetes" / "node-problem-detector"
CONFIG = json.loads((FOLDER / "laggard.json").read_text())
RAN = 'laggard_probe_last_run_timestamp_seconds{probe="disks"} 1.7e9\n'


def check(address: tuple[str, int]) -> tuple[int, str]:
    """The exit status and what was said, with nothing in the environment, as the detector starts it."""
    words = [str(FOLDER / "laggard-check.sh"), address[0], str(address[1])]
    done = subprocess.run(words, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=300)
    assert not done.stderr and len(done.stdout) <= CONFIG["pluginConfig"]["max_output_length"], done
    return done.returncode, done.stdout.strip()


@pytest.fixture
def serve() -> Iterator[Callable[[bytes], tuple[str, int]]]:
    """Answers one request with these bytes, and nothing more."""
    with contextlib.ExitStack() as stack:

        def start(answer: bytes) -> tuple[str, int]:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def answer_one() -> None:
                connection, _ = listener.accept()
                with connection:
                    request = b""
                    while not request.endswith(b"\r\n\r\n"):
                        request += connection.recv(4096)
                    connection.sendall(answer)

            threading.Thread(target=answer_one, daemon=True).start()
            host, port = listener.getsockname()
            return host, port

        yield start


def metrics(body: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n\r\n{body}".encode()


def finding(code: str, severity: str) -> str:
    return f'laggard_finding{{code="{code}",device="gpu0",severity="{severity}"}} 1.0\n'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (RAN, (0, "no critical finding")),
        (RAN + finding("DISK_FULL", "warning"), (0, "no critical finding")),
        (RAN + finding("GPU_LOST", "critical") * 2 + finding("GPU_XID", "critical"), (1, "critical: GPU_LOST GPU_XID")),
        (RAN + finding("$(reboot)", "critical"), (0, "no critical finding")),
        ("", (2, "the agent's probes have not run yet")),
    ],
)
def test_critical_findings_are_a_problem_and_nothing_else_is(
    serve: Callable[[bytes], tuple[str, int]], body: str, said: tuple[int, str]
) -> None:
    assert check(serve(metrics(body))) == said


@pytest.mark.parametrize("answer", [b"", b"nonsense\n", metrics(RAN, "500 Oops")])
def test_what_is_no_answer_is_unknown(serve: Callable[[bytes], tuple[str, int]], answer: bytes) -> None:
    assert check(serve(answer))[0] == 2


def test_without_an_agent_it_is_unknown() -> None:
    address = ("127.0.0.1", free_port())
    assert check(address) == (2, f"no agent of laggard at 127.0.0.1:{address[1]}")


@pytest.mark.slow
def test_it_says_of_the_real_agent_what_its_metrics_say(idle_agent: AgentProcess) -> None:
    while idle_agent.request("/-/ready").status != 200:
        assert idle_agent.process.poll() is None
    critical = set(
        re.findall(r'laggard_finding\{code="(\w+)"[^}]*severity="critical"', idle_agent.request("/metrics").text)
    )
    status, text = check(idle_agent.address)
    assert (status, set(text.removeprefix("critical: ").split())) == (1, critical) if critical else (status == 0)


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """The detector itself passes over names that it does not know: a setting that is misspelt does nothing."""


class PluginConfig(Strict):
    """`pluginGlobalConfig` and, below, the other types that the detector reads a custom plugin's file into
    (node-problem-detector, pkg/custompluginmonitor/types/{config,types}.go after v1.37.0-alpha.1)."""

    invoke_interval: str
    timeout: str
    max_output_length: int
    concurrency: int
    enable_message_change_based_condition_update: bool
    skip_initial_status: bool


class Condition(Strict):
    type: str
    reason: str
    message: str


class Rule(Strict):
    type: Literal["temporary", "permanent"]
    reason: str
    path: str
    condition: str = ""
    args: tuple[str, ...] = ()
    timeout: str | None = None
    invoke_interval: str | None = None


class Config(Strict):
    plugin: Literal["custom"]
    pluginConfig: PluginConfig
    source: str
    conditions: tuple[Condition, ...]
    rules: tuple[Rule, ...]
    metricsReporting: bool = True


def seconds(duration: str) -> float:
    """Of a duration as Go writes it, in one unit."""
    number, unit = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", duration).groups()  # type: ignore[union-attr]
    return float(number) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[unit]


def test_the_detector_takes_the_configuration() -> None:
    """The detector ends, with all that it watches, over a file that it cannot read or that its `Validate` refuses."""
    config = msgspec.json.decode((FOLDER / "laggard.json").read_bytes(), type=Config)
    longest = seconds(config.pluginConfig.timeout)
    assert seconds(config.pluginConfig.invoke_interval) > longest > 0
    conditions = {it.type for it in config.conditions}
    for rule in config.rules:
        assert rule.timeout is None or 0 < seconds(rule.timeout) <= longest, "a rule's timeout is over the global one"
        assert rule.invoke_interval is None or seconds(rule.invoke_interval) > 0
        assert rule.type == "temporary" or rule.condition in conditions, "a permanent problem has no default condition"
    assert config.pluginConfig.skip_initial_status, "before the plugin's first answer the node would be called healthy"
    limit = re.search(r"^limit=(\d+)", (FOLDER / "laggard-check.sh").read_text(), re.MULTILINE)
    assert limit and int(limit[1]) < longest, "the detector kills the plugin before it can say why"


def test_the_detector_gets_the_plugin_that_is_shipped() -> None:
    (rule,) = CONFIG["rules"]
    assert rule["path"].rpartition("/")[2] == "laggard-check.sh" and rule["args"] == ["127.0.0.1", "19400"]
    assert [it["type"] for it in CONFIG["conditions"]] == [rule["condition"]] == ["LaggardProblem"]


def test_shellcheck_finds_nothing() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck: scripts/setup --system installs it on Debian")
    done = subprocess.run(["shellcheck", str(FOLDER / "laggard-check.sh")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
