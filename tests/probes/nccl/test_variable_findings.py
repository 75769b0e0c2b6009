"""The table of NCCL's variables, and findings about environments; published ones of providers are healthy."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def summary_of(facts: VariableContext, **environment: str) -> str:
    (found,) = judge_environment(environment, facts)
    return found.summary


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


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("NCCL_IB_GIDINDEX", "NCCL_IB_GID_INDEX"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCCL_BUFFER_SIZE", "NCCL_BUFFSIZE"),
        ("NCCL_DEBUG ", "NCCL_DEBUG"),
        ("NCCL_CHECK_DISABLE", "NCCL_CHECKS_DISABLE"),
        ("NCCL_MIN_CHANNELS", "NCCL_MIN_CTAS"),
    ],
)
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_NET", "Socket"),
        ("NCCL_NET", "socket"),
        ("NCCL_NET_GDR_LEVEL", "LOC"),
        ("NCCL_NET_GDR_LEVEL", "0"),
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_P2P_LEVEL", "LOC"),
    ],
)
def test_turning_a_fast_path_off_is_critical_where_the_hardware_has_it(name: str, value: str) -> None:
    assert judged(ROCE, **{name: value}) == [("HARMFUL", "critical", name)]
    assert judged(BARE, **{name: value}) == [("HARMFUL", "info", name)]
    assert judged(NOTHING_KNOWN, **{name: value}) == [("HARMFUL", "warning", name)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_DISABLE", "0"),
        ("NCCL_P2P_DISABLE", "0"),
        ("NCCL_P2P_DISABLE", "2"),  # NCCL compares with 1
        ("NCCL_P2P_LEVEL", "NVL"),
        ("NCCL_NET_GDR_LEVEL", "PHB"),
        ("NCCL_NET_GDR_LEVEL", "3"),
        ("NCCL_NET", "IB"),
        ("NCCL_NET", ""),
        ("NCCL_IB_HCA", "mlx5"),
        ("NCCL_IB_HCA", "=mlx5_1:1"),
        ("NCCL_IB_HCA", "^mlx5_1"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG", "ATTN"),  # since 2.32
        ("NCCL_ALGO", "ring,tree"),
        ("NCCL_ALGO", "ring;allreduce:tree,nvls;broadcast:^pat"),
        ("NCCL_PROTO", "^LL128"),
        ("NCCL_PROTO", "Simple"),
        ("NCCL_IB_TIMEOUT", "22"),
        ("NCCL_BUFFSIZE", "0x400000"),
        ("NCCL_VERSION", "2.27.5-1"),
        ("NCCL_ASYNC_ERROR_HANDLING", "1"),
    ],
)
def test_harmless_settings_are_quiet(name: str, value: str) -> None:
    assert judged(ROCE, **{name: value}) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("NCCL_BUFFSIZE", "4M", "as the number 4"),
        ("NCCL_IB_RETRY_CNT", "10", "0 to 7"),
        ("NCCL_IB_QPS_PER_CONNECTION", "0", "1 to 128"),
        ("NCCL_MAX_CTAS", "65", "1 to 64"),
        ("NCCL_NTHREADS", "1024", "64 to 512"),
        ("NCCL_ALGO", "rign", "'rign'"),
        ("NCCL_ALGO", "allreduc:ring", "'allreduc'"),
        ("NCCL_DEBUG", "TRACE", "logged"),
        ("NCCL_CHECK_POINTERS", "1", "checked"),
        ("NCCL_SHM_DISABLE", "1", "network"),
        ("NCCL_PROTO", "LL,LL128", "corrupted"),
        ("NCCL_IB_HCA", "eth0", "mlx5_0, mlx5_1"),
        ("NCCL_IB_HCA", "^mlx5", "none"),
        ("NCCL_CHUNK_SIZE", "1048576", "wrong results"),
    ],
)
def test_the_harm_of_a_setting(name: str, value: str, words: str) -> None:
    (found,) = judge_environment({name: value}, ROCE)
    assert found.code == "NCCL_ENV_HARMFUL" and words in found.summary


@pytest.mark.parametrize(
    ("facts", "name", "value", "words"),
    [
        (ROCE, "NCCL_NET_GDR_LEVEL", "phb", "capitals"),
        (ROCE, "NCCL_P2P_DISABLE", "true", "as the number 0"),
        (ROCE, "NCCL_DEBUG", "verbose", "WARN"),
        (ROCE, "NCCL_SOCKET_NTHREADS", "8", "sockets only"),
        (INFINIBAND, "NCCL_IB_GID_INDEX", "3", "RoCE only"),
        (ROCE, "NCCL_IB_SPLIT_DATA_ON_QPS", "1", "QPS_PER_CONNECTION"),
        (ROCE, "NCCL_TREE_THRESHOLD", "0", "use NCCL_ALGO"),
        (NOTHING_KNOWN, "NCCL_IB_CUDA_SUPPORT", "1", "use NCCL_NET_GDR_LEVEL"),
        (ROCE, "NCCL_NET_MERGE_POLICY", "ALL", "since NCCL 2.30.5 only"),
        (ROCE._replace(version=(2, 21, 5)), "NCCL_ALGO", "allreduce:tree", "since 2.24"),
        (ROCE._replace(version=(2, 21, 5)), "NCCL_ALGO", "rign", "'rign'"),
        (ROCE._replace(version=(2, 31, 0)), "NCCL_SHM_USE_CUDA_MEMCPY", "1", "since NCCL 2.30.7"),
    ],
)
def test_a_setting_without_effect(facts: VariableContext, name: str, value: str, words: str) -> None:
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


PROVIDERS = {
    "Azure ND H100 v5": dict(
        NCCL_IB_PCI_RELAXED_ORDERING="1",
        NCCL_TOPO_FILE="/opt/microsoft/ndv5-topo.xml",
        NCCL_SOCKET_IFNAME="eth0",
        NCCL_IGNORE_CPU_AFFINITY="1",
    ),
    "OCI H100": dict(
        NCCL_CUMEM_ENABLE="0",
        NCCL_IB_SPLIT_DATA_ON_QPS="0",
        NCCL_IB_QPS_PER_CONNECTION="1",
        NCCL_IB_GID_INDEX="3",
        NCCL_IB_TC="41",
        NCCL_IB_SL="0",
        NCCL_IB_TIMEOUT="22",
        NCCL_IB_HCA="=mlx5_0,mlx5_1",
    ),
    "AWS P5": dict(
        NCCL_BUFFSIZE="8388608",
        NCCL_P2P_NET_CHUNKSIZE="524288",
        NCCL_NVLSTREE_MAX_CHUNKSIZE="524288",
        NCCL_NVLS_CHUNKSIZE="524288",
        NCCL_NET_FORCE_FLUSH="0",
        NCCL_NET="AWS Libfabric",
    ),
    "GCP A3 Mega": dict(
        NCCL_FASTRAK_IFNAME="eth1,eth2",
        NCCL_FASTRAK_NUM_FLOWS="2",
        NCCL_NET_GDR_LEVEL="PIX",
        NCCL_PROTO="Simple,LL128",
        NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE="/var/lib/tcpxo/lib64/a3plus_guest_config.textproto",
        NCCL_TUNER_PLUGIN="libnccl-tuner.so",
        NCCL_TUNER_CONFIG_PATH="/var/lib/tcpxo/lib64/a3plus_tuner_config.textproto",
        NCCL_USE_SNAP="1",
        NCCL_MIN_NCHANNELS="4",
    ),
    "GCP A3 Ultra": dict(
        NCCL_NET="gIB", NCCL_IB_TC="52", NCCL_IB_FIFO_TC="84", NCCL_IB_QPS_PER_CONNECTION="4", NCCL_CROSS_NIC="0"
    ),
    "CoreWeave with SHARP": dict(
        NCCL_IB_HCA="mlx5", NCCL_COLLNET_ENABLE="1", NCCL_SHARP_GROUP_SIZE_THRESH="2", NCCL_SOCKET_IFNAME="eth0"
    ),
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_published_provider_environments_are_quiet(provider: str) -> None:
    assert judged(ROCE, **PROVIDERS[provider]) == []
    assert judged(NOTHING_KNOWN, **PROVIDERS[provider]) == []


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


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("NCCL_DEBUG = INFO", "blanks before"),
        (" NCCL_DEBUG=INFO", "blanks before"),
        ("export NCCL_DEBUG=INFO", "export"),
        ('NCCL_IB_HCA="mlx5_0"', "quotes"),
        ("NCCL_DEBUG=INFO ", "blanks are taken for a part of the value"),
        ("NCCL_DEBUG INFO", "no `=`"),
    ],
)
def test_lines_that_only_look_like_settings_are_reported(line: str, word: str) -> None:
    ((number_of_line, reason),) = parse_conf("#\n" + line).ineffective
    assert number_of_line == 2 and word in reason


@given(st.text())
def test_any_settings_file_can_be_parsed(text: str) -> None:
    assert all(value is not None for value in parse_conf(text).settings.values())
