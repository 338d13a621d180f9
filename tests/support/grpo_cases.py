"""Small GRPO trainings on sums, and what two ranks do with one; test_grpo.py starts it by torchrun.

    torchrun … grpo_cases.py OUT

Each rank leaves what it saw in OUT/rank-K.pt.
"""

import os
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig

from infobatch.integrations.trl import InfoBatchConfig, InfoBatchGRPOTrainer
from tiny_words import DIGITS, llama, tokenizer


def questions(size=12):
    """Sums, with their answers for the reward function."""
    sums = [(number % 4, number // 4 % 3) for number in range(size)]
    rows = [
        {"prompt": f"what is {DIGITS[term]} plus {DIGITS[other]}", "answer": DIGITS[term + other]}
        for term, other in sums
    ]
    return Dataset.from_list(rows)


def right(completions, answer, **kwargs):
    """1 for a completion that begins with the answer."""
    words = [(completion.split() or [""])[0] for completion in completions]
    return [float(word == wanted) for word, wanted in zip(words, answer, strict=True)]


def fixed_rollout(prompts, trainer):
    """The same completions for a prompt every time: some of the sums have the answer among them."""
    words = trainer.processing_class
    ids, completions = [], []
    # A group may begin on one rank and end on the next.
    for row, prompt in enumerate(prompts, trainer.accelerator.process_index * len(prompts)):
        number = row % 4
        *_, term, _, other = prompt.split()
        first = DIGITS.index(term) + DIGITS.index(other) + (0 if term in ("zero", "two") else 1)
        ids.append(words(prompt)["input_ids"])
        completion = f"{DIGITS[(first + number) % 10]} {DIGITS[number]}"
        completions.append(words(completion)["input_ids"])
    return {"prompt_ids": ids, "completion_ids": completions, "logprobs": None}


def arguments(folder, **options):
    """Four completions for each prompt, four prompts at once."""
    quiet = {
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 3,
        "num_train_epochs": 4,
        "learning_rate": 1e-2,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "log_level": "error",
    }
    return GRPOConfig(str(folder), **(quiet | options))


class Watched(InfoBatchGRPOTrainer):
    """Notes the prompts of each generation, by epoch."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.generated, self.plans, self.weights = {}, {}, {}

    def _record(self, rows, advantages):
        epoch = self.pruner.epoch
        self.plans[epoch], self.weights[epoch] = self.pruner.plan.order, self.pruner.plan.weights
        self.generated.setdefault(epoch, []).append(rows.tolist())
        super()._record(rows, advantages)


def reference_model(folder):
    """A folder with a model that differs from the one that is trained."""
    reference = llama()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.5)
    reference.save_pretrained(Path(folder) / "reference")
    return Path(folder) / "reference"


def trainer(folder, kind=Watched, *, data=None, infobatch=None, **options):
    """A trainer; arguments that it does not know go to the training arguments."""
    names = (
        "reward_funcs",
        "rollout_func",
        "callbacks",
        "eval_dataset",
        "peft_config",
        "optimizers",
    )
    known = {name: options.pop(name) for name in names if name in options}
    pruned = {} if infobatch is None else {"infobatch": infobatch}
    if infobatch is None and issubclass(kind, InfoBatchGRPOTrainer):
        pruned = {"infobatch": InfoBatchConfig(prune_ratio=0.75, delta=1.0)}
    model = llama()
    if options.get("beta"):  # the reference model is read from where the model is said to be from
        model.config._name_or_path = str(reference_model(folder))
    return kind(
        model=model,
        reward_funcs=known.pop("reward_funcs", right),
        args=arguments(folder, **options),
        train_dataset=questions() if data is None else data,
        processing_class=tokenizer(),
        **known,
        **pruned,
    )


def weights(ours):
    return {name: value.detach().clone() for name, value in ours.model.state_dict().items()}


def result(ours):
    return {
        "weights": weights(ours),
        "scores": ours.pruner.scores,
        "plans": ours.plans,
        "generated": ours.generated,
        "savings": str(ours.pruner.savings),
        "steps": ours.state.global_step,
    }


class Gradients(TrainerCallback):
    """Keeps the gradient of each optimizer step."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())


def gradients(folder, kind=Watched, **options):
    """The gradients of a training whose model and completions stay the same."""
    noted = Gradients()
    frozen = {"learning_rate": 0.0, "max_grad_norm": 0.0, "rollout_func": fixed_rollout}
    ours = trainer(folder, kind, callbacks=[noted], **(frozen | options))
    ours.train()
    return ours, noted.seen


def pruned_epoch(folder, **options):
    """The second epoch of such a training, and the gradients of both."""
    ours, steps = gradients(folder, num_train_epochs=2, **options)
    return {
        "gradients": torch.stack(steps),
        "generated": ours.generated[1],
        "order": ours.plans[1],
        "row_weights": ours.weights[1],
    }


class StopAfter(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


def main(out):
    # One group on each rank, trained on in two micro-batches.
    options = {"per_device_train_batch_size": 2, "steps_per_generation": 2, "num_generations": 4}
    saved = {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2}
    results = {}
    whole = trainer(out / "whole", **options, **saved)
    whole.train()
    results["whole"] = result(whole)
    stopped = trainer(out / "part", callbacks=[StopAfter(8)], **options, **saved)
    stopped.train()
    resumed = trainer(out / "part", **options, **saved)
    resumed.train(resume_from_checkpoint=True)
    results["resumed"] = result(resumed)
    for name in ("dr_grpo", "dapo"):
        results[name] = pruned_epoch(out, per_device_train_batch_size=6, loss_type=name)
    torch.save(results, out / f"rank-{os.environ['RANK']}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    torch.distributed.destroy_process_group()
