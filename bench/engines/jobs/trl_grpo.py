"""TRL's GRPOTrainer: each step generates completions, scores them, and trains on them."""

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from workload import faults
from workload.hugging_face import Chores, settings
from workload.llama import BATCH, tiny_llama
from workload.result import finish, report
from workload.tokenizer import tiny_tokenizer


def reward(completions, **_):
    faults.before_input()
    return [float(len(set(text.split()))) for text in completions]


prompts = Dataset.from_dict({"prompt": [f"w{4 + number % 50} w{5 + number % 40}" for number in range(64)]})
trainer = GRPOTrainer(
    tiny_llama(),
    reward,
    GRPOConfig(**settings(num_generations=BATCH, max_completion_length=8, beta=0.0)),
    train_dataset=prompts,
    processing_class=tiny_tokenizer(),
    callbacks=[Chores()],
)
result = trainer.train()
report([result.training_loss], trainer.model_wrapped.parameters())
finish()
