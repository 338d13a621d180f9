# python benchmarks/grpo_sums.py --seeds 0 1 2
"""GRPO on sums modulo ten with a tiny Llama: reward against generated tokens.

The model first learns some of the sums by supervision, so that it gets some prompts right always, some
never and some now and then, as a language model does that is about to be tuned by reinforcement. Then
GRPO trains it by a reward of 1 for the right answer, on all prompts (full), on a random part, and on the
part that InfoBatch keeps. Each finished run is stored; run the same command to resume.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import platform
import tempfile
from pathlib import Path

os.environ.setdefault("CI", "1")  # no telemetry
import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
)
from trl import GRPOConfig

from infobatch.integrations.trl import InfoBatchConfig, InfoBatchGRPOTrainer, SpreadPrune
from infobatch.policies import NoPrune, RandomPrune

OUT = Path(__file__).parent / "results" / "grpo_sums.json"
NUMBERS = 16  # the sums of two numbers below this, modulo it
WORDS = [*map(str, range(NUMBERS)), "+", "="]
PROMPTS_AT_ONCE, GENERATIONS = 32, 8
EPOCHS, RATE = 20, 2e-3
RATIO = 0.75


def tokenizer():
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def sums():
    pairs = [(one, other) for one in range(NUMBERS) for other in range(NUMBERS)]
    return [
        {"prompt": f"{one} + {other} =", "answer": str((one + other) % NUMBERS)}
        for one, other in pairs
    ]


def right(completions, answer, **kwargs):
    said = [(text.split() or [""])[0] for text in completions]
    return [float(word == wanted) for word, wanted in zip(said, answer, strict=True)]


def started_model(seed):
    """A model that supervision has taught a part of the sums."""
    torch.manual_seed(seed)
    words = tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=16,
            pad_token_id=0,
            eos_token_id=1,
        )
    )
    rows = [words(f"{row['prompt']} {row['answer']} <eos>")["input_ids"] for row in sums()]
    ids = torch.tensor(rows)
    taught = ids[torch.randperm(len(ids))[: len(ids) // 2]]
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(60):
        for batch in taught[torch.randperm(len(taught))].split(32):
            logits = model(input_ids=batch).logits[:, 3:-1]
            loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 4:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


@torch.no_grad()
def reward_of(model):
    """The expected reward: the probability of the right answer, over all prompts."""
    words = tokenizer()
    ids = torch.tensor([words(row["prompt"])["input_ids"] for row in sums()])
    answers = torch.tensor(words.convert_tokens_to_ids([row["answer"] for row in sums()]))
    was_training = model.training
    chances = model.eval()(input_ids=ids).logits[:, -1].softmax(-1)
    model.train(was_training)
    return chances[torch.arange(len(ids)), answers].mean().item()


class Curve(TrainerCallback):
    """Notes the expected reward against the completions and tokens that were generated."""

    def __init__(self):
        self.points = []
        self.trainer = None

    def note(self, model):
        made = self.trainer.pruner.savings.made * GENERATIONS
        tokens = self.trainer.completion_tokens
        self.points.append({"completions": made, "tokens": tokens, "reward": reward_of(model)})

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.note(model)

    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        self.note(model)


class Counting(InfoBatchGRPOTrainer):
    """Counts the generated tokens."""

    completion_tokens = 0

    def _generate_single_turn(self, *args, **kwargs):
        ids, logprobs = super()._generate_single_turn(*args, **kwargs)
        self.completion_tokens += sum(map(len, ids))
        return ids, logprobs


def policy_of(arm, leader):
    if arm == "infobatch":
        return SpreadPrune(RATIO, batch=PROMPTS_AT_ONCE)
    if arm == "full":
        return NoPrune()
    # At least as many prompts as InfoBatch had after the first epoch, in whole batches.
    size = len(sums())
    kept = (leader["prompts"] - size) / (EPOCHS - 1)
    return RandomPrune(1 - math.ceil(kept / PROMPTS_AT_ONCE) * PROMPTS_AT_ONCE / size)


def run(arm, seed, start, leader):
    curve = Curve()
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            folder,
            seed=seed,
            per_device_train_batch_size=PROMPTS_AT_ONCE * GENERATIONS,
            num_generations=GENERATIONS,
            max_completion_length=2,
            num_train_epochs=EPOCHS,
            learning_rate=RATE,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            log_level="error",
        )
        trainer = Counting(
            model=copy.deepcopy(start),
            reward_funcs=right,
            args=args,
            train_dataset=Dataset.from_list(sums()),
            processing_class=tokenizer(),
            callbacks=[curve],
            infobatch=InfoBatchConfig(policy=policy_of(arm, leader), delta=1.0, seed=seed),
        )
        trainer.remove_callback(PrinterCallback)
        curve.trainer = trainer
        trainer.train()
    savings = trainer.pruner.savings
    return {
        "arm": arm,
        "seed": seed,
        "prompts": savings.made,
        "all_prompts": len(sums()) * EPOCHS,
        "completion_tokens": trainer.completion_tokens,
        "steps": trainer.state.global_step,
        "reward": curve.points[-1]["reward"],
        "curve": curve.points,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = {"runs": []}
    if options.out.exists():
        record = json.loads(options.out.read_text())
    record["command"] = "python benchmarks/grpo_sums.py --seeds " + " ".join(
        map(str, options.seeds)
    )
    record["versions"] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "trl": trl.__version__,
    }
    done = {(one["arm"], one["seed"]): one for one in record["runs"]}
    for seed in options.seeds:
        start = started_model(seed)
        for arm in ("full", "infobatch", "random"):
            if (arm, seed) in done:
                continue
            done[arm, seed] = run(arm, seed, start, done.get(("infobatch", seed)))
            record["runs"] = [done[key] for key in sorted(done)]
            temporary = options.out.with_suffix(".tmp")
            temporary.write_text(json.dumps(record, indent=1) + "\n")
            temporary.replace(options.out)
            one = done[arm, seed]
            print(arm, seed, f"reward {one['reward']:.4f}", f"{one['completion_tokens']:,} tokens")


if __name__ == "__main__":
    main()
