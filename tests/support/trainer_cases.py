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
# An epoch over all data has four steps on two ranks, and eight with half as many samples on one.
STOPS = {3: "in a whole epoch", 4: "between epochs", 6: "in a pruned epoch"}
ALONE = {3: 5, 4: 8, 6: 10}


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


def check_continuation(before, ranks, steps_per_epoch, num_epochs, *, warmup_steps, batch=4):
    """Check that a run that continues another on some ranks misses, repeats and freezes nothing.

    Learning rates are compared with the linear schedule in steps of the first run, by the share of
    the epoch that was done.
    """
    first, steps = ranks[0], num_epochs * steps_per_epoch
    assert first["places"]
    seen_before = {epoch: len(visits) for epoch, visits in before["visits"].items()}
    for epoch, plan in first["plans"].items():
        total = len(plan)
        visited_before = set(before["visits"].get(epoch, ()))
        left = [index for index in plan.tolist() if index not in visited_before]
        visited = [
            index
            for start in range(0, len(first["visits"][epoch]), batch)
            for rank in ranks
            for index in rank["visits"][epoch][start : start + batch]
        ]
        assert visited[: len(left)] == left, epoch
        # Accelerate repeats some samples to fill up the last round of batches.
        repeats = len(visited) - len(left)
        assert repeats == (-len(left) % (batch * len(ranks)) if len(ranks) > 1 else 0)
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
                assert abs(rate - 1e-2 * share) < 1e-9, (epoch, done, rate, 1e-2 * share)
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


def positioned(folder, *, stop=None, resume=None, **options):
    """A run with a linear schedule that is stopped after some step, or continued from another."""
    callbacks = [] if stop is None else [StopAfter(stop)]
    options = {**OPTIONS, "warmup_steps": 2, **options}
    ours = trainer(folder, TASK, kind=Positioned, callbacks=callbacks, **options)
    ours.train(resume_from_checkpoint=resume)
    return ours


def main(out):
    batch = {"per_device_train_batch_size": 4}
    unsaved = {"save_strategy": "no"}
    results = {}
    ours = trainer(out / "whole", TASK, **OPTIONS, **batch)
    ours.train()
    results["whole"] = result(ours)
    ours = trainer(out / "unsaved", TASK, **{**OPTIONS, **unsaved}, **batch)
    ours.train()
    results["unsaved"] = result(ours)
    for step in STOPS:
        stopped = positioned(out / f"to-{step}", stop=step, **batch)
        results[f"stopped at {step}"] = stopped.position()
        # This one begins where a single process stopped.
        resumed = positioned(
            out / "two",
            resume=str(out / "alone" / f"checkpoint-{ALONE[step]}"),
            **(batch | unsaved),
        )
        results[f"from one at {step}"] = resumed.position()
    for step in (3, 6):
        resumed = trainer(out / "resumed", TASK, **{**OPTIONS, **unsaved}, **batch)
        resumed.train(resume_from_checkpoint=str(out / "whole" / f"checkpoint-{step}"))
        results[f"resumed from {step}"] = result(resumed)
    # In the last round of batches, only the first rank has samples that are no repeats.
    last_round = {"size": 60, "gradient_accumulation_steps": 1, "num_train_epochs": 1, **batch}
    positioned(out / "sixty", stop=7, **last_round)
    resumed = positioned(out / "sixty", resume=True, **last_round)
    results["last round"] = resumed.position()
    results["few steps"] = few_steps(out, batch_size=4)
    torch.save(results, out / f"rank-{os.environ['RANK']}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    torch.distributed.destroy_process_group()
