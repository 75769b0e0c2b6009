"""The table of NCCL's variables, and findings about environments; published ones of providers are healthy."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import rows

from laggard.model import Severity
from laggard.nccl.variable_table import COMMON_MISTAKES, REPLACEMENTS, TABLE_VERSION, Category, Version
from laggard.nccl.variables import parse_conf, parse_level, parse_number, parse_version, variables
from laggard.probes.nccl.rules.variable_rules import VariableContext, closest_name, judge_environment
from laggard.probes.rdma.model.nccl_settings import parse_hca_selection

ROCE = VariableContext((2, 27, 5), True, ("mlx5_0", "mlx5_1"), frozenset({"Ethernet"}), True)
INFINIBAND = ROCE._replace(link_layers=frozenset({"InfiniBand"}))
BARE = VariableContext((2, 27, 5), False, (), frozenset(), False)
NOTHING_KNOWN = VariableContext()


def judged(facts: VariableContext, **environment: str) -> list[tuple[str, str, str]]:
    return [
        (f.code.removeprefix("NCCL_ENV_"), f.severity.value, f.device) for f in judge_environment(environment, facts)
    ]


def test_the_table_has_the_sizes_of_its_source() -> None:
    categories = Counter(variable.category.value for variable in variables().values())
    assert sum(categories.values()) == 311
    assert sum(variable.documented for variable in variables().values()) == 125
    assert set(categories) == {category.value for category in Category}


def test_the_table_is_consistent() -> None:
    for variable in variables().values():
        assert variable.name.startswith("NCCL_") and variable.note and not variable.note.endswith(".")
        for text in filter(None, (variable.since, variable.removed)):
            assert parse_version(text) >= (2, 0)
    assert not set(COMMON_MISTAKES) & set(variables())
    assert set(REPLACEMENTS) | set(REPLACEMENTS.values()) <= set(variables())


@rows("probes/setting_typos")
def test_a_typo_gets_a_suggestion(name: str, near: str) -> None:
    (found,) = judge_environment({name: "1"}, ROCE)
    assert (found.code, found.severity, found.evidence["nearest"]) == ("NCCL_ENV_UNKNOWN", Severity.WARNING, near)


@pytest.mark.parametrize(
    ("version", "severity"),
    [((2, 27, 5), "warning"), (TABLE_VERSION, "warning"), ((*TABLE_VERSION[:2], 99), "info"), ((), "info")],
)
def test_a_name_like_no_other_is_a_note_where_a_newer_nccl_may_know_it(version: Version, severity: str) -> None:
    (found,) = judge_environment({"NCCL_FROBNICATE": "1"}, ROCE._replace(version=version))
    assert (found.code, found.severity.value, found.evidence["nearest"]) == ("NCCL_ENV_UNKNOWN", severity, None)
    assert ("Remove" in found.fix.text) is (severity == "warning")


@pytest.mark.parametrize(
    ("version", "corrected"),
    [((2, 27, 5), {"NCCL_GIN_ENABLE": "NCCL_WIN_ENABLE"}), ((2, 30, 7), {})],  # one letter may always be a typo
)
def test_the_names_of_newer_variables_are_no_typos(version: Version, corrected: dict[str, str]) -> None:
    """What a table of an older release would have said of the variables that came since."""
    since = {name: parse_version(variable.since) for name, variable in variables().items()}
    table = [name for name in since if since[name] <= version]
    newer = [name for name in since if since[name] > version]
    assert len(newer) > 30
    assert {name: near for name in newer if (near := closest_name(name, table))} == corrected


@rows("probes/fast_paths_off")
def test_turning_a_fast_path_off_is_critical_where_the_hardware_has_it(name: str, value: str) -> None:
    assert judged(ROCE, **{name: value}) == [("HARMFUL", "critical", name)]
    assert judged(BARE, **{name: value}) == [("HARMFUL", "info", name)]
    assert judged(NOTHING_KNOWN, **{name: value}) == [("HARMFUL", "warning", name)]


@rows("probes/harmless_settings")
def test_harmless_settings_are_quiet(name: str, value: str) -> None:
    assert judged(ROCE, **{name: value}) == []


@rows("probes/harmful_settings")
def test_the_harm_of_a_setting(name: str, value: str, words: str) -> None:
    (found,) = judge_environment({name: value}, ROCE)
    assert found.code == "NCCL_ENV_HARMFUL" and words in found.summary


@rows("probes/inert_settings")
def test_a_setting_without_effect(where: str, version: Version | None, name: str, value: str, words: str) -> None:
    facts = {"roce": ROCE, "infiniband": INFINIBAND, "nothing_known": NOTHING_KNOWN}[where]
    facts = facts if version is None else facts._replace(version=version)
    (found,) = judge_environment({name: value}, facts)
    assert found.code == "NCCL_ENV_INERT" and words in found.summary


def test_limits_depend_on_the_version() -> None:
    assert judged(ROCE, NCCL_MAX_CTAS="48") == []
    assert judged(ROCE._replace(version=(2, 28, 3)), NCCL_NETDEVS_POLICY="MAX:1") == []
    assert judged(ROCE._replace(version=(2, 24, 3)), NCCL_MAX_CTAS="48") == [("HARMFUL", "warning", "NCCL_MAX_CTAS")]
    assert judged(NOTHING_KNOWN, NCCL_MAX_CTAS="48", NCCL_NET_MERGE_POLICY="ALL") == []


def test_a_rule_depends_on_other_variables() -> None:
    """Settings of sockets count when the transport is sockets; with a plugin, NCCL's own InfiniBand may be off."""
    assert judged(ROCE, NCCL_SOCKET_NTHREADS="8", NCCL_NET="Socket") == [("HARMFUL", "critical", "NCCL_NET")]
    assert judged(ROCE, NCCL_IB_SPLIT_DATA_ON_QPS="1", NCCL_IB_QPS_PER_CONNECTION="4") == []
    assert judged(ROCE, NCCL_IB_DISABLE="1", NCCL_NET="AWS Libfabric") == []
    assert judged(ROCE, NCCL_IB_DISABLE="1", NCCL_NET_PLUGIN="none") == [("HARMFUL", "critical", "NCCL_IB_DISABLE")]


