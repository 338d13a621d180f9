"""The same callback in scripts that import pytorch_lightning, whose classes are not lightning's."""

import lightning.pytorch
import pytest
import pytorch_lightning
import torch
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

import lightning_cases
from infobatch.integrations.lightning import InfoBatchCallback
from lightning_cases import EPOCHS, GLOBAL_BATCH, SIZE

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists:UserWarning"),
]


def fit(package, folder, *, callback=True, ckpt_path=None):
    """A training with one of the two packages alone, but for the callback."""

    class Module(package.LightningModule):
        def __init__(self, train_data):
            super().__init__()
            self.train_data, self.model = train_data, lightning_cases.network()
            self.validated = []

        def training_step(self, batch, batch_idx):
            x, y, _ = batch
            return self.train_data.update((self.model(x).squeeze(1) - y) ** 2)

        def validation_step(self, batch, batch_idx):
            self.validated.append(self.current_epoch)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
            steps = self.trainer.estimated_stepping_batches
            schedule = OneCycleLR(optimizer, 0.02, total_steps=steps)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    train_data = lightning_cases.pruned()
    module = Module(train_data)
    saves = package.callbacks.ModelCheckpoint(
        folder, filename="{step}", every_n_train_steps=9, save_top_k=-1
    )
    trainer = package.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=[saves, InfoBatchCallback(train_data)] if callback else [saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    loader = DataLoader(train_data, GLOBAL_BATCH, sampler=train_data.sampler)
    trainer.fit(module, loader, DataLoader(lightning_cases.problem(), 64), ckpt_path=ckpt_path)
    return {
        "weights": torch.nn.utils.parameters_to_vector(module.parameters()).detach(),
        "savings": str(train_data.savings),
        "validated": sorted(set(module.validated)),
        "last": module.lr_schedulers().last_epoch,
    }


def test_it_trains_validates_paces_saves_and_resumes_as_with_lightning(tmp_path):
    assert pytorch_lightning.Trainer is not lightning.pytorch.Trainer
    expected = fit(lightning.pytorch, tmp_path / "new")
    whole = fit(pytorch_lightning, tmp_path / "old")
    resumed = fit(pytorch_lightning, tmp_path / "old", ckpt_path=tmp_path / "old" / "step=9.ckpt")
    for result in (whole, resumed):
        assert torch.equal(result["weights"], expected["weights"])
        assert result["savings"] == expected["savings"]
        assert result["last"] == expected["last"] == EPOCHS * -(-SIZE // GLOBAL_BATCH)
    assert whole["validated"] == list(range(EPOCHS))


def test_without_the_callback_it_raises(tmp_path):
    with pytest.raises(RuntimeError, match=r"no InfoBatchCallback \(callbacks: ModelCheckpoint\)"):
        fit(pytorch_lightning, tmp_path, callback=False)
