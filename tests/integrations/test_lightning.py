"""Lightning's own Trainer with pruned epochs, against a plain PyTorch loop on the same data."""

import csv
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    Callback,
    LearningRateMonitor,
    ModelCheckpoint,
    RichProgressBar,
    StochasticWeightAveraging,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, StepLR
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import infobatch
from infobatch.integrations.lightning import InfoBatchCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*sampler has shuffling enabled:UserWarning"),
]
SIZE, BATCH, EPOCHS = 203, 16, 5
FULL = -(-SIZE // BATCH)


def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE, 6, generator=generator)
    return TensorDataset(x, x.sum(1) + torch.randn(SIZE, generator=generator) ** 3)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def pruned(epochs=EPOCHS):
    return infobatch.InfoBatch(problem(), epochs, seed=3)


def loader_of(train_data, workers=0, kind=DataLoader, **options):
    return kind(train_data, BATCH, sampler=train_data.sampler, num_workers=workers, **options)


def validation():
    return DataLoader(problem(), 64)


class Module(LightningModule):
    """The three lines in a module."""

    def __init__(self, train_data, scheduler=None, **config):
        super().__init__()
        self.train_data = train_data
        self.model = network()
        self.scheduler = scheduler
        self.config = config
        self.estimate = None

    def training_step(self, batch, batch_idx):
        x, y = batch
        losses = (self.model(x).squeeze(1) - y) ** 2
        return self.train_data.update(losses)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val", ((self.model(x).squeeze(1) - y) ** 2).mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        if self.scheduler is None:
            return optimizer
        self.estimate = self.trainer.estimated_stepping_batches
        scheduler = self.scheduler(optimizer, self.estimate)
        return [optimizer], [{"scheduler": scheduler, **self.config}]


