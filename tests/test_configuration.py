"""The settings of all parts: documented from their types, checked and shown without a start, refused in plain words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml
from support.made_pages import expect_current

from laggard.agent.settings import AgentSettings
from laggard.cli import main
from laggard.collector.settings import CollectorSettings
from laggard.kit.config import Settings, load, parse
from laggard.kit.errors import UsageError
from laggard.probes.choose import list_active_probes
from laggard.probes.profiles import Profile
from laggard.probes.registry import PROBES


def test_the_page_of_all_keys_is_current() -> None:
    written = expect_current("config_docs", "configuration.md")
    for line in written.splitlines():
        if line.startswith("| `") and line.endswith("|  |"):
            pytest.fail(f"a key without a meaning; add a docstring to it: {line}")


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (
            AgentSettings,
            "listen: :1",
            "unknown key `listen`: did you mean listen_address? valid keys: listen_",
        ),
        (AgentSettings, "web.listen-address: :1", "did you mean listen_address?"),
        (CollectorSettings, "target: [n1]", "did you mean targets? valid keys: targets, target_names, "),
        (CollectorSettings, "zzz: 1", "unknown key `zzz`; valid keys: targets, "),
        (CollectorSettings, "[a, b]", "expected keys with values (`key: value`), got a list (`[a, b]`)"),
        (CollectorSettings, "interval_seconds: soon", "expected a number, got text - at `interval_seconds`"),
        (CollectorSettings, "targets: n1", "expected a list (`[a, b]`), got text - at `targets`"),
        (Profile, "warnings_fail: 1", "expected true or false, got a whole number - at `warnings_fail`"),
    ],
)
def test_mistakes_are_told_in_the_words_of_the_file(
    kind: type[Settings], text: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        load(file, kind)
    assert str(raised.value).startswith(f"{file}: ") and words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("command", ["agent", "collector"])
def test_settings_are_checked_and_shown_without_a_start(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("listen_address: 127.0.0.1:7\n")
    assert main([command, "--config", str(file), "--check-config"]) == 0
    assert capsys.readouterr().out == f"{file}: no mistake found\n"
    assert main([command, "--config", str(file), "--dump-config", "--web.listen-address", ":8"]) == 0
    shown = capsys.readouterr().out
    assert yaml.safe_load(shown)["listen_address"] == ":8"
    file.write_text(shown)
    assert main([command, "--config", str(file), "--dump-config"]) == 0
    assert capsys.readouterr().out == shown
    for wrong in ("listen_address: nowhere\n", "listen: :1\n"):
        file.write_text(wrong)
        assert main([command, "--config", str(file), "--check-config"]) == 64


@pytest.mark.parametrize(
    ("command", "text", "words"),
    [
        ("collector", "prometheus: prometheus:9090", "prometheus is 'prometheus:9090': write http://HOST:PORT"),
        ("collector", "listen_address: '::1:19401'", "write an IPv6 address in brackets, [::1]:19401"),
        ("agent", "listen_address: 'fd00::1:19400'", "write an IPv6 address in brackets, [::1]:19400"),
        ("collector", "targets: ['fd00::1']", "an IPv6 address in brackets: [fd00::1]:19400"),
        ("collector", "targets: [n1, n2, n1]", "targets has n1 twice: list each agent once"),
        ("collector", "targets: [n1, 'http://n1:19400']", "targets has http://n1:19400 twice, as n1"),
        ("collector", "timeout_seconds: 60", "timeout_seconds is 60, longer than interval_seconds, 5"),
        ("collector", "incidents_database: /nowhere/x.sqlite", "there is no folder /nowhere: make it"),
        ("collector", "incidents_database: mysql://db/x", "mysql://db/x: give the path of a file, or postgresql://"),
        ("collector", "prometheus: http://p:9090/graph", "prometheus is http://p:9090/graph, a page for people"),
        ("collector", "allowed_hosts: ['https://a.org']", "expected a host's name alone, such as laggard.example.org"),
        ("collector", "trusted_proxies: [10.0.0.1/8]", "trusted_proxies: '10.0.0.1/8' is no address, no network such"),
        ("collector", "max_drain_ratio: 0,5", "expected a number, got text - at `max_drain_ratio`"),
        ("collector", "node: a\ninterval_seconds: 5\nnode: b", "has the key `node` twice, in lines 1 and 3: leave one"),
        (
            "agent",
            "gate_socket: /tmp/gate.sock",
            "gate_socket is /tmp/gate.sock, where no prolog would ask: /tmp is no",
        ),
        ("collector", "confirm_token_file: /nowhere/token", "confirm_token_file /nowhere/token cannot be read"),
        ("collector", "ring_token_file: /nowhere/token", "ring_token_file /nowhere/token cannot be read"),
        ("collector", "prometheus: 'http://p'\nprometheus_basic_auth_file: /nowhere/x", "/nowhere/x"),
        ("agent", "node: n 1", "node is 'n 1': a name has no blanks"),
        ("agent", "node: '../n1'", "a name has no blanks, slashes"),
        ("kubernetes controller", "ca_file: /nowhere/ca.crt", "cannot read ca_file /nowhere/ca.crt: No such file"),
    ],
)
def test_a_check_finds_what_a_start_would_refuse_or_nobody_means(
    command: str, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"{text}\n")
    assert main([*command.split(), "--config", str(file), "--check-config"]) == 64
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1, said


@pytest.mark.parametrize(
    "text",
    [
        "targets: ['[fd00::1]:19400', n2]",
        "listen_address: '[::1]:19401'",
        "timeout_seconds: 60\ninterval_seconds: 60",
        "prometheus: http://mimir.example.org/prometheus",
        "allowed_hosts: ['*', '*.example.org', laggard_1.example.org, '[fd00::1]']",
        "",
    ],
)
def test_what_is_right_is_no_mistake(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"{text}\n")
    assert main(["collector", "--config", str(file), "--check-config"]) == 0
    assert capsys.readouterr().out == f"{file}: no mistake found\n"


@pytest.mark.parametrize(
    ("command", "text", "words"),
    [
        ("agent", "rank_dir: /nowhere/ranks", "rank_dir: there is no /nowhere/ranks, so no rank is seen"),
        ("agent", "probe_interval_seconds: 86400", "is 86400: prologs take no report older than 90 s"),
        ("collector", "target_slurm: [gpu]\nsinfo: /nowhere/sinfo", "sinfo: there is no program /nowhere/sinfo"),
        ("collector", "max_drain_ratio: 1", "max_drain_ratio is 1: a fault of the checks may drain most nodes at once"),
    ],
)
def test_what_works_and_is_unwise_is_a_warning(
    command: str, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"{text}\n")
    assert main([command, "--config", str(file), "--check-config"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{file}: warning: ") and words in first and last == f"{file}: no mistake found"


def test_a_key_that_stands_twice_further_in_is_refused() -> None:
    with pytest.raises(UsageError) as raised:
        parse("tenant_users:\n  bob: 1\n  'bob': 2\n", CollectorSettings, "it")
    assert str(raised.value) == "it has the key `bob` twice, in lines 2 and 3: leave one out"
    assert parse("tenant_users: {'1': 1, '01': 1}\n", CollectorSettings, "it").tenant_users == {"1": 1, "01": 1}


def test_target_files_that_match_nothing_yet_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"target_files: ['{tmp_path}/*.json']\n")
    assert main(["collector", "--config", str(file), "--check-config"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert f"warning: target_files: no file is {tmp_path}/*.json now" in first and last.endswith(": no mistake found")


@pytest.mark.parametrize(
    ("thresholds", "words"),
    [
        ("disks: {critical_used_ratio: 99}", "<= 1"),
        ("disks: {critical_used_ratio: .nan}", "thresholds.disks: "),
        ("disks: {critical_used_ratio: 0.90}", "warning_used_ratio is above critical_used_ratio"),
        ("gpu_throttle: {warning_ratio: 0.5}", "warning_ratio is above critical_ratio"),
        ("gpu_xid: {look_back_seconds: -1}", ">= 0"),
        ("disks: {enough_bytes: -1}", ">= 0"),
    ],
)
def test_thresholds_have_a_range(
    thresholds: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "expect.yaml"
    file.write_text(f"thresholds: {{{thresholds}}}\n")
    assert main(["healthcheck", "--expect", str(file), "--host-root", str(tmp_path)]) == 64
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1, said


def test_no_number_of_any_threshold_is_without_a_range() -> None:
    for probe in (*PROBES, *list_active_probes()):
        for field in msgspec.structs.fields(type(probe.thresholds)):
            if field.type in (int, float):
                pytest.fail(f"{probe.name}.{field.name}: say with Ratio, NotNegative or Count what it can be")


def test_aliases_are_refused_before_they_become_billions_of_values(tmp_path: Path) -> None:
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{depth}: &a{depth} [{', '.join([f'*a{depth - 1}'] * 9)}]" for depth in range(1, 12)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines))
    for words in (["collector", "--check-config", "--config"], ["healthcheck", "--profile"], ["agent", "--config"]):
        command = [sys.executable, "-m", "laggard", *words, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 64, done
        assert f"{path} line 2 has an alias (*a0): write the value itself" in done.stderr


def test_a_star_that_is_no_alias_is_taken() -> None:
    assert parse('allowed_hosts: ["*.example.org"]', CollectorSettings, "x").allowed_hosts == ("*.example.org",)


def test_a_file_of_settings_that_is_none_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "collector.yaml"
    path.write_text("".join(f"key{number}: 1\n" for number in range(200_000)))
    with pytest.raises(UsageError, match="it is no file of settings"):
        load(str(path), CollectorSettings)
