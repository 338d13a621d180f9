"""What two ranks do with the Trainer; started by test_transformers_ranks.py through torchrun.

    torchrun … trainer_cases.py OUT

Each rank leaves what it saw in OUT/rank-K.pt.
"""

import os
import sys
from pathlib import Path

import torch
from transformers import TrainerCallback

from tiny_models import llama, trainer, weights

TASK = "causal language model"
OPTIONS = {"gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 1, "size": 61}


def result(ours):
    return {
        "weights": weights(ours.model),
        "scores": ours.pruner.scores,
        "plans": ours.plans,
        "visits": ours.visits,
        "savings": str(ours.pruner.savings),
        "rates": ours.rates,
        "state": [ours.state.global_step, ours.state.max_steps, ours.state.epoch],
        "logged": [r for r in ours.state.log_history if "infobatch/samples_saved" in r],
    }


class StopAfter(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


def few_steps(out, batch_size):
    """An epoch and a part of a pruned one; without noise, so that it can be told by the numbers."""
    model = llama(dropout=0.0)
    ours = trainer(
        out,
        TASK,
        model=model,
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.5), None),
        size=64,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=2,
        max_steps=6,
    )
    ours.train()
    return result(ours)


def main(out):
    batch = {"per_device_train_batch_size": 4}
    results = {}
    ours = trainer(out / "whole", TASK, **OPTIONS, **batch)
    ours.train()
    results["whole"] = result(ours)
    # An epoch has at most 4 steps here: the sixth is in the middle of the second, the third in the
    # first one.
    for step in (3, 6):
        stopped = trainer(out / f"to-{step}", TASK, callbacks=[StopAfter(step)], **OPTIONS, **batch)
        stopped.train()
        resumed = trainer(out / f"to-{step}", TASK, **OPTIONS, **batch)
        resumed.train(resume_from_checkpoint=True)
        results[f"resumed from {step}"] = result(resumed)
    results["few steps"] = few_steps(out, batch_size=4)
    torch.save(results, out / f"rank-{os.environ['RANK']}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    torch.distributed.destroy_process_group()
