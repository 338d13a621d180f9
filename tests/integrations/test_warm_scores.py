"""The scores of one run prune the next from its first epoch on: by hand, and in every trainer."""

import pytest
import test_trl
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.integrations.lightning import InfoBatchCallback
from infobatch.integrations.transformers import InfoBatchConfig
from tiny_models import trainer as hugging_face

SIZE, BATCH, EPOCHS = 203, 16, 3
FULL = -(-SIZE // BATCH)


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch):
    monkeypatch.setenv("CI", "1")


def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE, 6, generator=generator)
    return TensorDataset(x, x.sum(1) + torch.randn(SIZE, generator=generator) ** 3)


def kept_by(scores):
    """What the mean rule keeps, given the scores of the run before."""
    below = int((scores < scores.double().mean()).sum())
    return len(scores) - below + round(below / 2)


def plain_run(rate, **options):
    torch.manual_seed(1)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    train_data = infobatch.InfoBatch(problem(), EPOCHS, delta=1.0, **options)
    loader = DataLoader(train_data, BATCH, sampler=train_data.sampler)
    schedule = infobatch.paced(
        OneCycleLR(optimizer, rate, total_steps=FULL * EPOCHS + 1), train_data
    )
    for _ in range(EPOCHS):
        for x, y in loader:
            train_data.update((model(x).squeeze(1) - y) ** 2).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    assert schedule.last_epoch == FULL * EPOCHS
    return train_data


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet"])
def test_a_plain_loop(suffix, tmp_path):
    first = plain_run(0.01)
    first.export_scores(tmp_path / f"scores.{suffix}")
    second = plain_run(0.03, seed=1, initial_scores=tmp_path / f"scores.{suffix}")
    assert first.savings.epochs[0].planned == SIZE
    assert second.savings.epochs[0].planned == kept_by(first.scores) < SIZE
    assert second.savings.saved > first.savings.saved


class Module(LightningModule):
    def __init__(self, train_data):
        super().__init__()
        self.train_data, self.model = train_data, nn.Linear(6, 1)
        self.estimate, self.rates, self.lengths = None, [], []

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        self.lengths.append(self.trainer.num_training_batches)
        return self.train_data.update((self.model(x).squeeze(1) - y) ** 2)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        self.estimate = self.trainer.estimated_stepping_batches
        schedule = OneCycleLR(optimizer, 0.01, total_steps=self.estimate + 1)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def lightning_run(folder, **options):
    train_data = infobatch.InfoBatch(problem(), EPOCHS, delta=1.0, **options)
    module = Module(train_data)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=[InfoBatchCallback(train_data)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, DataLoader(train_data, BATCH, sampler=train_data.sampler))
    return module, trainer


@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:DeprecationWarning")
def test_lightning_builds_its_schedule_for_full_epochs(tmp_path):
    """The first epoch is a pruned one, and the number of steps is asked for before it."""
    first, _ = lightning_run(tmp_path)
    first.train_data.export_scores(tmp_path / "scores.npz")
    second, trainer = lightning_run(tmp_path, initial_scores=tmp_path / "scores.npz")
    assert first.estimate == second.estimate == FULL * EPOCHS
    planned = [epoch.planned for epoch in second.train_data.savings.epochs]
    assert planned[0] == kept_by(first.train_data.scores) < SIZE
    assert second.lengths[0] == -(-planned[0] // BATCH) < FULL
    assert trainer.global_step == sum(-(-samples // BATCH) for samples in planned)
    assert second.rates[-1] < 0.0005  # the schedule has come down, as it does with all data
    assert "setup_data" not in vars(trainer.fit_loop)


def test_hugging_face_trainer(tmp_path):
    first = hugging_face(tmp_path, infobatch=InfoBatchConfig(delta=1.0))
    first.train()
    first.pruner.export_scores(tmp_path / "scores.npz")
    warm = InfoBatchConfig(delta=1.0, initial_scores=tmp_path / "scores.npz")
    second = hugging_face(tmp_path, infobatch=warm, learning_rate=3e-3, seed=7)
    second.train()
    planned = [epoch.planned for epoch in second.pruner.savings.epochs]
    assert planned[0] == kept_by(first.pruner.scores) < 48
    assert second.state.epoch == 3.0
    assert second.lr_scheduler.get_last_lr()[0] == 0.0
    assert second.lr_scheduler.scheduler.last_epoch == 3 * 6
    assert second.pruner.savings.saved > first.pruner.savings.saved


def test_hugging_face_trainer_with_a_tensor_and_a_resume(tmp_path):
    scores = torch.rand(48)
    options = {"infobatch": InfoBatchConfig(delta=1.0, initial_scores=scores)}
    whole = hugging_face(tmp_path, **options, save_strategy="steps", save_steps=1)
    whole.train()
    resumed = hugging_face(tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert torch.equal(resumed.pruner.scores, whole.pruner.scores)
    assert str(resumed.pruner.savings) == str(whole.pruner.savings)
    assert whole.pruner.savings.epochs[0].planned == kept_by(scores)


def test_scores_of_other_data_raise(tmp_path):
    config = InfoBatchConfig(initial_scores=torch.rand(47))
    assert config == InfoBatchConfig()  # scores are data, not a setting
    with pytest.raises(
        ValueError, match=r"initial_scores got .*\(47,\), expected one number per sample"
    ):
        hugging_face(tmp_path, infobatch=config).train()
    with pytest.raises(ValueError, match=r"delta got 2"):
        InfoBatchConfig(delta=2, initial_scores=torch.rand(47))


def test_sft_trainer(tmp_path):
    """One epoch with another rate and new adapters: the case that cannot be pruned cold."""
    first = test_trl.trainer(tmp_path, infobatch=InfoBatchConfig(delta=1.0))
    first.train()
    first.pruner.export_scores(tmp_path / "scores.csv")
    warm = InfoBatchConfig(delta=1.0, initial_scores=tmp_path / "scores.csv")
    second = test_trl.trainer(
        tmp_path, infobatch=warm, num_train_epochs=1, learning_rate=3e-3, seed=3
    )
    second.train()
    assert second.pruner.savings.made == kept_by(first.pruner.scores) < 40
    assert second.lr_scheduler.get_last_lr()[0] == 0.0
