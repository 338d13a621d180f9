"""Lightning without the callback raises an error when the first epoch begins, with it nothing happens."""

import os
import re
import subprocess
import sys

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader

import lightning_cases
import lightning_unattended
from infobatch.integrations.lightning import InfoBatchCallback
from lightning_unattended import quiet_trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]
MISSING = (
    r"Trainer.fit\(\) got a train loader with the sampler of an InfoBatch, but no InfoBatchCallback "
    r"\(callbacks: .*\).*Pass Trainer\(callbacks=\[InfoBatchCallback\(train_data\)\]\)"
)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fit_without_the_callback_raises(workers):
    train_data = lightning_cases.pruned()
    module = lightning_cases.Module(train_data)
    loader = lightning_cases.per_rank_loader(train_data, 1, workers)
    with pytest.raises(RuntimeError, match=MISSING):
        quiet_trainer().fit(module, loader, DataLoader(lightning_cases.problem(), 64))
    assert module.visits == {}, "no batch was trained on"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fit_with_the_callback_goes_through(workers):
    train_data = lightning_cases.pruned()
    module = lightning_cases.Module(train_data)
    loader = lightning_cases.per_rank_loader(train_data, 1, workers)
    trainer = quiet_trainer(callbacks=[InfoBatchCallback(train_data)])
    trainer.fit(module, loader, DataLoader(lightning_cases.problem(), 64))
    assert {epoch for epoch, _ in module.validated} == set(range(lightning_cases.EPOCHS))


@pytest.mark.parametrize("callback", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_that_shrink_need_no_callback(workers, callback):
    """Every epoch has as many batches as a whole one, so Lightning's arithmetic holds."""
    train_data = lightning_cases.pruned()
    module = lightning_cases.Module(train_data)
    batches = train_data.batch_sampler(lightning_cases.GLOBAL_BATCH, shrink="batch")
    loader = DataLoader(train_data, batch_sampler=batches, num_workers=workers)
    trainer = quiet_trainer(callbacks=[InfoBatchCallback(train_data)] if callback else [])
    trainer.fit(module, loader, DataLoader(lightning_cases.problem(), 64))
    assert {epoch for epoch, _ in module.validated} == set(range(lightning_cases.EPOCHS))
    assert trainer.global_step == lightning_cases.EPOCHS * len(loader)
    assert train_data.savings.saved > 0


class OwnLoop(LightningModule):
    """Lightning iterates other data; the pruned data is iterated in a loop of the user's own."""

    def __init__(self, train_data):
        super().__init__()
        self.model, self.train_data = lightning_cases.network(), train_data
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for x, y, _ in lightning_cases.per_rank_loader(self.train_data, 1):
            self.train_data.update((self.model(x).squeeze(1) - y) ** 2)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_a_loop_of_one_s_own_in_training_step_is_left_alone():
    train_data = lightning_cases.pruned()
    quiet_trainer().fit(OwnLoop(train_data), DataLoader(torch.zeros(1, 1)))
    assert len(train_data.savings.epochs) == lightning_cases.EPOCHS


def test_a_plain_loop_beside_an_imported_lightning_is_left_alone():
    train_data = lightning_cases.pruned()
    loader = lightning_cases.per_rank_loader(train_data, 1)
    assert len(next(iter(loader))[0]) == lightning_cases.GLOBAL_BATCH


def test_evaluation_with_the_training_s_loader_is_left_alone():
    train_data = lightning_cases.pruned()
    module = lightning_cases.Module(train_data)
    quiet_trainer().validate(module, lightning_cases.per_rank_loader(train_data, 1), verbose=False)
    assert sum(count for _, count in module.validated) == lightning_cases.SIZE


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
def test_a_search_for_the_learning_rate_without_callbacks_raises(tmp_path):
    """Tuner.lr_find takes the callbacks away, and would leave its losses as scores."""

    class Module(lightning_cases.Module):
        lr = 0.1

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    train_data = lightning_cases.pruned()
    trainer = quiet_trainer(callbacks=[InfoBatchCallback(train_data)], default_root_dir=tmp_path)
    loaders = lightning_cases.per_rank_loader(train_data, 1), DataLoader(lightning_cases.problem())
    with pytest.raises(RuntimeError, match=r"no InfoBatchCallback \(callbacks: _LRCallback\)"):
        Tuner(trainer).lr_find(Module(train_data), *loaders, num_training=20)
    assert train_data.scores.isnan().all()


TWICE = (
    r"wrapped the sampler of an InfoBatch in a DistributedSampler for 2 processes.*"
    r"use_distributed_sampler=False to Fabric.setup_dataloaders\(\)"
)


@pytest.mark.parametrize(
    ("case", "message"), [("ddp", MISSING), pytest.param("fabric", TWICE, marks=pytest.mark.slow)]
)
def test_samples_that_would_be_sharded_twice_raise_on_every_rank(case, message, tmp_path):
    script = lightning_unattended.__file__
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = subprocess.run(
        [*command, script, case, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    for rank in range(2):
        assert re.search(message, (tmp_path / f"rank-{rank}.txt").read_text())


def test_nothing_is_imported():
    code = (
        "import sys; before = {'lightning', 'pytorch_lightning', 'lightning_fabric'};"
        "from infobatch.loaders.lightning import check_lightning; check_lightning(same_length=False);"
        "assert not before & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