@dataclass
class Watch(Callback):
    """Notes what a run does; before the pruner's callback in the user's list, so it must be moved."""

    plans: list = field(default_factory=list)
    epochs: list = field(default_factory=list)
    batches: list = field(default_factory=list)
    validated: list = field(default_factory=list)
    lengths: list = field(default_factory=list)
    rates: list = field(default_factory=list)
    steps: list = field(default_factory=list)

    def on_train_epoch_start(self, trainer, pl_module):
        self.lengths.append(trainer.num_training_batches)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        epoch = pl_module.train_data.epoch
        self.batches.append((trainer.current_epoch, batch_idx))
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        self.steps.append(trainer.global_step)
        if not self.epochs or self.epochs[-1] != epoch:
            self.epochs.append(epoch)
            self.plans.append(pl_module.train_data.plan.order)

    def on_validation_start(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.validated.append(self.batches[-1])

    def batches_of(self, epoch):
        return [batch for e, batch in self.batches if e == epoch]

    def validated_in(self, epoch):
        return [batch for e, batch in self.validated if e == epoch]


def trainer(*callbacks, epochs=EPOCHS, folder=None, **options):
    options = {"logger": False, "enable_progress_bar": False, **options}
    if not any(isinstance(callback, ModelCheckpoint) for callback in callbacks):
        options["enable_checkpointing"] = False
    return Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=list(callbacks),
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def fit(*callbacks, train_data=None, workers=0, kind=DataLoader, ckpt_path=None, **options):
    """Fit once with a watch; return the watch, the data and the module."""
    train_data = pruned() if train_data is None else train_data
    module_options = {
        key: options.pop(key) for key in ("scheduler", "interval", "frequency") if key in options
    }
    module = options.pop("module", Module)(train_data, **module_options)
    watch = Watch()
    run = trainer(watch, InfoBatchCallback(train_data), *callbacks, **options)
    run.fit(module, loader_of(train_data, workers, kind), validation(), ckpt_path=ckpt_path)
    module.watch, module.run = watch, run
    return module


def plain_loop(epochs=EPOCHS, accumulate=1):
    """The same training without Lightning."""
    train_data = pruned(epochs)
    loader = loader_of(train_data)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    plans = []
    for epoch in range(epochs):
        train_data.set_epoch(epoch)
        length = len(loader)
        for step, (x, y) in enumerate(loader, 1):
            loss = train_data.update((model(x).squeeze(1) - y) ** 2)
            (loss / accumulate).backward()
            if step % accumulate == 0 or step == length:
                optimizer.step()
                optimizer.zero_grad()
        plans.append(train_data.plan.order)
    return train_data, model, plans


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def same_run(module, train_data, model, plans):
    assert torch.equal(weights(module.model), weights(model))
    assert torch.equal(module.train_data.scores, train_data.scores)
    assert module.train_data.savings == train_data.savings
    assert len(module.watch.plans) == len(plans)
    assert all(map(torch.equal, module.watch.plans, plans))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_same_as_a_plain_loop(workers, accumulate):
    module = fit(workers=workers, accumulate_grad_batches=accumulate)
    plain = plain_loop(accumulate=accumulate)
    same_run(module, *plain)
    assert plain[0].savings.saved > 0
    kept = [len(plan) for plan in plain[2]]
    lengths = [-(-count // BATCH) for count in kept]
    assert module.watch.lengths == lengths
    assert min(lengths) < FULL
    # The last, incomplete accumulation of every epoch makes a step of its own.
    assert module.run.global_step == sum(-(-length // accumulate) for length in lengths)


def test_batch_sampler_and_manual_optimization():
    class Manual(Module):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()

    train_data = pruned()
    module, watch = Manual(train_data), Watch()
    loader = DataLoader(train_data, batch_sampler=train_data.batch_sampler(BATCH))
    trainer(watch, InfoBatchCallback(train_data)).fit(module, loader, validation())
    module.watch = watch
    same_run(module, *plain_loop())


def test_index_in_the_batch():
    """The form for collate functions that filter: a Pruner instead of an InfoBatch."""

    class Indexed(Module):
        def training_step(self, batch, batch_idx):
            index, (x, y) = batch
            return self.train_data.update((self.model(x).squeeze(1) - y) ** 2, index=index)

    pruner = infobatch.Pruner(SIZE, EPOCHS, seed=3)
    data = infobatch.Indexed(problem())
    loader = DataLoader(data, BATCH, sampler=pruner.sampler, collate_fn=infobatch.with_index())
    module, watch = Indexed(pruner), Watch()
    trainer(watch, InfoBatchCallback(pruner)).fit(module, loader, validation())
    plain, _, plans = plain_loop()
    assert all(map(torch.equal, watch.plans, plans))
    assert pruner.savings.saved == plain.savings.saved


# Validation.


@pytest.mark.parametrize("interval", [1.0, 0.5, 0.25])
def test_validation_at_fractions_of_every_epoch(interval):
    watch = fit(val_check_interval=interval).watch
    for epoch in range(EPOCHS):
        last = watch.batches_of(epoch)[-1]
        points = [int((last + 1) * k * interval) - 1 for k in range(1, int(1 / interval) + 1)]
        assert watch.validated_in(epoch) == points
        assert points[-1] == last


@pytest.mark.parametrize("interval", [FULL, 4, 5])
def test_validation_after_a_number_of_batches(interval):
    watch = fit(val_check_interval=interval).watch
    shorter = 0
    for epoch in range(EPOCHS):
        length = watch.lengths[epoch]
        shorter += length < interval
        points = list(range(interval, length + 1, interval))
        if not points or (FULL % interval == 0 and points[-1] != length):
            points.append(length)
        assert [batch + 1 for batch in watch.validated_in(epoch)] == points
    assert shorter or interval < FULL


def test_validation_across_epochs_and_every_other_epoch():
    watch = fit(val_check_interval=10, check_val_every_n_epoch=None).watch
    every = [number for number, _ in enumerate(watch.batches, 1) if number % 10 == 0]
    assert [watch.batches.index(batch) + 1 for batch in watch.validated] == every
    watch = fit(check_val_every_n_epoch=2).watch
    assert [epoch for epoch, _ in watch.validated] == [1, 3]


@pytest.mark.parametrize("limit", [4, 0.5, 2 * FULL])
@pytest.mark.parametrize("workers", [0, 2])
def test_limit_train_batches(limit, workers):
    module = fit(limit_train_batches=limit, workers=workers)
    for epoch, plan in enumerate(module.watch.plans):
        length = -(-len(plan) // BATCH)
        expected = min(limit, length) if isinstance(limit, int) else int(limit * length)
        assert len(module.watch.batches_of(epoch)) == expected
        assert module.watch.validated_in(epoch) == [expected - 1]
    assert module.train_data.savings.saved >= 0


# Steps and schedules.


def one_cycle(optimizer, steps):
    return OneCycleLR(optimizer, 0.1, total_steps=steps)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_per_step_schedule_ends_at_its_end(accumulate):
    module = fit(scheduler=one_cycle, interval="step", accumulate_grad_batches=accumulate)
    steps = EPOCHS * -(-FULL // accumulate)
    assert module.estimate == steps == module.run.estimated_stepping_batches
    assert module.run.global_step < steps
    assert module.lr_schedulers().last_epoch == steps
    # Each epoch advances it by a whole one: at its end the rate is that of the full data.
    parameters = [nn.Parameter(torch.zeros(1))]
    full = one_cycle(torch.optim.SGD(parameters, lr=0.01, momentum=0.9), steps)
    for epoch in range(EPOCHS):
        for _ in range(steps // EPOCHS):
            full.optimizer.step()
            full.step()
        last = module.watch.batches.index((epoch, module.watch.lengths[epoch] - 1))
        assert module.watch.rates[last] == full.get_last_lr()[0]


def test_schedule_with_limit_and_frequency():
    module = fit(scheduler=one_cycle, interval="step", limit_train_batches=0.5)
    assert module.lr_schedulers().last_epoch == module.estimate == EPOCHS * int(FULL * 0.5)
    module = fit(scheduler=lambda optimizer, _: StepLR(optimizer, 1), interval="step", frequency=4)
    assert module.lr_schedulers().last_epoch == EPOCHS * (FULL // 4)


def test_per_epoch_schedule_is_left_alone():
    module = fit(scheduler=lambda optimizer, _: StepLR(optimizer, 1, 0.5), interval="epoch")
    assert isinstance(module.lr_schedulers(), StepLR)
    assert module.lr_schedulers().last_epoch == EPOCHS


def test_learning_rate_monitor(tmp_path):
    logger = CSVLogger(tmp_path)
    fit(
        LearningRateMonitor("step"),
        scheduler=one_cycle,
        interval="step",
        logger=logger,
        log_every_n_steps=1,
    )
    rates = [float(row["lr-SGD"]) for row in metrics(logger) if row.get("lr-SGD")]
    assert len(rates) > EPOCHS


@pytest.mark.parametrize("steps", [1, FULL + 3, 4 * FULL])
def test_max_steps_counts_optimizer_steps(steps):
    """The run stops there, and a schedule built for it ends there."""
    module = fit(
        max_steps=steps, epochs=-1, scheduler=one_cycle, interval="step", train_data=pruned(8)
    )
    assert module.run.global_step == steps == module.estimate
    assert module.lr_schedulers().last_epoch == steps
    module = fit(max_steps=10 * steps * FULL, scheduler=one_cycle, interval="step")
    assert module.lr_schedulers().last_epoch == EPOCHS * FULL


# Progress bars and logs.


@pytest.mark.parametrize("kind", [TQDMProgressBar, RichProgressBar])
@pytest.mark.parametrize("first", [True, False])
def test_progress_bar_totals(kind, first, capsys):
    class Totals(Callback):
        def __init__(self):
            self.totals = []

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 0:
                self.totals.append(trainer.progress_bar_callback.train_progress_bar.total)

    train_data, totals = pruned(), Totals()
    callback = InfoBatchCallback(train_data)
    watch, bar = Watch(), kind()
    callbacks = [bar, callback, totals, watch] if first else [callback, bar, totals, watch]
    run = trainer(*callbacks, enable_progress_bar=True)
    run.fit(Module(train_data), loader_of(train_data), validation())
    assert totals.totals == watch.lengths
    assert min(watch.lengths) < FULL
    assert re.search(r"Saved \d+\.\d%", capsys.readouterr().out)


def metrics(logger):
    with Path(logger.log_dir, "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_logs(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    table, board = CSVLogger(tmp_path), TensorBoardLogger(tmp_path)
    wandb = WandbLogger(save_dir=tmp_path, offline=True)
    module = fit(logger=[table, board, wandb], folder=tmp_path)
    epochs = module.train_data.savings.epochs
    rows = [row for row in metrics(table) if row["infobatch/kept_fraction"]]
    assert [float(row["infobatch/kept_fraction"]) for row in rows] == [
        e.kept_fraction for e in epochs
    ]
    assert [int(row["epoch"]) for row in rows] == list(range(EPOCHS))
    pruning = [e.thresholds[-1] for e in epochs if e.thresholds]
    assert [
        float(row["infobatch/threshold"]) for row in rows if row["infobatch/threshold"]
    ] == pruning
    assert float(rows[-1]["infobatch/samples_saved"]) == module.train_data.savings.saved > 0
    curves = reload_board(board)
    assert len(curves.Scalars("infobatch/kept_fraction")) == EPOCHS
    assert curves.Scalars("infobatch/samples_saved")[-1].value == module.train_data.savings.saved
    summary = wandb.experiment.summary
    assert summary["infobatch/samples_saved"] == module.train_data.savings.saved
    wandb.experiment.finish()
    assert re.search(r"Saved \d+\.\d% of 1,015 sample passes", capsys.readouterr().out)


def test_the_forecast_is_logged_and_printed(tmp_path, capsys):
    table = CSVLogger(tmp_path)
    train_data = infobatch.InfoBatch(problem(), EPOCHS, policy="none", shadow=("mean", "random"))
    fit(train_data=train_data, logger=table, folder=tmp_path)
    rows = [row for row in metrics(table) if row["infobatch/forecast/mean/left_out"]]
    assert [float(row["infobatch/forecast/mean/left_out"]) for row in rows] == pytest.approx(
        [1 - epoch.kept_fraction for epoch in train_data.forecast().rules["mean"].epochs]
    )
    assert "infobatch/forecast/random/realised_noise" in rows[-1]
    assert str(train_data.forecast()) in capsys.readouterr().out


def reload_board(board):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    curves = accumulator.EventAccumulator(board.log_dir)
    curves.Reload()
    return curves


# Checkpoints.


def checkpoints(folder, **options):
    return ModelCheckpoint(folder, save_top_k=-1, filename="{epoch}-{step}", **options)


def rate(optimizer, steps):
    """A schedule that knows its length only through the estimate, which a checkpoint does not keep."""
    return LambdaLR(optimizer, lambda step: 1 - 0.9 * step / steps)


WHOLE = {
    "after batches": {"every_n_train_steps": 1},
    "after epochs": {"save_on_train_epoch_end": True},
    "after validation": {"save_on_train_epoch_end": False},
}


@pytest.mark.parametrize("when", WHOLE)
@pytest.mark.parametrize("workers", [0, 2])
def test_resume_is_exact(when, workers, tmp_path):
    options = {"scheduler": rate, "interval": "step", "accumulate_grad_batches": 2}
    if when == "after validation":
        options["val_check_interval"] = 0.5
    whole = fit(checkpoints(tmp_path, **WHOLE[when]), **options)
    paths = sorted(
        tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem.split("step=")[1].split("-")[0])
    )
    assert len(paths) >= EPOCHS
    every = 1 if workers == 0 else 7
    for path in paths[::every]:
        if when == "after batches" and saved_in_accumulation(path):
            continue  # Lightning keeps no gradients in a checkpoint
        part = fit(workers=workers, ckpt_path=path, **options)
        message = path.name
        assert torch.equal(weights(part.model), weights(whole.model)), message
        assert torch.equal(part.train_data.scores, whole.train_data.scores), message
        assert part.train_data.savings == whole.train_data.savings, message
        assert part.estimate == whole.estimate
        assert part.run.global_step == whole.run.global_step, message
        count = len(part.watch.batches)
        assert part.watch.batches == whole.watch.batches[len(whole.watch.batches) - count :], (
            message
        )
        assert part.watch.rates == whole.watch.rates[len(whole.watch.rates) - count :], message
        by_epoch = dict(zip(whole.watch.epochs, whole.watch.plans, strict=True))
        for epoch, plan in zip(part.watch.epochs, part.watch.plans, strict=True):
            assert torch.equal(plan, by_epoch[epoch])
        validated = len(part.watch.validated)
        assert (
            part.watch.validated == whole.watch.validated[len(whole.watch.validated) - validated :]
        )


def saved_in_accumulation(path):
    progress = torch.load(path, weights_only=True)["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    return progress["current"]["ready"] % 2 and not progress["is_last_batch"]


def test_resume_with_max_steps(tmp_path):
    """With max_steps Lightning counts an epoch too many after a resume; the data must not."""
    options = {"max_steps": 3 * FULL, "epochs": -1}
    whole = fit(checkpoints(tmp_path, save_on_train_epoch_end=True), **options)
    for path in sorted(tmp_path.glob("*.ckpt")):
        part = fit(ckpt_path=path, **options)
        assert torch.equal(weights(part.model), weights(whole.model)), path.name
        assert part.train_data.savings == whole.train_data.savings
        if part.watch.batches:  # Lightning leaves the count of a run that was over one short
            assert part.run.current_epoch == whole.run.current_epoch


@pytest.mark.parametrize("limit", [4, 0.5])
@pytest.mark.parametrize("workers", [0, 2])
def test_resume_with_limit(limit, workers, tmp_path):
    options = {"limit_train_batches": limit, "workers": workers}
    whole = fit(checkpoints(tmp_path, every_n_train_steps=1), **options)
    paths = sorted(tmp_path.glob("*.ckpt"))
    for path in paths if workers == 0 else paths[::6]:
        part = fit(ckpt_path=path, **options)
        assert torch.equal(weights(part.model), weights(whole.model)), path.name
        assert part.train_data.savings == whole.train_data.savings, path.name
        count = len(part.watch.batches)
        assert part.watch.batches == whole.watch.batches[len(whole.watch.batches) - count :]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_resume_with_a_stateful_loader(workers, tmp_path):
    """Lightning saves such a loader's position too; it must not count twice."""
    options = {"workers": workers, "kind": StatefulDataLoader}
    whole = fit(checkpoints(tmp_path, every_n_train_steps=5), **options)
    same_run(whole, *plain_loop())
    for path in sorted(tmp_path.glob("*.ckpt")):
        assert torch.equal(weights(fit(ckpt_path=path, **options).model), weights(whole.model))


def test_exception_in_mid_epoch(tmp_path):
    """The batch that failed is lost; the run continues after it."""

    class Fails(Module):
        def on_before_optimizer_step(self, optimizer):
            if self.global_step == FULL + 2 and self.fails:
                raise ArithmeticError("as planned")

        fails = True

    with pytest.raises(ArithmeticError, match="as planned"):
        fit(checkpoints(tmp_path, save_on_exception=True, every_n_epochs=1), module=Fails)
    path = max(tmp_path.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    Fails.fails = False
    part = fit(module=Fails, ckpt_path=path)
    assert part.train_data.savings.epochs[1].made == len(plain_loop()[2][1])
    assert [e.epoch for e in part.train_data.savings.epochs] == list(range(EPOCHS))


def test_a_checkpoint_is_plain_data(tmp_path):
    fit(checkpoints(tmp_path, every_n_train_steps=20))
    state = torch.load(next(iter(tmp_path.glob("*.ckpt"))), weights_only=True)["callbacks"]
    assert state["InfoBatchCallback"]["num_samples"] == SIZE


def test_evaluation_with_a_checkpoint_leaves_the_data_alone(tmp_path):
    module = fit(checkpoints(tmp_path, every_n_train_steps=FULL + 2))
    path = sorted(tmp_path.glob("*.ckpt"))[0]
    before = module.train_data.savings
    module.run.validate(module, validation(), ckpt_path=path, verbose=False)
    assert module.train_data.savings == before
    fresh = pruned()
    trainer(InfoBatchCallback(fresh)).validate(Module(fresh), validation(), verbose=False)
    assert fresh.pruner._course.is_fresh


# Other ways to train.


class Data(LightningDataModule):
    def __init__(self):
        super().__init__()
        self.made = 0

    def setup(self, stage):
        self.train_data = pruned()

    def train_dataloader(self):
        self.made += 1
        return loader_of(self.train_data)

    def val_dataloader(self):
        return validation()


class FromDataModule(Module):
    def __init__(self):
        super().__init__(None, rate, interval="step")

    def setup(self, stage):
        self.train_data = self.trainer.datamodule.train_data


def test_data_module(tmp_path):
    """The data is built in setup(), after the callback: it is found in the train loader."""

    def run(ckpt_path=None, **options):
        module, watch, data = FromDataModule(), Watch(), Data()
        callbacks = [watch, InfoBatchCallback(), checkpoints(tmp_path, every_n_train_steps=5)]
        trainer(*callbacks, **options).fit(module, data, ckpt_path=ckpt_path)
        module.watch, module.data = watch, data
        return module

    whole = run()
    _, _, plans = plain_loop()
    assert len(whole.watch.plans) == len(plans)
    for path in sorted(tmp_path.glob("*.ckpt")):
        part = run(path)
        assert torch.equal(weights(part.model), weights(whole.model)), path.name
        assert part.train_data.savings == whole.train_data.savings
    reloading = run(reload_dataloaders_every_n_epochs=1)
    assert torch.equal(weights(reloading.model), weights(whole.model))
    assert reloading.data.made == EPOCHS


def test_fast_dev_run_and_early_end():
    module = fit(fast_dev_run=True)
    assert module.run.global_step == 1
    module = fit(fast_dev_run=3)
    assert len(module.watch.batches) == 3


def test_fit_twice():
    module = fit(epochs=2)
    module.run.fit_loop.max_epochs = EPOCHS
    module.run.fit(module, loader_of(module.train_data), validation())
    assert module.watch.epochs == list(range(EPOCHS))
    assert [e.made for e in module.train_data.savings.epochs] == list(map(len, module.watch.plans))


def test_stochastic_weight_averaging():
    module = fit(StochasticWeightAveraging(0.005, swa_epoch_start=3))
    assert module.train_data.savings.saved > 0
    assert len(module.watch.lengths) == EPOCHS


# Errors.


def fails(error, text, *, loader, callback=None, **options):
    train_data = pruned()
    callback = InfoBatchCallback(train_data) if callback is None else callback
    with pytest.raises(error, match=text):
        trainer(callback, **options).fit(Module(train_data), loader(train_data), validation())


def test_errors():
    with pytest.raises(
        TypeError, match=r"InfoBatchCallback\(train_data\) got TensorDataset, expected"
    ):
        InfoBatchCallback(problem())
    fails(
        TypeError,
        "found a train loader with RandomSampler, expected the pruner's sampler. Build it with",
        loader=lambda data: DataLoader(data, BATCH, shuffle=True),
    )
    fails(
        ValueError,
        "found a train loader with the sampler of a different InfoBatch than its own",
        loader=lambda _: loader_of(pruned()),
    )
    fails(
        ValueError,
        "found 2 train loaders, expected one",
        loader=lambda data: CombinedLoader({"a": loader_of(data), "b": validation()}),
    )
    fails(
        ValueError,
        r"got Trainer\(overfit_batches=1\), which removes the sampler",
        loader=loader_of,
        overfit_batches=1,
    )


def test_another_number_of_epochs_is_said(caplog):
    with caplog.at_level(logging.INFO):
        fit(epochs=2)
    assert "Trainer(max_epochs=2), but train_data prunes for num_epochs=5" in caplog.text
