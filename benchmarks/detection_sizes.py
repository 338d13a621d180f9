# python benchmarks/detection_sizes.py --data ../shared/data --seeds 2
"""What tells how large an image's gradient is, for a detector?

The recipe ``bccd`` is trained on all data. At a tenth, a half and nine tenths of the epochs, the gradient of each
training image's share of the loss is measured over all parameters, under several draws of the augmentation, with the
quantities that could stand in for its size. The shares are not divided by the batch's sum of target scores: with a
divisor that is the same for every image, neither correlations nor shares to keep depend on it.

The model is in training mode, in random batches of the usual size: BatchNorm's statistics are those of the batch, and
part of an image's gradient goes through the other images, as in training. Beside it: the gradients in evaluation mode,
and in training mode with the step sizes of Adam. Each finished seed is stored; run the same command to resume.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Subset

from infobatch.files import write_atomically
from infobatch.integrations.ultralytics import ImageLosses
from infobatch.lab.recipes.bccd import NO_BOX, as_ultralytics, zoomed_and_flipped
from infobatch.lab.run.machine import hardware, versions
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import load_task

RECORD = Path(__file__).parent / "results" / "detection_sizes.json"
OPTIONS = {"scale": "2"}
LEARNING_RATE = 0.016
SHARES = (0.1, 0.5, 0.9)  # of the epochs, after which it is measured
DRAWS = 4
LAYERS = (2, 4, 6, 16)  # blocks of the backbone, and the one that small objects are detected by
FIRST_SEED = 700


def measured_batch(model, batch, steps):
    """Of each image of a batch: what could stand in for the size of its gradient, and its size."""
    images, boxes = zoomed_and_flipped(*batch)
    targets = as_ultralytics(images, boxes)
    per_image = ImageLosses(model.init_criterion())
    kept = {}
    hooks = [
        model.model[layer].register_forward_hook(
            lambda _, __, output, n=layer: kept.update({n: output})
        )
        for layer in LAYERS
    ]
    outputs = model(images)
    for hook in hooks:
        hook.remove()
    losses = per_image(outputs, targets).losses
    target_scores = per_image._branches[0]._counts  # of each image: not public
    to_sums = target_scores.sum().clamp_min(1) / len(losses)  # from shares of the mean to sums
    sums = losses * to_sums
    parts = {name: part * to_sums for name, part in per_image.parts().items()}
    watched = [outputs["boxes"], outputs["scores"], *(kept[layer] for layer in LAYERS)]
    grads = [by_image(grad) for grad in torch.autograd.grad(sums.sum(), watched, retain_graph=True)]
    results = {
        "loss": sums.detach(),
        **parts,
        "target_scores": target_scores,
        "boxes": (boxes[..., 0] != NO_BOX).sum(1),
        "outputs": (grads[0].square() + grads[1].square()).sqrt(),
        "class_outputs": grads[1],
        **{f"layer_{layer}": grad for layer, grad in zip(LAYERS, grads[2:], strict=True)},
    }
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sizes = [
        norms(torch.autograd.grad(loss, parameters, retain_graph=True), steps) for loss in sums
    ]
    results["norm"], results["adam_norm"] = torch.tensor(sizes).T
    return results, (images, targets)


def evaluation_norms(model, images, targets):
    """The sizes of the gradients in evaluation mode, in which no image sees another one."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sizes = []
    for number in range(len(images)):
        own = targets["batch_idx"] == number
        target = {
            "batch_idx": torch.zeros(int(own.sum())),
            "cls": targets["cls"][own],
            "bboxes": targets["bboxes"][own],
        }
        per_image = ImageLosses(model.init_criterion())
        loss = per_image(model(images[number : number + 1]), target).losses[0]
        loss = loss * per_image._branches[0]._counts.sum().clamp_min(1)
        sizes.append(norms(torch.autograd.grad(loss, parameters), None)[0])
    return torch.tensor(sizes)


def norms(grads, steps):
    """The size of a gradient, and its size in units of the steps that Adam would take."""
    plain = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()
    if steps is None:
        return float(plain), 0.0
    scaled = [(grad / step).square().sum() for grad, step in zip(grads, steps, strict=True)]
    return float(plain), float(torch.stack(scaled).sum().sqrt())


def by_image(grad):
    return grad.flatten(1).norm(dim=1)


def measured(run):
    """Every quantity by draw and image, of the model as it stands, which stays as it is."""
    trained = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
    states = [run.optimizer.state[parameter] for parameter in trained]
    steps = [state["exp_avg_sq"].sqrt() + 1e-8 for state in states]
    model = copy.deepcopy(run.model).train()
    still = copy.deepcopy(run.model).eval()
    draws = []
    with torch.random.fork_rng():  # the training's own draws stay as they are
        torch.manual_seed(run.settings.seed)
        for _ in range(DRAWS):
            order = torch.randperm(run.num_samples)
            count = -(-run.num_samples // run.settings.batch_size)
            columns = []
            for index in order.tensor_split(count):
                (batch,) = DataLoader(
                    Subset(run.train_set, index.tolist()),
                    len(index),
                    collate_fn=run.task.collate,
                )
                results, seen = measured_batch(model, batch, steps)
                results["evaluation_norm"] = evaluation_norms(still, *seen)
                columns.append(results)
            back = order.argsort()
            draws.append(
                {
                    name: torch.cat([column[name].double() for column in columns])[back]
                    for name in columns[0]
                }
            )
    return {
        name: [[float(f"{value:.4g}") for value in draw[name].tolist()] for draw in draws]
        for name in draws[0]
    }


def measure(task, seed):
    """Train once; return what was measured by the share of the training."""
    settings = settings_of(
        task, arm="full", seed=seed, options=OPTIONS, learning_rate=LEARNING_RATE
    )
    stages = {}
    with tempfile.TemporaryDirectory() as folder:
        run = Run(task, settings, Path(folder))
        moments = {round(share * run.epochs): share for share in SHARES}

        def look(standing):
            if standing["epoch_ended"] and standing["epoch"] in moments:
                print("measuring after epoch", standing["epoch"], flush=True)
                stages[str(moments[standing["epoch"]])] = measured(run)

        result = run.train(look)
    return {"seed": seed, "metric": result.metric, "epochs": run.epochs, "stages": stages}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task = load_task("bccd", data=arguments.data, options=OPTIONS)
    runs = json.loads(RECORD.read_text())["runs"] if RECORD.exists() else []
    for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds):
        if any(run["seed"] == seed for run in runs):
            continue
        runs.append(measure(task, seed))
        record = {
            "command": f"python benchmarks/detection_sizes.py --data DIR --seeds {arguments.seeds}",
            "versions": versions(),
            "hardware": hardware(torch.device("cpu")),
            "task": "bccd",
            "options": OPTIONS,
            "learning_rate": LEARNING_RATE,
            "draws": DRAWS,
            "runs": runs,
        }
        text = json.dumps(record, allow_nan=False) + "\n"
        write_atomically(RECORD, lambda path, text=text: path.write_text(text))


if __name__ == "__main__":
    main()
