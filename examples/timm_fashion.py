# python examples/timm_fashion.py
"""timm's loader, MixUp, loss and schedule with pruned epochs: a ResNet on the embedded Fashion-MNIST."""

import argparse

import timm
import torch
from timm.loss import SoftTargetCrossEntropy
from timm.scheduler import create_scheduler_v2
from torch.utils.data import Dataset
from torchvision.transforms.functional import to_pil_image

import infobatch
from infobatch.integrations.timm import Mixup, create_train_loader, per_sample
from infobatch.lab.datasets import fashion


class Images(Dataset):
    """PIL images and labels, with the transform that timm's create_loader sets."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        low, high = images.aminmax()
        self.images = ((images - low) / (high - low) * 255).byte()
        self.labels = labels.tolist()
        self.transform = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        return self.transform(to_pil_image(self.images[index])), self.labels[index]


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--samples", type=int, default=fashion.NUM_TRAIN)
options = parser.parse_args()
torch.manual_seed(0)
train_x, train_y, _, _ = fashion.load()
train_data = infobatch.InfoBatch(
    Images(train_x[: options.samples], train_y[: options.samples]), options.epochs
)
image = {"input_size": (1, 28, 28), "mean": (0.29,), "std": (0.35,), "device": torch.device("cpu")}
loader = create_train_loader(train_data, batch_size=64, is_training=True, **image)
model = timm.create_model("resnet10t", in_chans=1, num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=10)
losses_of = per_sample(SoftTargetCrossEntropy(), mixup)
steps = {"step_on_epochs": False, "updates_per_epoch": len(loader)}
schedule, _ = create_scheduler_v2(optimizer, "cosine", num_epochs=options.epochs, **steps)
for epoch in range(options.epochs):
    for batch in loader:
        x, target = mixup(*batch)
        train_data.update(losses_of(model(x), target)).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step_update(train_data.virtual_step(steps["updates_per_epoch"]))
    score, rate = train_data.scores.nanmean(), optimizer.param_groups[0]["lr"]
    print(f"epoch {epoch}: mean score {score:.3f} (0 is learned), rate {rate:.4f}")
print(train_data.savings)
