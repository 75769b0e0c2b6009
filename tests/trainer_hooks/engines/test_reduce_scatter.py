"""The true reduce-scatter in real DeepSpeed jobs on gloo: it trains as DeepSpeed is shipped, bit by bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

JOB = """
import datetime, json, os, sys, time, torch, deepspeed
import torch.distributed as dist
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
import laggard.trainer_hooks
from laggard.trainer_hooks.engines import deepspeed_reduce_scatter
deepspeed_reduce_scatter._AGREEMENT_TIMEOUT = datetime.timedelta(seconds=5)
exchange = dist.all_to_all_single
def counted(*args, **kwargs):
    global exchanges
    exchanges += 1
    return exchange(*args, **kwargs)
dist.all_to_all_single = counted

def trained(asked, stage, bf16, accumulation, bucket, **zero):
    os.environ["LAGGARD_REDUCE_SCATTER"] = str(int(asked))
    torch.manual_seed(0)
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(37, 61), torch.nn.Tanh(), linear(61, 53), torch.nn.Tanh(), linear(53, 7))
    matrices, biases = ([each for each in model.parameters() if each.dim() == d] for d in (2, 1))
    groups = [{"params": matrices}, {"params": biases, "weight_decay": 0.0}]
    config = {
        "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": accumulation, "steps_per_print": 1000,
        "gradient_clipping": 1.0, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": bf16}, "zero_optimization": {"stage": stage, "reduce_bucket_size": bucket, **zero},
    }
    engine, optimizer, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(groups, lr=1e-2), config=config
    )
    laggard.trainer_hooks.attach(engine)
    global exchanges
    exchanges = 0
    torch.manual_seed(100 + dist.get_rank())
    seen = []
    for _ in range(4 * accumulation):
        loss = engine(torch.randn(3, 37).to(next(model.parameters()).dtype)).float().square().mean()
        seen.append(loss.detach())
        engine.backward(loss)
        engine.step()
    seen += [each.detach() for each in model.parameters()] + list(optimizer.single_partition_of_fp32_groups)
    for state in optimizer.optimizer.state.values():
        seen += [torch.as_tensor(state[name]) for name in sorted(state)]
    return seen, exchanges

told = []
for stage in (1, 2):
    for bf16 in (False, True):
        for accumulation, bucket in ((1, 1_000_000), (3, 3_000)):
            shipped, none = trained(False, stage, bf16, accumulation, bucket)
            own, exchanges = trained(True, stage, bf16, accumulation, bucket)
            equal = len(own) == len(shipped) and all(map(torch.equal, own, shipped))
            told.append([stage, bf16, accumulation, equal, none, exchanges])
refused = [
    trained(True, 2, False, 1, 1_000_000, reduce_scatter=False)[1],
    trained(True, 2, False, 1, 1_000_000, contiguous_gradients=False)[1],
    trained(dist.get_rank() == 0, 2, False, 1, 1_000_000)[1],
]
owners = [rank for rank in (1, 0, dist.get_world_size() - 1) for _ in range(2)] + list(range(dist.get_world_size()))
slices = deepspeed_reduce_scatter.slices_of([7 + place for place in range(len(owners))], owners, dist.get_world_size())
flat = torch.arange(slices.elements).float() * (dist.get_rank() + 1)  # whose sums no order rounds
native = deepspeed_reduce_scatter.scattered_natively(flat, slices, dist.group.WORLD)
dist.all_reduce(flat)
mine = torch.cat([flat.narrow(0, *part) for part in slices.of_rank[dist.get_rank()]])
with open(f"{sys.argv[1]}/{dist.get_rank()}.json", "w") as file:
    json.dump({"pairs": told, "refused": refused, "native": torch.equal(native, mine)}, file)
dist.barrier()
open(f"{sys.argv[1]}/{dist.get_rank()}.past", "w").close()
while not all(os.path.exists(f"{sys.argv[1]}/{rank}.past") for rank in range(dist.get_world_size())):
    time.sleep(0.01)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_training_is_equal_bit_by_bit(launch: Callable[..., Any], tmp_path: Path, ranks: int) -> None:
    """Losses, parameters, master weights and both moments of Adam, over several groups of parameters, slices that no
    rank has as many of, one bucket and many, with and without accumulation."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    launch(script, [str(tmp_path)], ranks=ranks, hooks=False)
    for rank in range(ranks):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(told["pairs"]) == 8
        for stage, bf16, accumulation, equal, without, exchanges in told["pairs"]:
            case = f"rank {rank}, stage {stage}, bf16 {bf16}, accumulation {accumulation}"
            assert equal, f"{case}: trained otherwise than as shipped"
            assert without == 0 and exchanges >= 4, f"{case}: {exchanges} reduce-scatters in 4 steps"
        assert told["native"], f"rank {rank}: padded slices, as NCCL gets them, have other sums"
        assert told["refused"] == [0, 0, 0], f"rank {rank}: replaced what it does not know, or where not all ranks ask"
