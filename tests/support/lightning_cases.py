"""What the ranks of a real process group do; started by test_lightning_processes.py through torchrun.

    torchrun … lightning_cases.py CASE OUT

Each rank leaves what it saw in OUT/rank-K.pt.
"""

import os
import sys
import warnings
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.integrations.lightning import InfoBatchCallback

SIZE, EPOCHS, GLOBAL_BATCH = 103, 4, 16


def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE, 6, generator=generator)
    y = x.sum(1) + torch.randn(SIZE, generator=generator) ** 3
    return TensorDataset(x, y, torch.arange(SIZE))


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def pruned():
    return infobatch.InfoBatch(problem(), EPOCHS, delta=1.0, seed=3)


def per_rank_loader(train_data, ranks, workers=0):
    size = GLOBAL_BATCH // ranks
    return DataLoader(train_data, size, sampler=train_data.sampler, num_workers=workers)


class Module(LightningModule):
    def __init__(self, train_data):
        super().__init__()
        self.train_data = train_data
        self.model = network()
        self.visits, self.plans, self.validated, self.estimate = {}, {}, [], None

    def training_step(self, batch, batch_idx):
        x, y, index = batch
        self.visits.setdefault(self.current_epoch, []).append(index.tolist())
        loss = self.train_data.update((self.model(x).squeeze(1) - y) ** 2)
        self.plans[self.train_data.epoch] = self.train_data.plan.order
        return loss

    def validation_step(self, batch, batch_idx):
        self.validated.append((self.current_epoch, len(batch[2])))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        self.estimate = self.trainer.estimated_stepping_batches
        schedule = OneCycleLR(optimizer, 0.02, total_steps=self.estimate)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Results(Callback):
    """Bring the ranks' scores together while the group stands."""

    def on_train_end(self, trainer, pl_module):
        pl_module.train_data.set_epoch(EPOCHS)


def train(out, ckpt_path=None, ranks=2, **options):
    train_data = pruned()
    module = Module(train_data)
    saves = ModelCheckpoint(out, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu",
        devices=ranks,
        max_epochs=EPOCHS,
        callbacks=[Results(), InfoBatchCallback(train_data), saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )
    loader = per_rank_loader(train_data, ranks, workers=options.pop("workers", 0))
    trainer.fit(module, loader, DataLoader(problem(), 64), ckpt_path=ckpt_path)
    return {
        "weights": torch.cat([p.detach().flatten() for p in module.parameters()]),
        "scores": train_data.scores,
        "savings": str(train_data.savings),
        "plans": module.plans,
        "visits": module.visits,
        "validated": module.validated,
        "estimate": module.estimate,
        "last": module.lr_schedulers().last_epoch,
        "steps": trainer.global_step,
    }


def ddp(out):
    """Train through; then again from a checkpoint in the middle of a pruned epoch."""
    whole = train(out, strategy="ddp")
    resumed = train(out / "again", ckpt_path=str(out / "step=9.ckpt"), strategy="ddp")
    return {"whole": whole, "resumed": resumed}


def fabric_epochs(parts, path=None, stop=None):
    """A Fabric loop, with a checkpoint after one of its steps."""
    fabric, train_data, loader, model, optimizer = parts
    visits, step = {}, 0
    for epoch in range(train_data.epoch, EPOCHS):
        for x, y, index in loader:
            loss = train_data.update((model(x).squeeze(1) - y) ** 2)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            visits.setdefault(epoch, []).append(index.tolist())
            step += 1
            if path is not None and step == stop:
                state = {"model": model, "optimizer": optimizer, "data": train_data}
                fabric.save(path, state)
    return visits


def fabric_parts(ranks):
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    fabric.launch()
    train_data, model = pruned(), network()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))
    loader = per_rank_loader(train_data, ranks)
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
    return fabric, train_data, loader, model, optimizer


def fabric(out, ranks=2, stop=9):
    """The same, through Fabric."""
    parts = fabric_parts(ranks)
    whole = {"visits": fabric_epochs(parts, path=out / "fabric.ckpt", stop=stop)}
    resumed_parts = fabric_parts(ranks)
    runner, train_data, _, model, optimizer = resumed_parts
    runner.load(out / "fabric.ckpt", {"model": model, "optimizer": optimizer, "data": train_data})
    resumed = {"visits": fabric_epochs(resumed_parts)}
    for result, (_, data, _, net, _) in ((whole, parts), (resumed, resumed_parts)):
        data.set_epoch(data.epoch + 1)
        result["scores"], result["savings"] = data.scores, str(data.savings)
        result["weights"] = torch.cat([p.detach().flatten() for p in net.parameters()])
    return {"whole": whole, "resumed": resumed}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    folder = Path(sys.argv[2])
    result = globals()[sys.argv[1]](folder)
    torch.save(result, folder / f"rank-{os.environ['RANK']}.pt")
