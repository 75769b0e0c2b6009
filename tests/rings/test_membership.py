"""Which node of which ring a process is, and at which addresses the others reach it."""

import pytest
from support.rows import rows

from laggard.kit.address import expand_hosts, first_host
from laggard.kit.errors import UsageError
from laggard.rings.authentication import Strangers
from laggard.rings.link import Addresses
from laggard.rings.membership import from_environment, from_flags, from_prolog
from laggard.rings.messages import MAX_PART_BYTES, Connected, Put, Value, Want

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu-01", "MASTER_PORT": "29500"}

SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "gpu-[07-09,12]",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
}


def test_flags_name_the_place() -> None:
    place = from_flags("10.0.0.1:29500", 4, 3)
    assert (place.number, place.nodes, place.host, place.port, place.chosen) == (3, 4, "10.0.0.1", 29500, True)
    assert from_flags("[fd00::1]:29500", 1, 0).host == "fd00::1"


def test_a_rank_of_torchrun_meets_the_others_by_its_store() -> None:
    place = from_environment({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"})
    assert place is not None
    assert (place.number, place.nodes, place.ranks, place.device_index) == (5, 16, 1, 1)
    assert place.store == ("gpu-01", 29500)
    assert place.port == 0


def test_without_torchruns_store_its_port_is_free() -> None:
    place = from_environment(TORCHRUN)
    assert place is not None
    assert (place.store, place.host, place.port) == (None, "gpu-01", 29500)


def test_a_task_on_each_node_has_all_of_its_gpus() -> None:
    place = from_environment(SLURM)
    assert place is not None
    assert (place.number, place.nodes, place.host, place.ranks) == (3, 4, "gpu-07", None)
    assert 20000 <= place.port < 30000


def test_steps_of_one_job_have_ports_of_their_own() -> None:
    one, other = from_environment(SLURM), from_environment({**SLURM, "SLURM_STEP_ID": "3"})
    assert one is not None and other is not None and one.port != other.port


def test_a_task_for_each_gpu_has_one() -> None:
    place = from_environment({**SLURM, "SLURM_NTASKS": "32", "SLURM_PROCID": "9", "SLURM_LOCALID": "1"})
    assert place is not None
    assert (place.number, place.nodes, place.ranks, place.device_index) == (9, 32, 1, 1)


def test_what_no_launcher_started_is_alone() -> None:
    assert from_environment({"SLURM_JOB_ID": "1", "MASTER_ADDR": "x"}) is None


@pytest.mark.parametrize("change", [{"RANK": "x"}, {"RANK": "16"}, {"MASTER_PORT": "0"}, {"WORLD_SIZE": "-1"}])
def test_an_environment_that_makes_no_sense_is_told(change: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        from_environment({**TORCHRUN, **change})


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("n1", "n1"), ("n[1-4,7]", "n1"), ("a-[03,07]-x,b", "a-03-x"), ("n1,n2", "n1"), ("r1.dc,x", "r1.dc")],
)
def test_the_first_host_of_slurms_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


@rows("rings/hosts")
def test_all_hosts_of_slurms_list(nodes: str, hosts: tuple[str, ...]) -> None:
    assert tuple(expand_hosts(nodes)) == hosts


PROLOG = {
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
    "SLURM_NODELIST": "gpu-[07-09,12]",
    "SLURMD_NODENAME": "gpu-09",
    "SLURM_JOB_ID": "4711",
}


def test_a_prolog_knows_its_place_among_the_jobs_nodes() -> None:
    place = from_prolog(PROLOG)
    assert place is not None
    assert (place.number, place.nodes, place.host, place.own_name) == (2, 4, "gpu-07", "gpu-09")
    assert not place.chosen and 20000 <= place.port < 30000
    other = from_prolog({**PROLOG, "SLURM_JOB_ID": "4712"})
    assert other is not None and other.port != place.port
    newer = {name: value for name, value in PROLOG.items() if name != "SLURM_NODELIST"}
    assert from_prolog({**newer, "SLURM_JOB_NODELIST": "gpu-[07-09,12]"}) == place


def test_a_node_that_is_not_the_jobs_is_told_and_no_prolog_has_no_place() -> None:
    with pytest.raises(UsageError, match="none of the job's nodes"):
        from_prolog({**PROLOG, "SLURMD_NODENAME": "gpu-10"})
    assert from_prolog({**PROLOG, "SLURM_SCRIPT_CONTEXT": "epilog_slurmd"}) is None
    assert from_prolog({}) is None


def test_slurm_tells_the_names_of_nodes_that_have_a_task_each() -> None:
    place = from_environment(SLURM)
    assert place is not None
    assert (place.own_name, place.names[1]) == ("gpu-12", "gpu-08")
    each_gpu = from_environment({**SLURM, "SLURM_NTASKS": "32"})
    assert each_gpu is not None and each_gpu.names == () and each_gpu.own_name == ""


def test_who_waits_is_told_and_the_first_word_counts() -> None:
    held = Addresses()
    assert held.want(1, Want("a", 0)) is None and held.want(2, Want("a", 0)) is None
    told = held.put(Put("a", 0, 1, b"right"))
    assert told is not None and told[0] == Value("a", 0, 1, b"right") and set(told[1]) == {1, 2}
    assert held.put(Put("a", 0, 1, b"wrong")) is None
    assert held.want(1, Want("a", 0)) == Value("a", 0, 1, b"right")


def test_a_rank_waits_for_one_value_at_a_time() -> None:
    held = Addresses()
    held.want(1, Want("a", 0))
    held.want(1, Want("b", 0))
    first, second = held.put(Put("a", 0, 1, b"")), held.put(Put("b", 0, 1, b""))
    assert first is not None and not first[1]
    assert second is not None and set(second[1]) == {1}


@pytest.mark.parametrize(
    "told",
    [
        Put("k" * 201, 0, 1, b""),
        Put("a", 1, 1, b""),
        Put("a", -1, 1, b""),
        Put("a", 0, 1 << 20, b""),
        Put("a", 0, 1, b"x" * (MAX_PART_BYTES + 1)),
    ],
)
def test_what_is_out_of_bounds_is_not_held(told: Put) -> None:
    assert Addresses().put(told) is None


def test_a_stranger_is_an_end_that_no_rank_has() -> None:
    seen = Strangers()
    seen.note(0, Connected(("10.0.0.1:5", "10.0.0.1:40"), ()))
    seen.note(1, Connected(("10.0.0.2:6",), ("10.0.0.1:40", "10.0.0.9:7")))
    assert seen.found((0,)) == ()
    assert seen.found((0, 1)) == ("10.0.0.9:7",)
    errors = ["[x/pair.cc:547] Connection closed by peer [10.0.0.8]:9", "Read error [10.0.0.1]:40: reset"]
    assert seen.found((0,), errors) == ("10.0.0.8:9",)
