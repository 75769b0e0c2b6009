"""DeepSpeed without its own collectives of the CPU, which it would compile first, rank after rank."""

import deepspeed

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
