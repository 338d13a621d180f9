"""Trainings that lack what Lightning needs for pruned epochs, in one process or in several.

    torchrun … lightning_unattended.py CASE OUT

Each rank writes the error that it got to OUT/rank-K.txt.
"""

import os
import sys
import warnings
from pathlib import Path

from lightning.fabric import Fabric
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

import lightning_cases


def quiet_trainer(**options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "num_sanity_val_steps": 0, "accelerator": "cpu"}
    return Trainer(max_epochs=lightning_cases.EPOCHS, **(quiet | options))


def ddp():
    train_data = lightning_cases.pruned()
    trainer = quiet_trainer(devices=2, strategy="ddp")
    module = lightning_cases.Module(train_data)
    trainer.fit(module, lightning_cases.per_rank_loader(train_data, 2))


def fabric():
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    train_data = lightning_cases.pruned()
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    next(iter(fabric.setup_dataloaders(loader)))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    try:
        globals()[sys.argv[1]]()
        error = "no error"
    except RuntimeError as caught:
        error = str(caught)
    Path(sys.argv[2], f"rank-{os.environ['RANK']}.txt").write_text(error)
