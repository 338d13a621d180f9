"""What ``infobatch.Probe`` adds to a forward and backward pass, as a ratio within one run.

    python benchmarks/probe_cost.py [--pairs 40] [--out FILE]

Steps with and without the probe alternate, on one thread; the figure is the median ratio of two
neighbouring steps, with the middle half of the ratios.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import infobatch
from infobatch.files import write_atomically
from infobatch.lab.datasets.fashion import small_cnn
from infobatch.lab.recipes.image_networks import NETWORKS
from infobatch.lab.run.machine import versions

RESULT = Path(__file__).parent / "results" / "probe_cost.json"
BATCH = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        measured("small CNN, 33,338 parameters", small_cnn(16), "3", (1, 14, 14), arguments.pairs),
        measured("ResNet, 78,042", NETWORKS["small_resnet"](), "3", (3, 32, 32), arguments.pairs),
        measured("ResNet, 308,650", NETWORKS["resnet"](), "3", (3, 32, 32), arguments.pairs),
        measured(
            "ViT, 311,146", NETWORKS["vit"](), "layers.layers.1", (3, 32, 32), arguments.pairs
        ),
    ]
    for row in rows:
        print(
            f"{row['network']:32} {row['layer']:16} {row['ratio']:.3f}  ({row['low']:.3f} to {row['high']:.3f})"
        )
    command = "python benchmarks/probe_cost.py"
    result = {"command": command, "batch_size": BATCH, "rows": rows, "versions": versions()}
    write_atomically(
        arguments.out, lambda path: path.write_text(json.dumps(result, indent=1) + "\n")
    )


def measured(
    name: str, model: nn.Module, layer: str, shape: tuple[int, ...], pairs: int
) -> dict[str, object]:
    """The cost of a probe of one layer."""
    torch.manual_seed(0)
    images, labels = torch.randn(BATCH, *shape), torch.randint(10, (BATCH,))
    twin = copy.deepcopy(model)
    probe = infobatch.Probe(twin.get_submodule(layer))

    def seconds(network: nn.Module, watch: Callable[[torch.Tensor], torch.Tensor]) -> float:
        began = time.process_time()
        losses = functional.cross_entropy(network(images), labels, reduction="none")
        watch(losses).mean().backward()
        network.zero_grad()
        return time.process_time() - began

    ratios = []
    for pair in range(pairs + 2):
        if pair % 2:
            probed, plain = seconds(twin, probe.watch), seconds(model, lambda losses: losses)
        else:
            plain, probed = seconds(model, lambda losses: losses), seconds(twin, probe.watch)
        if pair >= 2:  # the first steps allocate
            ratios.append(probed / plain)
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "network": name,
        "layer": layer,
        "ratio": round(middle, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "pairs": pairs,
    }


if __name__ == "__main__":
    main()
