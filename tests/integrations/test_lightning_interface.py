"""What infobatch.integrations.lightning uses of Lightning without being promised it.

If one of these fails with a new release of Lightning, read what became of the name before the version
that the integration requires is raised.
"""

import inspect

import pytest
import torch
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.fabric.wrappers import _FabricDataLoader
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops.fetchers import _PrefetchDataFetcher
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from torch.utils.data import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:DeprecationWarning"),
]


class Probe(Callback):
    def __init__(self):
        self.hooks = []

    def on_fit_start(self, trainer, pl_module):
        self.hooks.append("on_fit_start")
        (config,) = trainer.lr_scheduler_configs
        assert (config.interval, config.frequency, config.reduce_on_plateau) == ("step", 1, False)

    def on_train_start(self, trainer, pl_module):
        self.hooks.append("on_train_start")
        loop = trainer.fit_loop
        assert loop.restarting is False
        assert loop.restarted_on_epoch_end is False
        assert loop.epoch_loop.restarted_on_train_batch_end is False
        assert isinstance(loop._data_fetcher, _PrefetchDataFetcher)
        assert (loop._data_fetcher.length, loop._data_fetcher.done) == (2, False)
        assert loop._data_fetcher.batches == []  # nothing is fetched ahead
        assert loop._combined_loader.limits == [2]
        assert len(loop._combined_loader.flattened) == 1
        assert trainer.num_training_batches == loop.max_batches == 2
        assert trainer.val_check_batch == 2

    def on_train_epoch_start(self, trainer, pl_module):
        self.hooks.append("on_train_epoch_start")
        epochs = trainer.fit_loop.epoch_progress
        assert epochs.current.processed == epochs.total.processed == trainer.current_epoch

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.hooks.append("on_train_batch_start")
        assert trainer.fit_loop.epoch_loop.batch_progress.current.ready == batch_idx + 1

    def on_train_epoch_end(self, trainer, pl_module):
        self.hooks.append("on_train_epoch_end")
        assert trainer.fit_loop.epoch_loop._batches_that_stepped == trainer.global_step

    def on_train_end(self, trainer, pl_module):
        self.hooks.append("on_train_end")

    def on_fit_end(self, trainer, pl_module):
        self.hooks.append("on_fit_end")

    def teardown(self, trainer, pl_module, stage):
        self.hooks.append("teardown")


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def test_attributes_and_the_order_of_hooks():
    probe = Probe()
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, callbacks=[probe], enable_checkpointing=False, **options
    )
    assert trainer.overfit_batches == 0
    assert probe in trainer.callbacks
    assert trainer._data_connector._requires_distributed_sampler(DataLoader([1])) is False
    assert "use_distributed_sampler" in vars(trainer._accelerator_connector)
    trainer.fit(Module(), DataLoader(torch.ones(4, 1), 2))
    batches = ["on_train_batch_start"] * 2
    before = ["on_fit_start", "on_train_start", "on_train_epoch_start"]
    after = ["on_train_epoch_end", "on_train_end", "on_fit_end", "teardown"]
    assert probe.hooks == [*before, *batches, *after]


def uses(function, *texts):
    source = inspect.getsource(function)
    for text in texts:
        assert text in source, f"{function.__qualname__} no longer has {text!r}"


def test_the_loops_read_what_the_callback_writes():
    uses(
        _TrainingEpochLoop._should_check_val_fx,
        "(current_iteration + 1) % self.trainer.val_check_batch == 0",
    )
    uses(
        _TrainingEpochLoop._num_ready_batches_reached,
        "self.batch_progress.current.ready == self.trainer.num_training_batches",
        "self.batch_progress.is_last_batch",
    )
    uses(
        _TrainingEpochLoop.reset,
        "self.batch_progress.current.completed >= self.trainer.num_training_batches",
        "You're resuming from a checkpoint that ended before the epoch ended",
    )
    uses(
        _TrainingEpochLoop.on_run_start, "data_fetcher.fetched += self.batch_progress.current.ready"
    )
    uses(_FitLoop.on_advance_start, "_set_sampler_epoch(dl, self.epoch_progress.current.processed)")
    uses(
        Trainer.estimated_stepping_batches.fget,
        "self.fit_loop.setup_data()",
        "total_batches = self.num_training_batches",
    )
    uses(_FitLoop.on_save_checkpoint, 'state_dict["combined_loader"]')
    uses(_set_sampler_epoch, 'getattr(dataloader, "sampler", None)')
    uses(_FabricDataLoader.__iter__, "_set_sampler_epoch(self._dataloader, self._num_iter_calls)")
