"""Trainings with the real Accelerate, for one process (imported) and for several (by torchrun).

    torchrun … accelerate_cases.py CASE OUT

Each rank leaves what it saw in OUT/rank-K.pt.
"""

import os
import sys
import warnings
import weakref
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from numbered import Numbered, loss_of

SIZE, EPOCHS, GLOBAL_BATCH = 103, 4, 8
DROPOUT = 0.0  # ranks draw from streams of their own, so gradients are compared without it

# What Accelerate can be told about dealing out batches; all of them at once need no process more.
DEALINGS = [
    {"dispatch": dispatch, "split": split, "even": even, "drop_last": drop_last, "workers": workers}
    for dispatch, split, even, drop_last, workers in [
        *product([False, True], [False, True], [True, False], [False, True], [0]),
        (False, False, True, False, 2),
        (True, False, True, True, 2),
        (False, True, True, True, 2),
    ]
]


def accelerated(dispatch=None, split=False, even=True, accumulate=1):
    return Accelerator(
        cpu=True,
        gradient_accumulation_steps=accumulate,
        dataloader_config=DataLoaderConfiguration(
            dispatch_batches=dispatch, split_batches=split, even_batches=even
        ),
    )


def loader_of(pruner, data, accelerator, *, split=False, drop_last=False, workers=0, batch=None):
    """Batches such that GLOBAL_BATCH samples make a step, however many ranks share them.

    With ``batch``, that many on each rank, as in published scripts: more ranks make fewer steps.
    """
    batch = batch or (GLOBAL_BATCH if split else GLOBAL_BATCH // accelerator.num_processes)
    return DataLoader(
        infobatch.Indexed(data),
        batch,
        sampler=pruner.sampler,
        collate_fn=infobatch.with_index(),
        drop_last=drop_last,
        num_workers=workers,
        # Forking beside gloo's threads may deadlock in Python 3.11, once in hundreds: fork less often.
        persistent_workers=workers > 0,
        generator=torch.Generator(),  # an iteration draws a seed, which must not disturb dropout
    )


def drive(accelerator, *, split, drop_last, workers, asks=lambda accelerator: True, **_):
    """Losses that depend on sample and epoch alone."""
    pruner = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
    loader = accelerator.prepare(
        loader_of(
            pruner,
            Numbered(SIZE),
            accelerator,
            split=split,
            drop_last=drop_last,
            workers=workers,
        )
    )
    plans, visits, lengths, progress = [], [], [], []
    for epoch in range(EPOCHS):
        visited, steps = [], 0
        for index, (x, _) in loader:
            assert torch.equal(index, x.long())
            pruner.update(loss_of(x, epoch), index=index)
            if asks(accelerator):
                len(loader)  # a log line of the main process: the others must not wait for it
            progress.append(list(pruner.progress))
            visited += index.tolist()
            steps += 1
        plans.append(pruner.plan.order)
        visits.append(visited)
        lengths.append((len(loader) if asks(accelerator) else None, steps))
    before_the_end = [(e.planned, e.made, e.unscored) for e in pruner.savings.epochs]
    pruner.set_epoch(EPOCHS)
    return {
        "plans": plans,
        "visits": visits,
        "lengths": lengths,
        "progress": progress,
        "scores": pruner.scores,
        "passes": [(e.planned, e.made, e.unscored) for e in pruner.savings.epochs],
        "before_the_end": before_the_end,
    }


def dealings(out):
    """Every way of dealing out batches; then with a progress bar on the main process only."""
    results = [drive(accelerated(o["dispatch"], o["split"], o["even"]), **o) for o in DEALINGS]
    for dispatch in (False, True):
        results.append(
            drive(
                accelerated(dispatch),
                split=False,
                drop_last=False,
                workers=0,
                asks=lambda accelerator: accelerator.is_main_process,
            )
        )
    return results


def problem(size=SIZE):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 6, generator=generator)
    y = x.sum(1) + torch.randn(size, generator=generator) ** 3
    return TensorDataset(x, y)


def linear(optimizer, total):
    """As transformers builds it: a function, which torch does not save."""
    return LambdaLR(optimizer, lambda step: min(step / 4, max(total - step, 0) / (total - 4)))


def one_cycle(optimizer, total):
    return OneCycleLR(optimizer, max_lr=0.01, total_steps=total)


