# python examples/ray_fashion.py
"""Ray Train, two workers, on the embedded Fashion-MNIST; started again, it continues where it was stopped."""

import argparse
import tempfile
from pathlib import Path

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_model
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.lab.datasets import fashion


def train_on_a_worker(config: dict) -> None:
    torch.manual_seed(0)
    train_x, train_y, test_x, test_y = fashion.load()
    data = TensorDataset(train_x[: config["samples"]], train_y[: config["samples"]])
    train_data = infobatch.InfoBatch(data, config["epochs"])
    model = prepare_model(fashion.small_cnn())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parts = {"model": model, "optimizer": optimizer, "train_data": train_data}
    if checkpoint := train.get_checkpoint():
        saved = torch.load(f"{checkpoint.path}/state.pt", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    # Not prepare_data_loader(): this sampler hands each worker its share already.
    loader = DataLoader(train_data, batch_size=64, sampler=train_data.sampler)
    for _ in range(train_data.epoch, config["epochs"]):
        model.train()
        for x, y in loader:
            train_data.update(cross_entropy(model(x), y, reduction="none")).backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
        with tempfile.TemporaryDirectory() as folder:
            torch.save({n: part.state_dict() for n, part in parts.items()}, f"{folder}/state.pt")
            metrics = {"accuracy": accuracy, "savings": str(train_data.savings)}
            train.report(metrics, checkpoint=train.Checkpoint.from_directory(folder))


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--samples", type=int, default=None)
parser.add_argument("--storage", default=str(Path.cwd() / "ray-runs"))
options = vars(parser.parse_args())
ray.init(include_dashboard=False, num_cpus=3)
result = TorchTrainer(
    train_on_a_worker,
    train_loop_config=options,
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="fashion", storage_path=options["storage"]),
).fit()
print(f"test accuracy {result.metrics['accuracy']:.1%}\n{result.metrics['savings']}")
