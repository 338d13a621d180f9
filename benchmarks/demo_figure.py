"""Draw the README's picture from a run of the demo: kept fractions, and losses around pruning.

python benchmarks/demo_figure.py demo-output docs/images/pruning.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt


def main(out: Path, picture: Path) -> None:
    figure, axes = plt.subplots(1, 4, figsize=(16, 3.6), layout="constrained")
    for arm in ("infobatch", "quantile"):
        history = json.loads((out / f"runs/{arm}-0/result.json").read_text())["history"]
        kept = [epoch["kept_fraction"] for epoch in history]
        axes[0].step(range(len(kept)), kept, where="mid", label=arm)
    axes[0].set(title="Kept fraction", xlabel="epoch", ylim=(0, 1.05))
    axes[0].legend()
    details = np.load(out / "runs/infobatch-0/details.npz")
    scores, order = details["snapshot_scores"], details["snapshot_order"]
    bins = np.linspace(0, float(np.quantile(scores, 0.99)), 40)
    stages = (
        (f"Losses before epoch {int(details['snapshot_epoch'])}", scores, None),
        ("after soft pruning", scores[order], None),
        ("after rescaling", scores[order], details["snapshot_weights"]),
    )
    for axis, (title, losses, weights) in zip(axes[1:], stages, strict=True):
        axis.hist(losses, bins=bins, weights=weights, color="tab:blue", alpha=0.8)
        if losses is not scores:
            axis.hist(scores, bins=bins, histtype="step", color="tab:red", ls="--")
        axis.axvline(float(scores.mean()), color="black", lw=1, label="mean")
        axis.set(title=title, xlabel="loss", yscale="log")
        axis.sharey(axes[1])
    axes[1].legend()
    temporary = picture.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=110)
    temporary.replace(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
