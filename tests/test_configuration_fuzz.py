"""Files of settings at random: each is taken, or refused with status 64 and one line that names the file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mutated import mutated

from laggard.kit.config import Settings
from laggard.kit.errors import UsageError
from laggard.kit.web_config import load_web_config
from laggard.probes.choose import choose_probes
from laggard.probes.profiles import Expectations, Profile, find_profile, with_expectations

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
