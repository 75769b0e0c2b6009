"""Which of several failures of one text is told: what a process could not do by itself before the waits of others, the
lines before an end that gives no reason, and nothing of an earlier run that a text only quotes."""

import pytest
from support.diagnosed import TextFile, diagnose_text

from laggard.diagnose.command import diagnose

_NCCL = "n4:100:140 [1] NCCL "
_CHAIN = f"{_NCCL}INFO transport/net_ib.cc:790 -> 2\n{_NCCL}INFO init.cc:787 -> 2\n"
_REFUSED = f"{_NCCL}WARN Call to ibv_create_ah failed with error Operation not supported\n"
_GAVE_UP = "n4: Test NCCL failure common.cu:958 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '\n"
_HALF = "   time   algbw   busbw #wrong"
_TABLE = (
    f"#       size         count      type   redop    root{_HALF}{_HALF}\n"
    "   134217728      33554432     float     sum      -1  900.0  149.13  {0}  0  900.0  149.13  {0}  0\n"
    "# Out of bounds values : 0 OK\n"
)


def test_the_last_warning_before_calls_that_fail_is_their_reason() -> None:
    (found,) = diagnose_text(_REFUSED + _CHAIN + _GAVE_UP).findings
    assert "ibv_create_ah" in found.summary
    (found,) = diagnose_text(_REFUSED + _GAVE_UP).findings
    assert "unhandled system error" in found.summary


def test_without_clocks_an_address_without_a_route_comes_before_a_wait() -> None:
    waited = "RuntimeError: Socket Timeout\n"
    no_route = f"{_NCCL}WARN Net : Connect to 10.9.0.2<5000> failed : No route to host\n"
    (found,) = diagnose_text(f"Traceback (most recent call last):\n{waited}\n{no_route}").findings
    assert "No route to host" in found.summary


@pytest.mark.parametrize(
    ("between", "is_told"), [("", True), ("step 1 loss 2.1 lr 0.1\nstep 2 loss 2.0 lr 0.1\n", False)]
)
def test_an_end_without_a_reason_is_told_with_the_lines_before_it(between: str, is_told: bool) -> None:
    end = "srun: error: n7: task 3: Exited with exit code 14\n"
    (found,) = diagnose_text(f"open of license.dat failed: Permission denied\n{between}{end}").findings
    assert ("license.dat" in found.summary) is is_told
    assert "exit status 14" in found.summary


def test_what_is_quoted_is_past_where_a_run_that_ended_well_follows() -> None:
    quoted = f"> {_NCCL}WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129\n"
    assert not diagnose_text(f"On Monday:\n\n{quoted}\nToday:\n{_TABLE.format('279.00')}").findings
    assert diagnose_text(f"On Monday:\n\n{quoted}\n").findings


def test_a_command_that_no_reader_reads_forbids_that_all_is_well() -> None:
    known = "a@n1:~$ free -g\n              total        used        free      shared  buff/cache   available\n"
    known += "Mem:            503          41         300           2         162         459\n"
    strange = "a@n1:~$ fabrictool state\nport 1 D\nport 2 D\nport 3 D\n"
    assert diagnose_text(known).verdict.value == "ok"
    result = diagnose_text(known + strange)
    assert result.verdict.value == "unknown"
    assert any("`fabrictool state` is read by no reader" in file.unknown for file in result.files)


def test_a_process_that_waits_for_a_lock_is_named_where_another_waits_for_its_queue() -> None:
    parent = 'Process 10: python t.py\nThread 10 (idle): "MainThread"\n    select (selectors.py:415)\n'
    parent += "    get (multiprocessing/queues.py:107)\n    train (t.py:9)\n"
    child = 'Process 11: python t.py\nThread 11 (idle): "MainThread"\n    {} (libpthread.so)\n'
    child += "    Pool::start (libx.so)\n    after_fork (multiprocessing/util.py:171)\n"
    (found,) = diagnose_text(parent + "\n" + child.format("__lll_lock_wait")).findings
    assert "process 11" in found.device
    assert "Pool::start" in found.summary
    assert not diagnose_text(parent + "\n" + child.format("compute")).findings


def test_two_measurements_of_one_thing_are_compared() -> None:
    slow, fast = (TextFile(_TABLE.format(busbw), f"{busbw}.txt") for busbw in ("31.00", "279.00"))
    (found,) = diagnose([slow, fast]).findings
    assert (found.code, found.device) == ("RING_SLOW", "31.00.txt")
    assert not diagnose([fast, TextFile(_TABLE.format("260.00"), "other.txt")]).findings


def test_what_pairs_reach_with_p2p_is_compared_with_the_same_without_it() -> None:
    head = "   D\\D     0      1      2\n"
    with_p2p = "     0 1500.0  {0}  {0}\n     1  {0} 1500.0  {0}\n     2  {0}  {0} 1500.0\n"
    text = f"P2P=Disabled Bandwidth Matrix (GB/s)\n{head}{with_p2p.format('25.00')}"
    text += f"P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n{head}"
    assert [it.code for it in diagnose_text(text + with_p2p.format("3.00")).findings] == ["ACS_ENABLED"]
    assert not diagnose_text(text + with_p2p.format("50.00")).findings
