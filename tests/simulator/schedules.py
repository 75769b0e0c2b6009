"""Writes what each rank does in one step: data parallel, ZeRO, tensor, expert and pipeline parallelism together."""

from collections.abc import Callable

from simulator.layout import Group, Layout
from simulator.programme import BACKWARD, FORWARD, INPUT, OPTIMIZER, OTHER, Builder, Handle, Programme

# Seconds and bytes of a rank's step, of the order of a 7B model's on H100.
INPUT_SECONDS = 0.012
FORWARD_SECONDS = 0.080  # a step's forward without a pipeline; the backward pass takes twice as long
OPTIMIZER_SECONDS = 0.018
LAUNCH_SECONDS = 0.0015  # Python between the phases, on the CPU
MICRO_FORWARD_SECONDS = 0.014  # of one microbatch in one stage
COPY_SECONDS = 60e-6  # a buffered send's copy
GRADIENT_BYTES = 1.2e9
TENSOR_BYTES = 48e6
EXPERT_BYTES = 32e6
PIPELINE_BYTES = 48e6
NORM_BYTES = 8


def programme(layout: Layout) -> Programme:
    """Returns one step of this layout. Raises ValueError where its schedule cannot run."""
    builder = Builder(layout)
    for rank in range(layout.world_size):
        Rank(builder, rank).step()
    return builder.finish()


