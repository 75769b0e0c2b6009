"""The settings of all parts: documented from their types, checked and shown without a start, refused in plain words."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from support.made_pages import expect_current

from laggard.agent.settings import AgentSettings
from laggard.cli import main
from laggard.collector.settings import CollectorSettings
from laggard.config import Settings, load
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
