"""What two ranks do with the Trainer; started by test_transformers_ranks.py through torchrun.

    torchrun … trainer_cases.py OUT

Each rank leaves what it saw in OUT/rank-K.pt.
"""

import os
import sys
from pathlib import Path

import torch
from transformers import TrainerCallback

from tiny_models import Watched, llama, trainer, weights

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


class Positioned(Watched):
    """Notes where in its epoch this run was at each batch, and the learning rate there."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.places = []

    def training_step(self, model, inputs, *rest):
        epoch = self.pruner.epoch
        seen = len(self.visits.get(epoch, ()))
        self.places.append((epoch, seen, self.state.global_step, self._get_learning_rate()))
        return super().training_step(model, inputs, *rest)

    def position(self):
        return {
            "plans": self.plans,
            "visits": self.visits,
            "places": self.places,
            "last": [self.state.global_step, self.state.max_steps, self.state.epoch],
            "rate": self.lr_scheduler.get_last_lr(),
            "scores": self.pruner.scores,
            "made": [epoch.made for epoch in self.pruner.savings.epochs],
        }


def check_continuation(before, ranks, steps_per_epoch, num_epochs, *, warmup_steps, peak=1e-2):
    """Check that a run that continues another on some ranks misses, repeats and freezes nothing.

    Learning rates are compared with the linear schedule in steps of the first run, by the share of
    the epoch that was done.
    """
    first, steps = ranks[0], num_epochs * steps_per_epoch
    assert first["places"]
    seen_before = {epoch: len(visits) for epoch, visits in before["visits"].items()}
    for epoch, plan in first["plans"].items():
        total = len(plan)
        visited = [*before["visits"].get(epoch, ())]
        # Without what Accelerate repeats to fill up the last batches.
        now = [rank["visits"][epoch] for rank in ranks]
        visited += now[0] if len(now) == 1 else {index for visits in now for index in visits}
        assert sorted(visited) == sorted(plan.tolist()), epoch
        assert first["made"][epoch] == total
        for rank in ranks:
            assert torch.equal(rank["plans"][epoch], plan)
            begun = {}
            for at, seen, step, rate in rank["places"]:
                if at != epoch:
                    continue
                begun.setdefault(step, seen)  # the batches of a step have the same rate
                done = min(seen_before.get(epoch, 0) + begun[step] * len(ranks), total)
                due = epoch * steps_per_epoch + done * steps_per_epoch // total
                share = (
                    due / warmup_steps
                    if due < warmup_steps
                    else (steps - due) / (steps - warmup_steps)
                )
                assert abs(rate - peak * share) < 1e-9, (epoch, done, rate, peak * share)
    for rank in ranks:
        assert set(rank["rate"]) == {0.0}
        assert rank["last"][0] == rank["last"][1]
        assert rank["last"][2] == num_epochs
        assert torch.equal(rank["scores"], first["scores"])
        assert rank["scores"].isfinite().all()


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