class Rank:
    """One rank's step, written item by item."""

    def __init__(self, builder: Builder, rank: int) -> None:
        self.builder = builder
        self.rank = rank
        self.layout = layout = builder.layout
        self.stage = layout.position(rank)["pp"]
        self.last_stage = layout.pp - 1
        self.pipeline = layout.group(rank, "pp")
        self.tensor = layout.group(rank, "tp")
        self.sharding = layout.group(rank, "shard" if layout.zero else "dp")
        self.pending: list[Handle | None] = []  # gradients in flight beside the backward pass
        self.fetched: Handle | None = None
        self.sent: list[Handle | None] = []  # sends that are waited for at the end
        self.micro = 0  # the microbatch at work
        forward = MICRO_FORWARD_SECONDS if layout.pp > 1 else FORWARD_SECONDS / layout.micro
        self.block_seconds = forward / layout.blocks / layout.chunks
        self.bucket_bytes = GRADIENT_BYTES / (layout.blocks * layout.pp * layout.tp)
        self.pipeline_bytes = PIPELINE_BYTES / layout.tp

    def compute(self, phase: int, seconds: float, *, on_cpu: bool = False, block: str = "") -> None:
        self.builder.compute(self.rank, phase, seconds, self.micro, on_cpu=on_cpu, block=block)

    def call(self, group: Group, op: str, size: float, phase: int) -> None:
        in_span = phase != OTHER
        self.builder.collective(self.rank, group, op, size, phase, self.micro, in_span=in_span)

    def start(self, group: Group, op: str, size: float, phase: int, stream: str) -> Handle | None:
        return self.builder.collective(self.rank, group, op, size, phase, self.micro, stream=stream)

    def wait(self, handles: list[Handle | None], phase: int) -> None:
        self.builder.wait(self.rank, handles, phase, self.micro)

    def step(self) -> None:
        self.compute(OTHER, LAUNCH_SECONDS, on_cpu=True)
        if self.stage in (0, self.last_stage):
            self.compute(INPUT, INPUT_SECONDS, on_cpu=True)
        schedules = {
            "none": self.plain,
            "gpipe": self.gpipe,
            "1f1b": self.one_f_one_b,
            "interleaved": self.interleaved,
            "zero_bubble": self.zero_bubble,
        }
        schedules[self.layout.schedule]()
        self.builder.wait(self.rank, self.sent, OTHER, self.micro, in_span=False)
        self.sent = []
        self.reduce_gradients()
        self.compute(OPTIMIZER, OPTIMIZER_SECONDS / self.layout.pp)
        if self.layout.zero in (1, 2):
            self.call(self.sharding, "all_gather", self.bucket_bytes * self.layout.blocks, OPTIMIZER)
        self.compute(OTHER, LAUNCH_SECONDS, on_cpu=True, block="logging")
        self.compute(OTHER, 0.0, block="evaluation")
        self.compute(OTHER, 0.0, on_cpu=True, block="checkpoint")

    # Blocks of layers

    def forward(self, micro: int) -> None:
        self.micro = micro
        for block in range(self.layout.blocks):
            self.fetch(block, FORWARD, block + 1 if block + 1 < self.layout.blocks else None)
            self.half_block(FORWARD, 1.0)

    def backward(self, micro: int, *, last: bool, weight: float = 2.0) -> None:
        """The backward pass of one microbatch; of weight 1.0 that of the inputs or that of the parameters alone."""
        self.micro = micro
        for block in reversed(range(self.layout.blocks)):
            self.fetch(block, BACKWARD, block - 1 if block else None)
            self.half_block(BACKWARD, weight)
            if last:
                self.overlap_gradients()
        if last:
            self.wait(self.pending, BACKWARD)
            self.pending = []

    def half_block(self, phase: int, weight: float) -> None:
        """Attention and MLP, each with the collectives of tensor or expert parallelism."""
        seconds = self.block_seconds * weight
        if self.layout.ep > 1:
            experts = self.layout.group(self.rank, "ep")
            self.compute(phase, seconds * 0.5)
            if self.layout.tp > 1:
                self.call(self.tensor, "all_reduce", TENSOR_BYTES, phase)
            self.call(experts, "all_to_all", EXPERT_BYTES, phase)
            self.compute(phase, seconds * 0.5, block="expert")
            self.call(experts, "all_to_all", EXPERT_BYTES, phase)
        elif self.layout.tp > 1:
            for share in (0.4, 0.6):
                self.compute(phase, seconds * share)
                self.call(self.tensor, "all_reduce", TENSOR_BYTES, phase)
        else:
            self.compute(phase, seconds)

    def fetch(self, block: int, phase: int, following: int | None) -> None:
        """ZeRO-3: the block's parameters are gathered while the block before it computes."""
        if self.layout.zero != 3:
            return
        if self.fetched is None:
            self.fetched = self.start(self.sharding, "all_gather", self.bucket_bytes, phase, "gather")
        self.wait([self.fetched], phase)
        self.fetched = None
        if following is not None:
            self.fetched = self.start(self.sharding, "all_gather", self.bucket_bytes, phase, "gather")

    # Gradients

    def overlap_gradients(self) -> None:
        layout = self.layout
        if layout.zero in (2, 3):
            op, group = "reduce_scatter", self.sharding
        elif layout.gradients == "buckets" and not layout.zero and layout.ep == 1:
            op, group = "all_reduce", self.sharding
        else:
            return
        self.pending.append(self.start(group, op, self.bucket_bytes, BACKWARD, "gradients"))

    def reduce_gradients(self) -> None:
        self.micro = 0
        layout = self.layout
        whole = self.bucket_bytes * layout.blocks
        if layout.shard:
            replica = layout.group(self.rank, "replica")
            self.call(replica, "all_reduce", whole / layout.shard, OTHER)
        if layout.ep > 1:
            self.call(self.sharding, "all_reduce", whole * 0.4, OTHER)
            self.call(layout.group(self.rank, "expert_dp"), "all_reduce", whole * 0.6, OTHER)
        elif layout.zero == 1:
            self.call(self.sharding, "reduce_scatter", whole, OTHER)
        elif not layout.zero and layout.gradients == "after":
            for _ in range(layout.blocks):
                self.call(self.sharding, "all_reduce", self.bucket_bytes, OTHER)
        self.call(layout.group(self.rank, "world"), "all_reduce", NORM_BYTES, OPTIMIZER)

    # Schedules

    def plain(self) -> None:
        for micro in range(self.layout.micro):
            self.forward(micro)
            self.backward(micro, last=micro == self.layout.micro - 1)

    def neighbour(self, places: int) -> int:
        return self.pipeline.ranks[(self.stage + places) % self.layout.pp]

    def transfer(self, op: str, places: int, micro: int) -> None:
        peer, size = self.neighbour(places), self.pipeline_bytes
        if self.layout.sends == "buffered":
            if op == "send":
                self.builder.send_buffered(self.rank, peer, size, micro, COPY_SECONDS)
            else:
                self.builder.receive_buffered(self.rank, peer, size, micro)
        elif op == "send" and self.layout.sends == "later":
            self.sent.append(self.builder.pass_on(self.rank, peer, op, size, micro, blocking=False))
        else:
            self.builder.pass_on(self.rank, peer, op, size, micro, blocking=True)

    def exchange(self, first: tuple[str, int, int], second: tuple[str, int, int]) -> None:
        """A send and a recv that are posted together and waited for together, as torch's batch_isend_irecv does."""
        if self.layout.sends != "together":
            self.transfer(*first)
            self.transfer(*second)
            return
        handles = [
            self.builder.pass_on(self.rank, self.neighbour(places), op, self.pipeline_bytes, micro, blocking=False)
            for op, places, micro in (first, second)
        ]
        self.builder.wait(self.rank, handles, OTHER, in_span=False)

    def gpipe(self) -> None:
        for micro in range(self.layout.micro):
            if self.stage:
                self.transfer("recv", -1, micro)
            self.forward(micro)
            if self.stage < self.last_stage:
                self.transfer("send", 1, micro)
        for micro in range(self.layout.micro):
            if self.stage < self.last_stage:
                self.transfer("recv", 1, micro)
            self.backward(micro, last=micro == self.layout.micro - 1)
            if self.stage:
                self.transfer("send", -1, micro)

    def one_f_one_b(self) -> None:
        """The order of megatron.core.pipeline_parallel.schedules, without interleaving."""
        micros, first, last = self.layout.micro, self.stage == 0, self.stage == self.last_stage
        warm_up = min(self.last_stage - self.stage, micros)

        def one(op: str, places: int, micro: int) -> None:
            if not (first if places < 0 else last):
                self.transfer(op, places, micro)

        for micro in range(warm_up):
            one("recv", -1, micro)
            self.forward(micro)
            one("send", 1, micro)
        if warm_up < micros:
            one("recv", -1, warm_up)
        for micro in range(warm_up, micros):
            self.forward(micro)
            done = micro - warm_up
            if not last:
                self.exchange(("send", 1, micro), ("recv", 1, done))
            self.backward(done, last=done == micros - 1)
            if micro == micros - 1:
                one("send", -1, done)
            elif not first:
                self.exchange(("send", -1, done), ("recv", -1, micro + 1))
        for micro in range(micros - warm_up, micros):
            one("recv", 1, micro)
            self.backward(micro, last=micro == micros - 1)
            one("send", -1, micro)

    def zero_bubble(self) -> None:
        """1F1B whose backward pass is cut in two: the stage before waits for the gradient of the inputs alone, and that
        of the parameters is put off by as many microbatches as the stage's number (ZB-H1 of Qi et al., Zero Bubble
        Pipeline Parallelism, 2023; torch's ScheduleInterleavedZeroBubble delays by the rank likewise)."""
        micros, first, last = self.layout.micro, self.stage == 0, self.stage == self.last_stage
        warm_up = min(self.last_stage - self.stage, micros)
        weighed = 0
        for turn in range(micros + warm_up):
            if turn < micros:
                if not first:
                    self.transfer("recv", -1, turn)
                self.forward(turn)
                if not last:
                    self.transfer("send", 1, turn)
            done = turn - warm_up
            if done < 0:
                continue
            if not last:
                self.transfer("recv", 1, done)
            self.backward(done, last=False, weight=1.0)
            if not first:
                self.transfer("send", -1, done)
            if done >= self.stage:
                self.backward(weighed, last=weighed == micros - 1, weight=1.0)
                weighed += 1
        for micro in range(weighed, micros):
            self.backward(micro, last=micro == micros - 1, weight=1.0)

    def interleaved(self) -> None:
        """Megatron's interleaved order with buffered messages: each rank holds `chunks` parts of the model."""
        layout = self.layout
        total = layout.micro * layout.chunks
        warm_up = min((self.last_stage - self.stage) * 2 + (layout.chunks - 1) * layout.pp, total)
        for turn in range(warm_up):
            self.chunk_forward(turn)
        for turn in range(warm_up, total):
            self.chunk_forward(turn)
            self.chunk_backward(turn - warm_up, total)
        for turn in range(total - warm_up, total):
            self.chunk_backward(turn, total)

    def place(self, turn: int) -> tuple[int, int]:
        """Returns the chunk and the microbatch of this turn."""
        layout = self.layout
        chunk = turn // layout.pp % layout.chunks
        return chunk, turn // (layout.pp * layout.chunks) * layout.pp + turn % layout.pp

    def chunk_forward(self, turn: int) -> None:
        chunk, micro = self.place(turn)
        begins = self.stage == 0 and chunk == 0
        ends = self.stage == self.last_stage and chunk == self.layout.chunks - 1
        self.chunk_turn(lambda: self.forward(micro), micro, -1, 1, begins, ends)

    def chunk_backward(self, turn: int, total: int) -> None:
        chunk, micro = self.place(turn)
        chunk = self.layout.chunks - 1 - chunk
        begins = self.stage == self.last_stage and chunk == self.layout.chunks - 1
        ends = self.stage == 0 and chunk == 0
        self.chunk_turn(lambda: self.backward(micro, last=turn == total - 1), micro, 1, -1, begins, ends)

    def chunk_turn(
        self, work: Callable[[], None], micro: int, source: int, target: int, begins: bool, ends: bool
    ) -> None:
        if not begins:
            self.builder.receive_buffered(self.rank, self.neighbour(source), self.pipeline_bytes, micro)
        work()
        if not ends:
            self.builder.send_buffered(self.rank, self.neighbour(target), self.pipeline_bytes, micro, COPY_SECONDS)
