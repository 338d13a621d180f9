"""What pruning by key saves end to end, on archives of JPEG images: reading, decoding, training.

    python benchmarks/streamed.py [--images 4000] [--epochs 8] [--repeats 3] [--out FILE]

Images of the embedded subset of Fashion-MNIST, enlarged to 128 × 128 colour JPEGs in WebDataset archives,
are decoded, shrunk to 32 × 32 and given to a small network. Three arms train in turn, once per repeat with
the same seed: all data; ``auto`` that chooses before decoding; ``auto`` that chooses after it, which reads
and decodes everything. Times are those of the processor (one thread), by stage; the figures to read are the
ratios to all data.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from torch import nn

import infobatch
from infobatch.files import write_atomically
from infobatch.lab.datasets import fashion
from infobatch.lab.run.machine import versions

PER_ARCHIVE, BATCH, RATE = 500, 64, 0.1
ARMS = ("full", "keyed", "after_decoding")
Times = dict[str, float]


def write_archives(folder: Path, count: int) -> list[str]:
    images, labels, _, _ = fashion.load()
    low, high = images.min(), images.max()
    for start in range(0, count, PER_ARCHIVE):
        with wds.TarWriter(str(folder / f"{start:06d}.tar")) as archive:
            for number in range(start, min(start + PER_ARCHIVE, count)):
                pixels = ((images[number, 0] - low) / (high - low) * 255).numpy().astype(np.uint8)
                picture = Image.fromarray(pixels).convert("RGB").resize((128, 128))
                file = io.BytesIO()
                picture.save(file, "jpeg", quality=90)
                label = str(int(labels[number]))
                archive.write({"__key__": f"{number:06d}", "jpg": file.getvalue(), "cls": label})
    return [str(path) for path in sorted(folder.glob("*.tar"))]


class Clock:
    """Processor time by stage: what a stage takes, without the stages that it draws from."""

    def __init__(self) -> None:
        self.spent: Times = defaultdict(float)

    def stage(self, name: str):  # type: ignore[no-untyped-def]
        """A pipeline stage that charges everything before it, less what was charged already."""

        def timed(source):  # type: ignore[no-untyped-def]
            iterator = iter(source)
            while True:
                before, began = sum(self.spent.values()), time.process_time()
                item = next(iterator, None)
                inner = sum(self.spent.values()) - before
                self.spent[name] += time.process_time() - began - inner
                if item is None:
                    return
                yield item

        return timed


def decode(sample: dict[str, object]) -> tuple[str, torch.Tensor, int]:
    picture = Image.open(io.BytesIO(sample["jpg"])).convert("RGB").resize((32, 32))  # type: ignore[arg-type]
    pixels = torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 128 - 1
    return str(sample["__key__"]), pixels, int(sample["cls"])  # type: ignore[call-overload]


def pipeline(urls: list[str], arm: str, keeps: object, clock: Clock) -> wds.WebDataset:
    data = wds.WebDataset(urls, shardshuffle=len(urls), seed=0).compose(clock.stage("reading"))
    if arm == "keyed":
        data = data.select(keeps).compose(clock.stage("choosing"))
    data = data.map(decode).compose(clock.stage("decoding"))
    if arm == "after_decoding":
        data = data.select(lambda item: keeps(item[0])).compose(clock.stage("choosing"))
    return data.shuffle(1000, seed=0).batched(BATCH).compose(clock.stage("decoding"))


def network() -> nn.Module:
    model = fashion.small_cnn(16)
    model[0] = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
    return model


def train(urls: list[str], arm: str, epochs: int, seed: int) -> dict[str, object]:
    torch.manual_seed(seed)
    policy = "none" if arm == "full" else "auto"
    pruner = infobatch.KeyedPruner(epochs, policy=policy, seed=seed)
    model, clock = network(), Clock()
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    data = pipeline(urls, arm, pruner.keeps, clock)
    for epoch in range(epochs):
        with charged(clock, "pruning"):
            pruner.set_epoch(epoch)
        for keys, x, y in data:
            with charged(clock, "training"):
                losses = nn.functional.cross_entropy(model(x), torch.as_tensor(y), reduction="none")
                loss = losses.mean() if arm == "full" else pruner.update(losses, key=keys)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        schedule.step()
    return {"seconds": dict(clock.spent), "accuracy": accuracy(model), **counted(pruner)}


class charged:  # noqa: N801 - read as a statement
    """Charges a block to a stage."""

    def __init__(self, clock: Clock, name: str) -> None:
        self.clock, self.name = clock, name

    def __enter__(self) -> None:
        self.began = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.clock.spent[self.name] += time.process_time() - self.began


def counted(pruner: infobatch.KeyedPruner) -> dict[str, object]:
    savings = pruner.savings
    noise = [passes.added_noise for passes in savings.epochs]
    return {"passes_saved": savings.fraction, "added_noise": noise}


def accuracy(model: nn.Module) -> float:
    _, _, images, labels = fashion.load()
    low, high = images.min(), images.max()
    pixels = ((images - low) / (high - low) * 255).clamp(0, 255)
    x = nn.functional.interpolate(pixels, size=32, mode="bilinear").expand(-1, 3, -1, -1)
    model.eval()
    with torch.no_grad():
        return float((model(x / 128 - 1).argmax(1) == labels).float().mean())


def summary(runs: dict[str, list[dict[str, object]]]) -> dict[str, dict[str, float]]:
    """The medians over repeats of each stage's seconds, and of the ratio to all data."""
    rows: dict[str, dict[str, float]] = {}
    for arm, records in runs.items():
        stages = {stage for record in records for stage in record["seconds"]}  # type: ignore[attr-defined]
        rows[arm] = {
            stage: statistics.median(record["seconds"].get(stage, 0.0) for record in records)  # type: ignore[attr-defined]
            for stage in sorted(stages)
        }
        ratios = [
            sum(record["seconds"].values()) / sum(full["seconds"].values())  # type: ignore[attr-defined]
            for record, full in zip(records, runs["full"], strict=True)
        ]
        rows[arm] |= {
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
        }
        rows[arm]["passes_saved"] = statistics.median(r["passes_saved"] for r in records)  # type: ignore[type-var]
        rows[arm]["accuracy"] = statistics.mean(r["accuracy"] for r in records)  # type: ignore[type-var]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "unclosed file", ResourceWarning)
    runs: dict[str, list[dict[str, object]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        urls = write_archives(Path(folder), arguments.images)
        for seed in range(arguments.repeats):
            for arm in ARMS:
                runs[arm].append(train(urls, arm, arguments.epochs, seed))
                print(arm, seed, json.dumps(runs[arm][-1]), flush=True)
    results = {
        "command": f"python benchmarks/streamed.py {' '.join(sys.argv[1:])}".rstrip(),
        "versions": {**versions(), "webdataset": wds.__version__},
        "threads": 1,
        "seeds": list(range(arguments.repeats)),
        "images": arguments.images,
        "epochs": arguments.epochs,
        "summary": summary(runs),
        "runs": runs,
    }
    print(json.dumps(results["summary"], indent=1))
    if arguments.out:
        text = json.dumps(results, indent=1) + "\n"
        write_atomically(arguments.out, lambda path: path.write_text(text))


if __name__ == "__main__":
    main()
