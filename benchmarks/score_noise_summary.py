# python benchmarks/score_noise_summary.py
"""The tables of docs/results/score-noise.md, from what score_noise.py has stored."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

RECORDS = Path(__file__).parent / "results" / "score_noise"
TITLES = {
    "fashion": "5,000 images of Fashion-MNIST, shifted by a pixel and flipped",
    "cifar10": "10,000 images of CIFAR-10, cropped and flipped",
}


def rows(runs):
    """A row for each moment of the training, averaged over the seeds."""
    for share in runs[0]["measured"]:
        measurements = [run["measured"][share] for run in runs]
        noise = statistics.mean(measurement["noise_share"] for measurement in measurements)
        cells = [f"{float(share) * runs[0]['epochs']:.0f}", f"{noise:.0%}"]
        for smoothing in measurements[0]["scores"]:
            scores = [measurement["scores"][smoothing] for measurement in measurements]
            rank, misplaced = (
                statistics.mean(measurement[name] for measurement in scores)
                for name in ("rank_correlation", "misplaced")
            )
            cells.append(f"{rank:.2f} / {misplaced:.0%}")
        yield f"| {' | '.join(cells)} |"


def main():
    for file in sorted(RECORDS.glob("*.json"), key=lambda file: list(TITLES).index(file.stem)):
        runs = json.loads(file.read_text())["runs"]
        (epochs,) = {run["epochs"] for run in runs}
        kinds = [
            "last visit" if float(smoothing) == 0 else f"smoothing {smoothing}"
            for smoothing in runs[0]["measured"]["1.0"]["scores"]
        ]
        count = f"{len(runs)} seeds" if len(runs) > 1 else "one seed"
        print(f"{TITLES[file.stem]}, {epochs} epochs, {count}:\n")
        print(f"| after epoch | noise in one view's loss | {' | '.join(kinds)} |")
        print("|---" * (len(kinds) + 2) + "|")
        print("\n".join(rows(runs)))
        print()


if __name__ == "__main__":
    main()
