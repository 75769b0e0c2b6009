"""The settings of all parts: documented from their types, checked and shown without a start, refused in plain words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.made_pages import expect_current

from laggard.agent.settings import AgentSettings
from laggard.cli import main
from laggard.collector.settings import CollectorSettings
from laggard.config import Settings, load, parse
from laggard.errors import UsageError
from laggard.probes.profiles import Profile


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
