# python benchmarks/grpo_sums.py --seeds 0 1 2 [--solved]
"""GRPO on sums modulo 16 with a tiny Llama: reward against generated tokens.

The model first learns some of the sums by supervision, so that it gets some prompts right always, some
never and some now and then, as a language model does that is about to be tuned by reinforcement. With
``--solved`` it begins where pruning should help most: three quarters of the prompts are solved, and it
gets each of the others right one time in four.

Then GRPO trains it by a reward of 1 for the right answer, on all prompts (full), on a random part, on the
part that InfoBatch keeps, and on all prompts for as many steps as InfoBatch made, with a schedule of that
length (short). Each finished run is stored; run the same command to resume.
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

RESULTS = Path(__file__).parent / "results"
NUMBERS = 16  # the sums of two numbers below this, modulo it
WORDS = [*map(str, range(NUMBERS)), "+", "="]
PROMPTS_AT_ONCE, GENERATIONS = 32, 8
EPOCHS = 20
RATE, RATE_WHERE_SOLVED = 2e-3, 5e-4  # at 2e-3 what was solved is forgotten in the first epoch
RATIO = 0.75
ARMS = ("full", "infobatch", "random", "short")


def tokenizer():
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def sums():
    pairs = [(first, second) for first in range(NUMBERS) for second in range(NUMBERS)]
    return [
        {"prompt": f"{first} + {second} =", "answer": str((first + second) % NUMBERS)}
        for first, second in pairs
    ]


def right(completions, answer, **kwargs):
    words = [(text.split() or [""])[0] for text in completions]
    return [float(word == wanted) for word, wanted in zip(words, answer, strict=True)]


def half_taught(words):
    """Half of the sums, as rows of tokens; how many epochs to learn them for, in batches of which size."""
    rows = [words(f"{row['prompt']} {row['answer']} <eos>")["input_ids"] for row in sums()]
    ids = torch.tensor(rows)
    return ids[torch.randperm(len(ids))[: len(ids) // 2]], 60, 32


def mostly_solved(words):
    """Every sum four times: a quarter of them with four different answers, of which one is right."""
    doubtful = set(torch.randperm(len(sums()))[: len(sums()) // 4].tolist())
    rows = [
        words(
            f"{row['prompt']} {(int(row['answer']) + (number in doubtful) * wrong) % NUMBERS} <eos>"
        )["input_ids"]
        for number, row in enumerate(sums())
        for wrong in range(4)
    ]
    return torch.tensor(rows), 120, 256


def started_model(seed, solved):
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
    taught, epochs, size = mostly_solved(words) if solved else half_taught(words)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(epochs):
        for batch in taught[torch.randperm(len(taught))].split(size):
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
    if arm in ("full", "short"):
        return NoPrune()
    # At least as many prompts as InfoBatch had after the first epoch, in whole batches.
    size = len(sums())
    kept = (leader["prompts"] - size) / (EPOCHS - 1)
    return RandomPrune(1 - math.ceil(kept / PROMPTS_AT_ONCE) * PROMPTS_AT_ONCE / size)


def run(arm, seed, start, leader, rate):
    curve = Curve()
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            folder,
            seed=seed,
            per_device_train_batch_size=PROMPTS_AT_ONCE * GENERATIONS,
            num_generations=GENERATIONS,
            max_completion_length=2,
            num_train_epochs=EPOCHS,
            # A step per generation, so that as many steps see as many prompts.
            max_steps=leader["steps"] if arm == "short" else -1,
            learning_rate=rate,
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
    parser.add_argument("--solved", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    name = "grpo_sums_solved.json" if options.solved else "grpo_sums.json"
    out = options.out or RESULTS / name
    rate = RATE_WHERE_SOLVED if options.solved else RATE
    torch.set_num_threads(1)
    record = {"runs": []}
    if out.exists():
        record = json.loads(out.read_text())
    seeds = " ".join(map(str, options.seeds))
    record["command"] = f"python benchmarks/grpo_sums.py --seeds {seeds}" + (
        " --solved" if options.solved else ""
    )
    record["versions"] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "trl": trl.__version__,
    }
    done = {(finished["arm"], finished["seed"]): finished for finished in record["runs"]}
    for seed in options.seeds:
        start = started_model(seed, options.solved)
        for arm in ARMS:
            if (arm, seed) in done:
                continue
            done[arm, seed] = run(arm, seed, start, done.get(("infobatch", seed)), rate)
            record["runs"] = [done[key] for key in sorted(done)]
            temporary = out.with_suffix(".tmp")
            temporary.write_text(json.dumps(record, indent=1) + "\n")
            temporary.replace(out)
            finished = done[arm, seed]
            print(
                arm,
                seed,
                f"reward {finished['reward']:.4f}",
                f"{finished['completion_tokens']:,} tokens",
            )


if __name__ == "__main__":
    main()
