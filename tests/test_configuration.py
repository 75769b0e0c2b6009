"""The settings of all parts: documented from their types, checked and shown without a start, refused in plain words."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.made_pages import expect_current
from support.mutated import mutated
from support.rows import rows

from laggard.cli import main
from laggard.collector.settings import CollectorSettings
from laggard.kit.config import Settings, load, parse
from laggard.kit.errors import UsageError
from laggard.kit.web_config import load_web_config
from laggard.probes.active_registry import ACTIVE_PROBES
from laggard.probes.choose import choose_probes
from laggard.probes.profiles import Expectations, Profile, find_profile, with_expectations
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


@rows("right_settings")
def test_what_is_right_is_no_mistake(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"{text}\n")
    assert main(["collector", "--config", str(file), "--check-config"]) == 0
    assert capsys.readouterr().out == f"{file}: no mistake found\n"


@rows("unwise_settings")
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
    for probe in (*PROBES, *ACTIVE_PROBES):
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


PROFILE = Profile(thresholds={"gpu_temperature": {}}, skip=("gpu_ecc",))

WEB = {
    "tls_server_config": {
        "cert_file": "a", "key_file": "b", "client_ca_file": "c", "client_auth_type": "RequireAndVerifyClientCert",
        "client_allowed_sans": ["a"], "min_version": "TLS12", "max_version": "TLS13"
    }
}  # fmt: skip

SIGNS = (
    "[", "]", "{", "}", ":", ": ", ",", "- ", "&a ", "*a", "!", "!!", "|", ">", "'", '"', "%", "@", "#", "? ", "\n",
    "  ", "\t", "<<: ", "~", "!!int x", "!!float ", "!!binary x", "!!python/object:os.system", "!!timestamp x",
    "2001-13-45", "1e999", ".nan", "1:99:99", "0o9", '"\\0"', '"\\ud800"', "a", "targets", "listen_address", "=", "---",
    "...", "\ufeff", "\x85", "\x00"
)  # fmt: skip

values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)

text = st.one_of(
    st.lists(st.sampled_from(SIGNS), max_size=12).map("".join), st.text(max_size=60), values.map(json.dumps)
)

anything = st.one_of(st.binary(max_size=60), text.map(lambda it: it.encode("utf-8", "surrogatepass")))
few = settings(max_examples=20, deadline=None, database=None, derandomize=True)


def nearly_right(valid: Settings | dict[str, object]) -> st.SearchStrategy[bytes]:
    return mutated(msgspec.to_builtins(valid)).map(lambda tree: json.dumps(tree).encode())


def of(valid: Settings | dict[str, object]) -> st.SearchStrategy[bytes]:
    return st.one_of(anything, nearly_right(valid))


def expect_one_line(status: int, said: str) -> None:
    assert status in (0, 64), (status, said)
    assert said.count("\n") == 1 and said.endswith("\n") and "Traceback" not in said, said
    said.encode()  # else printing it would end in a traceback


@pytest.mark.parametrize(
    ("valid", "take"),
    [
        (PROFILE, lambda path: choose_probes(find_profile(path), (), (), f"profile {path}")),
        (Expectations(thresholds={"gpu_temperature": {}}), lambda path: with_expectations(PROFILE, path)),
        (WEB, load_web_config),
    ],
    ids=["profile", "expectations", "web"],
)
def test_another_file_is_taken_or_refused_in_one_line(
    valid: Settings | dict[str, object], take: Callable[[str], object], tmp_path: Path
) -> None:
    path = tmp_path / "settings.yaml"

    @few
    @given(of(valid))
    def check(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.suppress(UsageError):
            try:
                take(str(path))
            except UsageError as error:
                expect_one_line(64, f"{error}\n")
                raise

    check()
