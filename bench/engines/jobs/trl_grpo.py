"""TRL's GRPOTrainer: each step generates completions, scores them, and trains on them. Longer batches are longer
completions."""

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from workload import faults, plan
from workload.hugging_face import Chores, settings
from workload.lengths import times_as_long
from workload.llama import BATCH, tiny_llama
from workload.result import finish, report
from workload.tokenizer import tiny_tokenizer

LENGTH = 8


def reward(completions, **_):
    faults.before_input()
    trainer.generation_config.max_new_tokens = LENGTH * times_as_long(plan.step + 1)  # of the next ones
    return [float(len(set(text.split()))) for text in completions]


prompts = Dataset.from_dict({"prompt": [f"w{4 + number % 50} w{5 + number % 40}" for number in range(64)]})
trainer = GRPOTrainer(
    tiny_llama(),
    reward,
    GRPOConfig(**settings(num_generations=BATCH, max_completion_length=LENGTH * times_as_long(0), beta=0.0)),
    train_dataset=prompts,
    processing_class=tiny_tokenizer(),
    callbacks=[Chores()],
)
result = trainer.train()
report([result.training_loss], trainer.model_wrapped.parameters())
finish()
