# python benchmarks/detection_sizes_summary.py
"""The table of docs/results/score-noise.md about a detector, from what detection_sizes.py has stored.

With ``--of adam_norm`` or ``--of evaluation_norm`` it is about gradients in units of Adam's steps, or in evaluation mode.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np

RECORD = Path(__file__).parent / "results" / "detection_sizes.json"
TAU = 0.2  # the added noise at which shares to keep are compared: that of "auto"
CANDIDATES = {
    "root of the summed loss (`auto`)": lambda draw: np.sqrt(draw["loss"]),
    "summed loss": lambda draw: draw["loss"],
    "loss / own target scores (rules that rank)": lambda draw: (
        draw["loss"] / np.maximum(draw["target_scores"], 1)
    ),
    "sum of target scores": lambda draw: draw["target_scores"],
    "number of boxes": lambda draw: draw["boxes"],
    "root of the number of boxes": lambda draw: np.sqrt(draw["boxes"]),
    "class loss": lambda draw: draw["cls_loss"],
    "box and DFL loss": lambda draw: draw["box_loss"] + draw["dfl_loss"],
    "root of the class loss": lambda draw: np.sqrt(draw["cls_loss"]),
    "gradient at the head's outputs": lambda draw: draw["outputs"],
    "gradient at the class scores": lambda draw: draw["class_outputs"],
    "gradient at block 2": lambda draw: draw["layer_2"],
    "gradient at block 4": lambda draw: draw["layer_4"],
    "gradient at block 6": lambda draw: draw["layer_6"],
    "gradient at block 16": lambda draw: draw["layer_16"],
    "gradient, evaluation mode": lambda draw: draw["evaluation_norm"],
    "gradient, in Adam's steps": lambda draw: draw["adam_norm"],
    "gradient itself": lambda draw: draw["norm"],
}


def kept_share(truth, sizes):
    """The share to keep with p = min(1, c · size) for which Σ g²/p / Σ g² − 1 is TAU."""
    squares = truth**2 / (truth**2).sum()
    low, high = 0.0, 1 / sizes.min()
    for _ in range(50):
        middle = (low + high) / 2
        noise = (squares / np.minimum(1, middle * sizes)).sum() - 1
        low, high = (middle, high) if noise > TAU else (low, middle)
    return np.minimum(1, high * sizes).mean()


def compared(draws, truth, candidate):
    """Correlation of the logs; shares to keep by another draw, by the mean of the others, by the same."""
    truths, sizes = [draw[truth] for draw in draws], [candidate(draw) for draw in draws]
    # Where zooming has cut off all boxes, or nothing is detected yet, a size could be 0.
    sizes = [np.maximum(size, 1e-3 * size.mean()) for size in sizes]
    numbers = range(len(draws))
    pairs = itertools.permutations(numbers, 2)
    others = [np.mean([sizes[other] for other in numbers if other != draw], 0) for draw in numbers]
    return (
        np.mean([correlation(truths[draw], sizes[draw]) for draw in numbers]),
        np.mean([kept_share(truths[draw], sizes[other]) for draw, other in pairs]),
        np.mean([kept_share(truths[draw], others[draw]) for draw in numbers]),
        np.mean([kept_share(truths[draw], sizes[draw]) for draw in numbers]),
    )


def correlation(truth, sizes):
    return np.corrcoef(np.log(truth), np.log(sizes))[0, 1]


def by_draw(quantities):
    """For each draw its quantities by name."""
    columns = zip(*quantities.values(), strict=True)
    return [dict(zip(quantities, map(np.array, column), strict=True)) for column in columns]


def spread(draws, truth):
    return np.mean([draw[truth].std() / draw[truth].mean() for draw in draws])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--of", choices=("norm", "adam_norm", "evaluation_norm"), default="norm")
    truth = parser.parse_args().of
    record = json.loads(RECORD.read_text())
    runs = record["runs"]
    stages = {
        float(share) * runs[0]["epochs"]: [by_draw(run["stages"][share]) for run in runs]
        for share in runs[0]["stages"]
    }
    epochs = ", ".join(f"{epoch:.0f}" for epoch in stages)
    spreads = [np.mean([spread(draws, truth) for draws in seeds]) for seeds in stages.values()]
    count = f"{len(runs)} seeds" if len(runs) > 1 else "one seed"
    images = len(runs[0]["stages"]["0.5"]["norm"][0])
    print(
        f"{images} images of blood cells, zoomed, shifted and flipped, after {epochs} of "
        f"{runs[0]['epochs']} epochs, {count}, {record['draws']} draws; the spread of the gradients is "
        f"{' / '.join(f'{value:.2f}' for value in spreads)}:\n"
    )
    columns = (
        "correlation of logs",
        "share to keep, by another draw",
        f"by the mean of {record['draws'] - 1} others",
        "by the same draw",
    )
    print(f"| size | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for name, candidate in CANDIDATES.items():
        rows = [
            np.mean([compared(draws, truth, candidate) for draws in seeds], 0)
            for seeds in stages.values()
        ]
        correlations, *shares = zip(*rows, strict=True)
        cells = [" / ".join(f"{value:.2f}" for value in correlations)]
        cells += [" / ".join(f"{100 * value:.0f}" for value in share) + "%" for share in shares]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