@rows("probes/providers")
def test_published_provider_environments_are_quiet(environment: dict[str, str]) -> None:
    assert judged(ROCE, **environment) == []
    assert judged(NOTHING_KNOWN, **environment) == []


def test_variables_of_other_programs_are_ignored() -> None:
    assert judged(ROCE, PATH="/bin", OFI_NCCL_PROTOCOL="RDMA", TORCH_NCCL_BLOCKING_WAIT="1") == []


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", 4), ("-1", -1), ("0x10", 16), ("010", 8), ("4M", 4), (" 7 ", 7), ("true", 0), ("", 0), ("+2x", 2)],
)
def test_numbers_are_parsed_as_by_the_c_library(text: str, value: int) -> None:
    assert parse_number(text) == value


@given(st.text(max_size=30))
def test_any_text_is_a_number_and_perhaps_a_level(text: str) -> None:
    assert isinstance(parse_number(text), int)
    assert parse_level(text) is None or parse_level(text) == parse_level(parse_level(text) or "")


@given(
    st.dictionaries(
        st.from_regex(r"NCCL_[A-Z0-9_ ]{0,20}", fullmatch=True) | st.sampled_from(sorted(variables())),
        st.text(max_size=20),
        max_size=8,
    ),
    st.sampled_from([ROCE, INFINIBAND, BARE, NOTHING_KNOWN]),
)
def test_any_environment_can_be_judged(environment: dict[str, str], facts: VariableContext) -> None:
    for found in judge_environment(environment, facts):
        assert found.device in environment and found.summary and found.doc.endswith(f"{found.code}.md")


@given(st.lists(st.sampled_from(["mlx5_0", "mlx5_1", "mlx5_10"]), unique=True), st.text("mlx5_01^=,:", max_size=20))
def test_a_selection_of_devices_and_its_inverse_share_none(devices: list[str], text: str) -> None:
    text = text.lstrip("^")
    one, other = parse_hca_selection(text, ""), parse_hca_selection("^" + text, "")
    if one is None or other is None:  # an empty list, which selects nothing by itself
        assert one is other
        return
    chosen, others = one.chosen(tuple(devices)), other.chosen(tuple(devices))
    assert set(chosen) | set(others) == set(devices) and not set(chosen) & set(others)


def test_nccl_conf_is_parsed_as_by_nccl() -> None:
    text = "# NCCL_A=1\nNCCL_DEBUG=WARN\r\nNCCL_DEBUG=INFO\nNCCL_IB_HCA==mlx5_0\n#\n\n  \nNCCL_NET=AWS Libfabric\n"
    assert parse_conf(text) == ({"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "=mlx5_0", "NCCL_NET": "AWS Libfabric"}, ())


@rows("probes/no_settings")
def test_lines_that_only_look_like_settings_are_reported(line: str, word: str) -> None:
    ((number_of_line, reason),) = parse_conf("#\n" + line).ineffective
    assert number_of_line == 2 and word in reason


@given(st.text())
def test_any_settings_file_can_be_parsed(text: str) -> None:
    assert all(value is not None for value in parse_conf(text).settings.values())
