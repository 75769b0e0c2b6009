"""The begin and the end of each engine's step: input and copy; the loss, and what comes now and then."""

import math

from fluid_simulator.conditions import Conditions
from fluid_simulator.job import Checkpoint, Evaluation, Job, Pipelined
from fluid_simulator.rank import Program, Rank, Step, Stuck

LOADING_SIGMA, FETCH_SIGMA = 0.25, 0.1
MIDDLE_STAGE_SHARE = 0.01
"""The share of a batch that the middle stages of a pipeline read: no samples."""
COPY_LAUNCH_SECONDS = 30e-6
LOGGING_SIGMA, EVALUATION_SIGMA, SAVING_SIGMA = 0.15, 0.05, 0.2
EVALUATION_PARTS = 3


class Loader:
    """Workers that make batches ahead, into a queue: the host waits only where it is empty."""

    def __init__(self, rank: Rank, job: Job) -> None:
        self._rank, self._job = rank, job
        self._taken = [0.0] * job.prefetched
        self._made = 0.0
        stages = job.work.stages if isinstance(job.work, Pipelined) else 1
        self._reads_nothing = 0 < rank.stage < stages - 1

    def take(self) -> None:
        """The host takes the next batch, when it is made."""
        rank, job = self._rank, self._job
        seconds = job.load * math.exp(LOADING_SIGMA * rank.normal()) + rank.factors.input
        if self._reads_nothing:
            seconds *= MIDDLE_STAGE_SHARE
        self._made = max(self._made, self._taken.pop(0)) + seconds / job.workers
        fetch = job.fetch * rank.factors.host * math.exp(FETCH_SIGMA * rank.normal())
        rank.host_time = max(rank.host_time, self._made) + fetch
        self._taken.append(rank.host_time)


class StepFrame:
    """Begins and ends a rank's steps."""

    def __init__(self, rank: Rank, job: Job, conditions: Conditions) -> None:
        self._rank, self._job, self._conditions = rank, job, conditions
        self._loader = Loader(rank, job)
        self._begun = 0.0

    def begin(self, step: int) -> None:
        rank, job = self._rank, self._job
        rank.step, rank.kernels = step, 0
        self._conditions.begin_step(rank, step)
        self._begun = rank.time()
        rank.begin("input")
        if rank.stop and rank.stop.step == step and rank.stop.how == "input":
            raise Stuck
        self._loader.take()
        if job.settings.blocking:
            rank.gpu_time = max(rank.gpu_time, rank.host_time)
        rank.kernel(job.copy * rank.factors.copy, COPY_LAUNCH_SECONDS)
        rank.end("input")

    def end(self, step: int) -> Program:
        rank, job, extras = self._rank, self._job, self._job.extras
        if job.loss_every and step % job.loss_every == 0:
            yield from rank.wait(rank.collective(job.world, "all_reduce", 4, "w"))
        if job.sync_every and (step + 1) % job.sync_every == 0:
            rank.synchronize()
        collector = self._conditions.plan.collector
        if collector and collector.due(rank.number, step):
            rank.host_time += collector.seconds * rank.factors.host
        if extras.logging and rank.number == 0 and step % extras.logging.every == 0:
            self._log(extras.logging.seconds)
        if extras.evaluation and _last_of(step, extras.evaluation.every):
            yield from self._evaluate(extras.evaluation)
        if extras.checkpoint and _last_of(step, extras.checkpoint.every):
            yield from self._save(extras.checkpoint)
        if not rank.host_only:
            rank.steps.append(Step(step, self._begun, rank.time(), rank.factors.tokens))

    def _log(self, seconds: float) -> None:
        rank = self._rank
        rank.synchronize()
        rank.begin("logging")
        rank.host_time += seconds * rank.factors.host * math.exp(LOGGING_SIGMA * rank.normal())
        rank.end("logging")

    def _evaluate(self, evaluation: Evaluation) -> Program:
        rank = self._rank
        rank.begin("evaluation")
        for _ in range(EVALUATION_PARTS):
            rank.kernel(evaluation.seconds / EVALUATION_PARTS * math.exp(EVALUATION_SIGMA * rank.normal()))
        yield from rank.wait(rank.collective(self._job.world, "all_reduce", 64, "w"))
        rank.synchronize()
        rank.end("evaluation")

    def _save(self, checkpoint: Checkpoint) -> Program:
        """All wait at a barrier until who writes has written."""
        rank = self._rank
        rank.begin("checkpoint")
        rank.synchronize()
        if not checkpoint.alone or rank.number == 0:
            rank.host_time += checkpoint.seconds * rank.factors.host * math.exp(SAVING_SIGMA * rank.normal())
        yield from rank.wait(rank.collective(self._job.world, "barrier", 0, "w"))
        if not rank.host_only:
            rank.host_time = max(rank.host_time, rank.gpu_time)
        rank.end("checkpoint")


def _last_of(step: int, every: int) -> bool:
    return step % every == every - 1
