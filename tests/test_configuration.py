"""The settings of all parts: documented from their types, checked and shown without a start, refused in plain words."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml
from support.made_pages import expect_current

from laggard.cli import main
from laggard.collector.settings import CollectorSettings
from laggard.kit.config import load, parse
from laggard.kit.errors import UsageError
from laggard.probes.choose import list_active_probes
from laggard.probes.registry import PROBES


def test_the_page_of_all_keys_is_current() -> None:
    written = expect_current("config_docs", "configuration.md")
    for line in written.splitlines():
        if line.startswith("| `") and line.endswith("|  |"):
            pytest.fail(f"a key without a meaning; add a docstring to it: {line}")


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


def test_target_files_that_match_nothing_yet_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"target_files: ['{tmp_path}/*.json']\n")
    assert main(["collector", "--config", str(file), "--check-config"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert f"warning: target_files: no file is {tmp_path}/*.json now" in first and last.endswith(": no mistake found")


def test_no_number_of_any_threshold_is_without_a_range() -> None:
    for probe in (*PROBES, *list_active_probes()):
        for field in msgspec.structs.fields(type(probe.thresholds)):
            if field.type in (int, float):
                pytest.fail(f"{probe.name}.{field.name}: say with Ratio, NotNegative or Count what it can be")


def test_what_looks_like_an_alias_or_a_key_that_stands_twice_is_taken() -> None:
    assert parse("tenant_users: {'1': 1, '01': 1}\n", CollectorSettings, "it").tenant_users == {"1": 1, "01": 1}
    assert parse('allowed_hosts: ["*.example.org"]', CollectorSettings, "x").allowed_hosts == ("*.example.org",)


def test_a_file_of_settings_that_is_none_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "collector.yaml"
    path.write_text("".join(f"key{number}: 1\n" for number in range(200_000)))
    with pytest.raises(UsageError, match="it is no file of settings"):
        load(str(path), CollectorSettings)
