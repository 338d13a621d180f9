# python benchmarks/score_noise.py --task fashion --seeds 3
"""How much of a score is the augmentation's noise, and what smoothing buys.

A task is trained on all data. At a quarter, half, three quarters and the whole of the training, the model is
frozen and every sample's loss is measured on several augmented views. Their mean is what a score should say.
Beside it: how much of the variance of a single view's loss is noise, and how well the scores that training
recorded (the last visit's loss, or moving averages of them) agree with that mean, in rank and in which samples
they place below the mean. Each finished seed is stored; run the same command to resume.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch.utils.data import DataLoader

from infobatch.files import write_atomically
from infobatch.lab.options import parse_options
from infobatch.lab.run.machine import hardware, versions
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.steps import per_sample
from infobatch.lab.run.training import Run
from infobatch.lab.task import load_task
from infobatch.tracks import Ema

RESULTS = Path(__file__).parent / "results" / "score_noise"
SMOOTHINGS = (0.0, 0.5, 0.7, 0.8, 0.9)  # 0 is the last visit's loss
SHARES = (0.25, 0.5, 0.75, 1.0)  # of the training, after which it is measured
VIEWS = 16
FIRST_SEED = 500


@torch.no_grad()
def losses_of_views(run, views):
    """Losses of shape (views, samples), each view augmented at random, by the model as it stands."""
    loader = DataLoader(run.train_set, 500, collate_fn=run.task.collate)
    run.model.eval()
    with torch.random.fork_rng():  # the training's own draws stay as they are
        torch.manual_seed(run.settings.seed)
        rows = [
            torch.cat([per_sample(run.task.losses(run.model, batch)).losses for batch in loader])
            for _ in range(views)
        ]
    run.model.train()
    return torch.stack(rows).double().numpy()


def compared(losses, recorded):
    """What a single view's loss is worth, and each kind of recorded score."""
    truth = losses.mean(0)
    noise = losses.var(0, ddof=1).mean()
    between = truth.var(ddof=1) - noise / len(losses)
    below = truth < truth.mean()
    scores = {
        str(smoothing): {
            "rank_correlation": float(stats.spearmanr(values, truth).statistic),
            "misplaced": float(((values < values.mean()) != below).mean()),
        }
        for smoothing, values in recorded.items()
    }
    return {"noise_share": float(noise / (noise + between)), "scores": scores}


def measure(task, seed, options):
    """Train once; return what was measured by the share of the training."""
    settings = settings_of(task, arm="full", seed=seed, options=options)
    averages, measured = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        run = Run(task, settings, Path(folder))
        moments = {round(share * run.epochs): share for share in SHARES}

        def look(standing):
            if not standing["epoch_ended"]:
                return
            scores = run.train_data.scores.numpy()
            for smoothing in SMOOTHINGS:
                old = {"ema": averages.get(smoothing, np.full_like(scores, np.nan))}
                averages[smoothing] = Ema(smoothing).fold(old, scores, standing["epoch"])["ema"]
            if standing["epoch"] in moments:
                share = moments[standing["epoch"]]
                measured[str(share)] = compared(losses_of_views(run, VIEWS), averages)

        result = run.train(look)
    return {"seed": seed, "metric": result.metric, "epochs": run.epochs, "measured": measured}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="fashion")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = parse_options(arguments.set)
    task = load_task(arguments.task, data=arguments.data, options=options)
    file = RESULTS / f"{arguments.task}.json"
    runs = json.loads(file.read_text())["runs"] if file.exists() else []
    file.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds):
        if any(run["seed"] == seed for run in runs):
            continue
        runs.append(measure(task, seed, options))
        chosen = "".join(f" --set {name}={value}" for name, value in options.items())
        record = {
            "command": f"python benchmarks/score_noise.py --task {arguments.task}{chosen} --seeds {arguments.seeds}",
            "versions": versions(),
            "hardware": hardware(torch.device("cpu")),
            "views": VIEWS,
            "runs": runs,
        }
        text = json.dumps(record, indent=1, allow_nan=False) + "\n"
        write_atomically(file, lambda path, text=text: path.write_text(text))


if __name__ == "__main__":
    main()
