"""Files as NCCL's profiler plugin Inspector writes them, which needs GPUs: by the format strings of NCCL 2.30.7,
plugins/profiler/inspector/json.cc (no white space, a float as %lf), inspector_json.cc (the order of the keys) and
inspector_prom.cc (labels and metrics)."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def line(
    communicator: str,
    rank: int,
    ranks: int,
    number: int,
    microseconds: int,
    operation: str = "AllReduce",
    clock: str = "kernel_gpu",
    host: str | None = None,
    pid: int | None = None,
) -> str:
    """A line of a rank's log. Two ranks are on a host, each in a process of its own."""
    header = {"id": communicator, "comm_name": "unknown", "rank": rank, "n_ranks": ranks, "nnodes": max(1, ranks // 2)}
    metadata = {
        "inspector_output_format_version": "v4.0",
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": 1748030377748202 + number,
        "hostname": host or f"gpu{rank // 2:02d}",
        "pid": pid or 4100 + rank,
    }
    perf = {
        "coll": operation,
        "coll_sn": number,
        "coll_msg_size_bytes": 67108864,
        "coll_exec_time_us": microseconds,
        "coll_timing_source": clock,
        "coll_algobw_gbs": 277.210914,
        "coll_busbw_gbs": 485.119099,
    }
    return json.dumps({"header": header, "metadata": metadata, "coll_perf": perf}, separators=(",", ":")) + "\n"


def send_line(communicator: str, rank: int, ranks: int, number: int) -> str:
    """A line of a send, which has another form."""
    whole = json.loads(line(communicator, rank, ranks, number, 100))
    del whole["coll_perf"]
    perf = {"p2p": "Send", "p2p_sn": number, "p2p_peer": 1, "p2p_exec_time_us": 90, "p2p_timing_source": "kernel_gpu"}
    return json.dumps({**whole, "p2p_perf": perf}, separators=(",", ":")) + "\n"


def job(times: Sequence[Sequence[int]], communicator: str = "0x7f8c496ae9f661") -> dict[int, str]:
    """Each rank's log: `times` has a row for each collective, with each rank's microseconds."""
    ranks = len(times[0])
    return {
        rank: "".join(line(communicator, rank, ranks, number, row[rank]) for number, row in enumerate(times))
        for rank in range(ranks)
    }


def write(folder: Path, logs: Mapping[int, str]) -> list[Path]:
    """The logs under the names that Inspector gives them."""
    folder.mkdir(exist_ok=True)
    paths = []
    for rank, text in logs.items():
        paths.append(folder / f"gpu{rank // 2:02d}-pid{4100 + rank}.log")
        paths[-1].write_text(text)
    return paths


def metrics(gpus: Iterable[int]) -> str:
    label = (
        'version="v5.1",slurm_job_id="unknown",node="gpu00",gpu="GPU{}",comm_name="DP Group 0",n_nodes="1",nranks="4",'
        'collective="AllReduce",message_size="4-5GB",algo_proto="Ring_ll"'
    )
    return "".join(
        f"nccl_bus_bandwidth_gbs{{{label.format(gpu)}}} 678.263\n"
        f"nccl_collective_exec_time_microseconds{{{label.format(gpu)}}} 9498.47\n"
        for gpu in gpus
    )