class Training:
    """A whole training script: model, schedule, checkpoints; ``steps`` is a trace of it."""

    def __init__(
        self,
        *,
        dispatch=None,
        split=False,
        drop_last=False,
        workers=0,
        accumulate=1,
        batch=None,
        build=one_cycle,
        given=False,
    ):
        torch.manual_seed(1)
        self.accelerator = accelerated(dispatch, split, accumulate=accumulate)
        self.pruner = infobatch.Pruner(SIZE, EPOCHS, delta=0.7)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(DROPOUT), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        options = {"split": split, "drop_last": drop_last, "workers": workers, "batch": batch}
        loader = loader_of(self.pruner, problem(), self.accelerator, **options)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.steps_per_epoch = -(-len(self.loader) // accumulate)
        self.inner = build(self.optimizer, EPOCHS * self.steps_per_epoch)
        said = {"steps_per_epoch": self.steps_per_epoch} if given else {}
        self.scheduler = infobatch.paced(self.inner, self.pruner, **said)
        self.accelerator.register_for_checkpointing(self.pruner, self.scheduler)
        self.steps, self.gradients, self.epoch_ends, self.rates = [], [], [], {}

    def run(self, epochs, *, says_epoch=False, save_at=(), folder=None):
        """Train; save and stop after some number of steps, or between epochs at ("end", epoch)."""
        batches = 0
        for epoch in epochs:
            if says_epoch:
                self.loader.set_epoch(epoch)
            for index, (x, y) in self.loader:
                with self.accelerator.accumulate(self.model):
                    losses = (self.model(x).squeeze(1) - y) ** 2
                    self.accelerator.backward(self.pruner.update(losses, index=index))
                    if self.accelerator.sync_gradients:
                        parts = [p.grad.flatten() for p in self.model.parameters()]
                        self.gradients.append(torch.cat(parts).clone())
                    self.optimizer.step()
                    if self.accelerator.sync_gradients:
                        self.scheduler.step()
                    self.optimizer.zero_grad()
                self.steps.append((epoch, index.tolist(), self.scheduler.get_last_lr()[0]))
                batches += 1
                if batches in save_at:
                    self.accelerator.save_state(folder)
                    return epoch
            self.epoch_ends.append(self.inner.last_epoch)
            self.rates[epoch] = self.scheduler.get_last_lr()[0]
            if ("end", epoch) in save_at:
                self.accelerator.save_state(folder)
                return epoch + 1
        return None

    def outcome(self):
        self.pruner.set_epoch(self.pruner.epoch + 1)  # bring the ranks' losses together
        model = self.accelerator.unwrap_model(self.model)
        return {
            "weights": torch.cat([p.detach().flatten() for p in model.parameters()]),
            "scores": self.pruner.scores,
            "passes": [(e.epoch, e.planned, e.made) for e in self.pruner.savings.epochs],
            "steps": self.steps,
            "gradients": self.gradients,
            "epoch_ends": self.epoch_ends,
            "rates": self.rates,
            "steps_per_epoch": self.steps_per_epoch,
        }


def straight(**options):
    training = Training(**options)
    training.run(range(EPOCHS))
    return training.outcome()


def interrupted(at, folder, *, says_epoch=False, **options):
    """Stop, throw everything away, load and continue."""
    first = Training(**options)
    reached = first.run(range(EPOCHS), says_epoch=says_epoch, save_at=(at,), folder=folder)
    assert reached is not None
    first.accelerator.wait_for_everyone()  # the main process writes
    second = Training(**options)
    second.accelerator.load_state(folder)
    # A loop that counts by itself may come back to an epoch of which nothing is left; only
    # Accelerate's dispatcher cannot stand an empty iteration.
    by_itself = says_epoch and not options.get("dispatch")
    second.run(range(reached if by_itself else second.pruner.epoch, EPOCHS), says_epoch=says_epoch)
    outcome = second.outcome()
    outcome["steps"] = first.steps + outcome["steps"]
    return outcome


# In mid-epoch, with an epoch's last step (12 and 20, with the rest dropped), between epochs.
STOPS = [3, 12, 13, 15, 20, ("end", 0), ("end", 1), ("end", 2)]
DEALT = [
    {"dispatch": False, "split": False},
    {"dispatch": True, "split": False},
    {"dispatch": False, "split": True, "workers": 2},
    {"dispatch": True, "split": True},
]


TRAINED = [
    {"dispatch": dispatch, "split": split, "drop_last": drop_last, "accumulate": accumulate}
    for dispatch, split in product([False, True], repeat=2)
    for drop_last, accumulate in [(True, 1), (False, 3), *([] if split else [(True, 3)])]
]


def models(out):
    """Gradients and schedules; every way of dealing out batches, and accumulation."""
    return [straight(**options) for options in TRAINED]


def resumes(out):
    """Without padding (drop_last), stopping changes nothing."""
    return _resumes(out, DEALT[:2], [12, 15, ("end", 0)])


def all_resumes(out):
    return _resumes(out, DEALT, STOPS)


def _resumes(out, ways, stops):
    return [
        (
            straight(drop_last=True, **options),
            [
                interrupted(
                    at, out / f"{options}-{at}-{says}", says_epoch=says, drop_last=True, **options
                )
                for at in stops
                for says in (False, True)
            ],
        )
        for options in ways
    ]


# Resuming with another number of ranks: each has batches of 8, so two make half as many steps.
OTHER_RANKS = {"batch": 8, "given": True}
BUILDS = {"linear": linear, "one-cycle": one_cycle}
SAVED_AT = [3, 16, ("end", 0), ("end", 1)]


def saved_for_others(out):
    """Interrupted runs, for another number of ranks to continue."""
    for name, build in BUILDS.items():
        for at in SAVED_AT:
            training = Training(build=build, **OTHER_RANKS)
            assert (
                training.run(range(EPOCHS), save_at=(at,), folder=out / f"{name}-{at}") is not None
            )
            training.accelerator.wait_for_everyone()


def continued_from_others(out):
    """The same runs, continued; and what is said without the number of steps."""
    outcomes = {}
    for name, build in BUILDS.items():
        straight_run = straight(build=build, **OTHER_RANKS)
        for at in SAVED_AT:
            training = Training(build=build, **OTHER_RANKS)
            training.accelerator.load_state(out / f"{name}-{at}")
            training.run(range(training.pruner.epoch, EPOCHS))
            outcomes[f"{name}-{at}"] = (straight_run, training.outcome())
    training = Training(build=linear, batch=8)
    try:
        training.accelerator.load_state(out / f"linear-{('end', 1)}")
    except ValueError as error:
        outcomes["error"] = str(error)
    return outcomes


def other_ranks(out):
    """Two ranks continue what one saved, and save for one."""
    outcomes = continued_from_others(out / "one")
    saved_for_others(out / "two")
    return outcomes


def misuse(out):
    """What is said to who forgets the index, or to prepare the loader."""
    errors = []
    for dispatch in (False, True):
        accelerator = accelerated(dispatch)
        train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS)
        loader = accelerator.prepare(DataLoader(train_data, 4, sampler=train_data.sampler))
        try:
            for x, _ in loader:
                train_data.update(loss_of(x, 0))
        except RuntimeError as error:
            errors.append(str(error))
    pruner = infobatch.Pruner(SIZE, EPOCHS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for index, (x, _) in loader_of(pruner, Numbered(SIZE), accelerator):
            pruner.update(loss_of(x, 0), index=index)
        pruner.set_epoch(1)
    return {"errors": errors, "warnings": [str(warning.message) for warning in caught]}


def broken_off(out):
    """Accelerate's own counter stands still when a loop breaks off; the epochs continue all the same."""
    results = []
    for dispatch in (False, True):
        accelerator = accelerated(dispatch)
        pruner = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
        loader = accelerator.prepare(loader_of(pruner, Numbered(SIZE), accelerator))
        next(iter(loader))  # a look is no epoch
        epochs = []
        for epoch in range(EPOCHS):
            for step, (index, (x, _)) in enumerate(loader):
                pruner.update(loss_of(x, epoch), index=index)
                epochs.append(pruner.epoch)
                if epoch in (0, 2) and step == 3:
                    break
        pruner.set_epoch(EPOCHS)
        results.append({"epochs": epochs, "made": [e.made for e in pruner.savings.epochs]})
    return results


def habits(out):
    """Both, for one start of the processes."""
    return {"misuse": misuse(out), "broken_off": broken_off(out)}


def evaluated(out):
    """A script that ends as docs/accelerate.md says: whether its model was freed before its group."""
    training = Training()
    training.run(range(EPOCHS))
    accelerator, model, optimizer, loader = (
        vars(training).pop(name) for name in ("accelerator", "model", "optimizer", "loader")
    )
    evaluation = accelerator.prepare(DataLoader(problem(), GLOBAL_BATCH))
    with torch.no_grad():
        gathered = [accelerator.gather_for_metrics((model(x), y)) for x, y in evaluation]
    watched = weakref.ref(model)
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
    freed = watched() is None
    accelerator.end_training()
    return {"evaluated": sum(len(y) for _, y in gathered), "freed": freed}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("error", UserWarning)
    folder = Path(sys.argv[2])
    result = globals()[sys.argv[1]](folder)
    torch.save(result, folder / f"rank-{os.environ['RANK']}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()
