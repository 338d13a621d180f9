# python examples/lightning_fashion.py
"""Lightning's Trainer with pruned epochs: the embedded Fashion-MNIST, one-cycle, a test after each epoch."""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.integrations.lightning import InfoBatchCallback
from infobatch.lab.datasets import fashion


class Classifier(LightningModule):
    def __init__(self, train_data):
        super().__init__()
        self.train_data = train_data
        self.model = fashion.small_cnn()
        self.criterion = nn.CrossEntropyLoss(reduction="none")

    def training_step(self, batch, batch_idx):
        x, y = batch
        return self.train_data.update(self.criterion(self.model(x), y))

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("accuracy", (self.model(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=12_000)
    arguments = parser.parse_args()

    seed_everything(0)
    train_x, train_y, test_x, test_y = fashion.load()
    data = TensorDataset(train_x[: arguments.samples], train_y[: arguments.samples])
    train_data = infobatch.InfoBatch(data, arguments.epochs)
    loader = DataLoader(train_data, batch_size=64, sampler=train_data.sampler)
    test = DataLoader(TensorDataset(test_x, test_y), batch_size=500)

    trainer = Trainer(max_epochs=arguments.epochs, callbacks=[InfoBatchCallback(train_data)])
    trainer.fit(Classifier(train_data), loader, test)
    print(f"test accuracy {trainer.callback_metrics['accuracy']:.1%}")


if __name__ == "__main__":
    main()
