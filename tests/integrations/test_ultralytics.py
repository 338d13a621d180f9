"""Ultralytics' own trainer, loaders, losses and checkpoints, with nano models on drawn pictures."""

import csv
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np
import pytest
import torch
from ultralytics import YOLO
from ultralytics.models.yolo.detect import DetectionTrainer, DetectionValidator
from ultralytics.utils.loss import TVPDetectLoss
from ultralytics.utils.torch_utils import unwrap_model

import infobatch
from docstrings import callables, missing, public_names
from document_examples import examples
from infobatch.integrations.ultralytics import (
    ImageLosses,
    InfoBatchClassificationTrainer,
    InfoBatchDetectionTrainer,
    InfoBatchOBBTrainer,
    InfoBatchPoseTrainer,
    InfoBatchSegmentationTrainer,
)
from infobatch.integrations.ultralytics.losses import ClassificationLosses
from infobatch.policies import AfssPrune
from ultralytics_pictures import IMAGES, SIDE, draw

pytestmark = pytest.mark.filterwarnings("ignore::Warning:ultralytics", "ignore::Warning:torch")

ROOT = Path(__file__).parent.parent.parent
BATCH, EPOCHS = 4, 4
FULL = -(-IMAGES // BATCH)  # batches
Pruned = InfoBatchDetectionTrainer.with_options(policy="mean", delta=1.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("squares"))


@pytest.fixture
def settings(data, tmp_path):
    return {
        "data": str(data),
        "project": str(tmp_path),
        "name": "run",
        "epochs": EPOCHS,
        "imgsz": SIDE,
        "batch": BATCH,
        "nbs": BATCH,  # a step of the optimizer after each batch
        "device": "cpu",
        "optimizer": "SGD",
        "lr0": 1e-3,
        "warmup_epochs": 1,
        "close_mosaic": 1,
        "amp": False,
        "plots": False,
        "verbose": False,
    }


def train(settings, model="yolo11n.yaml", trainer=Pruned, callbacks=None, **others):
    """Train, and return the trainer."""
    yolo = YOLO(model)
    for event, callback in (callbacks or {}).items():
        yolo.add_callback(event, callback)
    yolo.train(trainer=trainer, **{**settings, **others})
    return yolo.trainer


def ready(settings, model="yolo11n.yaml", trainer=Pruned, **others):
    """A trainer that is about to begin its first epoch, with a batch of it."""
    trainer = trainer(overrides={**settings, "model": model, **others})
    trainer._setup_train()
    trainer._model_train()
    return trainer, trainer.preprocess_batch(next(iter(trainer.train_loader)))


def number_of(path):
    return int(Path(path).stem)


@pytest.fixture
def in_double_precision(monkeypatch):
    torch.set_default_dtype(torch.float64)  # Ultralytics adds its losses up in it
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # or converts what it adds
    yield
    torch.set_default_dtype(torch.float32)


def gradients(loss, model):
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)


def check_equality(trainer, batch):
    """Loss, logged parts and gradients are those of Ultralytics' own criterion."""
    model, images = trainer.model.double(), batch["img"].double()
    plain = model.init_criterion()
    outputs = model(images)
    random_numbers = torch.get_rng_state()
    expected, expected_items = plain(outputs, batch)
    torch.set_rng_state(random_numbers)
    loss, items = model.criterion(outputs, batch)
    torch.testing.assert_close(loss, expected.sum(), rtol=1e-6, atol=0, check_dtype=False)
    assert list(items) == list(expected_items)
    for name, item in items.items():
        torch.testing.assert_close(
            item, expected_items[name], rtol=1e-6, atol=1e-12, check_dtype=False
        )
    ours, theirs = gradients(loss, model), gradients(expected.sum(), model)
    largest = max(float(gradient.abs().max()) for gradient in theirs if gradient is not None)
    seen = 0
    for own, other in zip(ours, theirs, strict=True):
        if own is None or other is None:
            assert all(one is None or not one.any() for one in (own, other))
        else:
            torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-9 * largest)
            seen += float(other.abs().max()) > 0
    check_owners(model.criterion._per_image(outputs, batch).losses, outputs)
    return seen, items


def tensors_of(outputs):
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    if isinstance(outputs, dict):  # the features are what the others were computed from
        outputs = [part for name, part in outputs.items() if name != "feats"]
    return [tensor for part in outputs for tensor in tensors_of(part)]


def check_owners(losses, outputs):
    """The loss of an image depends on what the model says about that image alone."""
    said = [tensor for tensor in tensors_of(outputs) if tensor.requires_grad]
    reached = 0
    for image, loss in enumerate(losses):
        for slope in torch.autograd.grad(loss, said, retain_graph=True, allow_unused=True):
            if slope is not None:
                others = torch.arange(len(losses)) != image
                assert not slope[others].any()
                reached += bool(slope[image].any())
    assert reached > len(losses)


@pytest.mark.parametrize("class_weights", [0.0, 1.0])
@pytest.mark.parametrize("model", ["yolo11n.yaml", "yolo26n.yaml"])
def test_loss_and_gradients_are_those_of_ultralytics(
    settings, in_double_precision, model, class_weights
):
    seen, _ = check_equality(*ready(settings, model, cls_pw=class_weights))
    assert seen > 50


@pytest.fixture(scope="module")
def data_of(tmp_path_factory):
    pages = {}

    def find(task):
        if task not in pages:
            pages[task] = draw(tmp_path_factory.mktemp(task), task)
        return str(pages[task])

    return find


TASKS = {
    "segment": (InfoBatchSegmentationTrainer, "-seg"),
    "pose": (InfoBatchPoseTrainer, "-pose"),
    "obb": (InfoBatchOBBTrainer, "-obb"),
}
OTHER = [(task, version, {}) for task in TASKS for version in ("yolo11n", "yolo26n")]
OTHER += [("segment", "yolo26n", {"overlap_mask": False}), ("obb", "yolo11n", {"cls_pw": 1.0})]


@pytest.mark.usefixtures("in_double_precision")
@pytest.mark.parametrize(("task", "version", "others"), OTHER, ids=str)
def test_losses_of_other_tasks_are_those_of_ultralytics(settings, data_of, task, version, others):
    trainer, ending = TASKS[task]
    settings |= {"data": data_of(task), "task": task, "batch": 6, "nbs": 6, **others}
    trainer, batch = ready(settings, f"{version}{ending}.yaml", trainer)
    seen, items = check_equality(trainer, batch)
    assert seen > 50
    assert all(
        item > 0 for name, item in items.items() if (name, version) != ("sem_loss", "yolo11n")
    )


def chosen(outputs, rows, images):
    """What the model returned, for some rows of the batch."""
    if isinstance(outputs, torch.Tensor):
        return outputs[rows] if len(outputs) == images else outputs
    if isinstance(outputs, dict):
        return {name: chosen(part, rows, images) for name, part in outputs.items()}
    return type(outputs)(chosen(part, rows, images) for part in outputs)


def repeated(batch, rows):
    """The batch with these images, some of them more than once."""
    images, owners = len(batch["img"]), batch["batch_idx"].long()
    places = [(owners == row).nonzero()[:, 0] for row in rows]
    objects = torch.cat(places)
    result = {
        "batch_idx": torch.cat([torch.full((len(p),), float(i)) for i, p in enumerate(places)])
    }
    for name, values in batch.items():
        if isinstance(values, torch.Tensor) and name != "batch_idx":
            result[name] = values[objects if len(values) == len(owners) else rows]
            assert len(owners) != images
    return result


WEIGHTED = [("detect", "yolo11n"), ("detect", "yolo26n")]
WEIGHTED += [(task, version) for task in TASKS for version in ("yolo11n", "yolo26n")]


@pytest.mark.usefixtures("in_double_precision")
@pytest.mark.parametrize(("task", "version"), WEIGHTED, ids=str)
def test_a_weight_of_two_is_the_image_twice(settings, data_of, task, version):
    """In a pruned epoch, loss and gradients are Ultralytics' own of a batch in which the image is there twice.

    So each part's divisor is weighted as well: the sum of target scores, of anchors, of key points.
    """
    base, ending = TASKS.get(task, (InfoBatchDetectionTrainer, ""))
    scores = torch.arange(IMAGES) % 3.0  # two thirds at or below the mean; half of them are kept
    kind = base.with_options(policy="mean", delta=1.0, warmup=0, initial_scores=scores)
    settings |= {"data": data_of(task), "task": task, "batch": 12, "nbs": 12}
    trainer, batch = ready(settings, f"{version}{ending}.yaml", kind)
    plan, model = trainer.train_data.plan, trainer.model.double()
    weights = plan.weights[: len(batch["img"])].round().long()
    assert set(weights.tolist()) == {1, 2}
    rows = torch.arange(len(weights)).repeat_interleave(weights)
    if version == "yolo11n":  # boxes of about the right size, as after some training
        for level in model.model[-1].cv2:
            level[-1].bias.data.view(4, -1)[:, 1] += 5.0
    outputs = model(batch["img"].double())
    torch.manual_seed(0)
    loss, items = model.criterion(outputs, batch)
    sums = [branch._counts.sum() for branch in model.criterion._per_image._branches]
    assert min(sums) > 1  # a smaller one would not be the divisor
    torch.manual_seed(0)
    twice = repeated(batch, rows)
    expected, expected_items = model.init_criterion()(chosen(outputs, rows, len(weights)), twice)
    torch.testing.assert_close(loss, expected.sum(), rtol=1e-6, atol=0, check_dtype=False)
    factor = len(rows) / len(weights)  # for the smaller number of batches
    for name, item in items.items():
        torch.testing.assert_close(
            item, expected_items[name] * factor, rtol=1e-6, atol=1e-12, check_dtype=False
        )
    ours, theirs = gradients(loss, model), gradients(expected.sum(), model)
    largest = max(float(gradient.abs().max()) for gradient in theirs if gradient is not None)
    for own, other in zip(ours, theirs, strict=True):
        if own is not None and other is not None:
            torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-9 * largest)


def alone(batch, image):
    """One image of a batch, as a batch."""
    own = batch["batch_idx"] == image
    return {
        "cls": batch["cls"][own],
        "bboxes": batch["bboxes"][own],
        "batch_idx": torch.zeros(int(own.sum())),
    }


def test_parts_of_an_image_are_those_of_the_image_alone(settings):
    trainer, batch = ready(settings, batch=IMAGES)
    plain = trainer.model.init_criterion()
    outputs = trainer.model(batch["img"])
    trainer.model.criterion(outputs, batch)
    own = trainer.model.criterion._per_image._branches[0].per_image().scores
    for image in range(IMAGES):
        parts = {
            "boxes": outputs["boxes"][image : image + 1],
            "scores": outputs["scores"][image : image + 1],
            "feats": [level[image : image + 1] for level in outputs["feats"]],
        }
        expected = plain(parts, alone(batch, image))[0].sum()
        torch.testing.assert_close(own[image], expected.detach())


def test_a_batch_without_any_object(settings):
    trainer, batch = ready(settings)
    batch.update(cls=torch.zeros(0, 1), bboxes=torch.zeros(0, 4), batch_idx=torch.zeros(0))
    outputs = trainer.model(batch["img"])
    expected, _ = trainer.model.init_criterion()(outputs, batch)
    loss, items = trainer.model.criterion(outputs, batch)
    torch.testing.assert_close(loss, expected.sum())
    assert items["box_loss"] == 0
    assert items["cls_loss"] > 0
    loss.backward()


class Watched(Pruned):
    """Notes which images each epoch reads, and the scores that its loss finds."""

    workers = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.args.workers = self.workers  # none on a CPU, otherwise
        self.read, self.orders, self.found = [], [], {}
        self.add_callback("on_train_batch_end", Watched.note)

    def preprocess_batch(self, batch):
        if not self.orders or self.epoch == len(self.orders):
            self.orders.append(self.train_data.plan.order.tolist())
            self.read.append([])
        self.files = [number_of(path) for path in batch["im_file"]]
        self.read[-1] += self.files
        return super().preprocess_batch(batch)

    def note(self):
        scores = unwrap_model(self.model).criterion._per_image._branches[-1].per_image().scores
        self.found.update(zip(self.files, scores.tolist(), strict=True))


class WatchedWithWorkers(Watched):
    workers = 2


@pytest.mark.parametrize("kind", [Watched, WatchedWithWorkers])
def test_epochs_are_pruned_and_each_loss_reaches_its_own_image(settings, kind):
    trainer = train(settings, trainer=kind)
    assert trainer.train_loader.num_workers == kind.workers
    # The data set's order is that of the file names.
    assert [number_of(path) for path in trainer.train_data.im_files] == list(range(IMAGES))
    assert trainer.read == trainer.orders
    assert sorted(trainer.read[0]) == list(range(IMAGES))
    assert all(len(epoch) < IMAGES for epoch in trainer.read[1:])
    savings = trainer.train_data.savings
    assert savings.made == sum(map(len, trainer.read))
    assert len(savings.epochs) == EPOCHS
    expected = torch.tensor([trainer.found[image] for image in range(IMAGES)])
    torch.testing.assert_close(trainer.train_data.scores, expected)


@pytest.mark.parametrize(
    "others",
    [{"mixup": 1.0, "cutmix": 1.0}, {"multi_scale": 0.3, "imgsz": 96}, {"cache": "disk"}],
    ids=str,
)
def test_each_loss_reaches_its_own_image_also_with_other_settings(settings, others):
    trainer = train(settings, trainer=Watched, epochs=3, **others)
    assert trainer.read == trainer.orders
    assert all(len(epoch) < IMAGES for epoch in trainer.read[1:])
    expected = torch.tensor([trainer.found[image] for image in range(IMAGES)])
    torch.testing.assert_close(trainer.train_data.scores, expected)


def test_each_loss_reaches_its_own_image_with_a_cache_and_workers(settings):
    trainer = train(settings, trainer=WatchedWithWorkers, epochs=3, cache="ram")
    assert trainer.train_loader.num_workers == 2
    assert all(image is not None for image in trainer.train_data.ims)
    assert trainer.read == trainer.orders
    assert all(len(epoch) < IMAGES for epoch in trainer.read[1:])
    expected = torch.tensor([trainer.found[image] for image in range(IMAGES)])
    torch.testing.assert_close(trainer.train_data.scores, expected)


@pytest.mark.slow
def test_each_loss_reaches_its_own_image_in_a_compiled_model(settings, monkeypatch):
    """Without Inductor, which takes minutes for this model; Ultralytics drops the smaller last batch."""
    plain = torch.compile
    without = lambda model, **options: plain(model, backend="aot_eager")  # noqa: E731
    monkeypatch.setattr(torch, "compile", without)
    trainer = train(settings, trainer=Watched, epochs=3, compile=True)
    assert isinstance(trainer.model, torch._dynamo.OptimizedModule)
    whole = [order[: len(order) // BATCH * BATCH] for order in trainer.orders]
    assert trainer.read == whole
    assert all(len(order) < IMAGES for order in trainer.orders[1:])
    seen = sorted(trainer.found)
    expected = torch.tensor([trainer.found[image] for image in seen])
    torch.testing.assert_close(trainer.train_data.scores[seen], expected)


def test_the_defaults_of_ultralytics(data, tmp_path):
    """Plots, three epochs of warm-up, batches of 16 accumulated to 64, an optimizer that it chooses."""
    defaults = {"data": str(data), "project": str(tmp_path), "imgsz": SIDE, "device": "cpu"}
    trainers = {"pruned": InfoBatchDetectionTrainer, "plain": DetectionTrainer}
    runs = {
        name: train(defaults, trainer=kind, name=name, epochs=6) for name, kind in trainers.items()
    }
    pruned, plain = runs["pruned"], runs["plain"]
    assert type(pruned.optimizer) is type(plain.optimizer)
    assert pruned.accumulate == 4
    kept = [epoch.kept_fraction for epoch in pruned.train_data.savings.epochs]
    assert kept[:3] == [1.0] * 3
    assert all(fraction < 1 for fraction in kept[3:])
    assert columns(pruned, "lr/") == columns(plain, "lr/")
    names = [{path.name for path in run.save_dir.iterdir()} for run in (pruned, plain)]
    assert "results.png" in names[0]
    assert names[0] == names[1]


def test_patience_ends_the_training(settings):
    class NoBetter(Pruned):
        def validate(self):
            metrics, _ = super().validate()
            return metrics, 0.5

    trainer = train(settings, trainer=NoBetter, epochs=8, patience=2)
    savings = trainer.train_data.savings
    assert len(savings.epochs) == 3
    assert savings.saved > 0


def test_auto_is_the_default_and_end_to_end_models_are_pruned(settings, caplog):
    trainer = train(settings, "yolo26n.yaml", InfoBatchDetectionTrainer, verbose=True)
    assert isinstance(trainer.train_data.policy, infobatch.policies.AutoPrune)
    assert trainer.train_data.savings.saved > 0
    assert str(trainer.train_data.savings) in caplog.text
    criterion = unwrap_model(trainer.model).criterion
    assert criterion._per_image._criterion.updates == EPOCHS  # its gains move on with every epoch
    assert criterion._per_image._criterion.o2m == pytest.approx(0.1)


def test_the_forecast_is_logged_and_printed(settings, caplog):
    logged = []
    followed = InfoBatchDetectionTrainer.with_options(policy="none", shadow=("mean", "auto"))
    callbacks = {"on_fit_epoch_end": lambda trainer: logged.append(trainer.metrics)}
    trainer = train(settings, trainer=followed, callbacks=callbacks, val=False, verbose=True)
    train_data = trainer.train_data
    assert train_data.savings.saved == 0
    shares = [1 - epoch.kept_fraction for epoch in train_data.forecast().rules["mean"].epochs]
    assert max(shares) > 0.1
    left_out = [numbers["infobatch/forecast/mean/left_out"] for numbers in logged[:EPOCHS]]
    assert left_out == pytest.approx(shares)
    assert str(train_data.forecast()) in caplog.text
    header, *rows = Path(trainer.csv).read_text().splitlines()
    assert "infobatch" not in header
    assert [row.count(",") for row in rows] == [header.count(",")] * EPOCHS


def columns(trainer, prefix):
    with Path(trainer.csv).open() as file:
        return [
            {name: value for name, value in row.items() if name.startswith(prefix)}
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("warmup_epochs", [1, 1.5, 3])
def test_learning_rates_and_columns_are_those_of_ultralytics(settings, warmup_epochs):
    """Ultralytics warms up batch by batch: in shorter epochs it would not get as far."""
    settings |= {"warmup_epochs": warmup_epochs, "epochs": 5}
    rates = {}

    def note(trainer):
        groups = trainer.optimizer.param_groups
        numbers = [(group["lr"], group["momentum"]) for group in groups]
        rates.setdefault(trainer.args.name, []).append((numbers, trainer.accumulate))

    callbacks = {"on_train_epoch_end": note}
    settings["nbs"] = 2 * BATCH
    pruned = train(settings, callbacks=callbacks)
    plain = train(settings, trainer=DetectionTrainer, name="plain", callbacks=callbacks)
    kept = [epoch.kept_fraction for epoch in pruned.train_data.savings.epochs]
    assert [fraction < 1 for fraction in kept] == [
        epoch >= max(warmup_epochs, 1) for epoch in range(5)
    ]
    assert rates["run"] == rates["plain"]
    assert columns(pruned, "lr/") == columns(plain, "lr/")
    assert [list(row) for row in columns(pruned, "")] == [list(row) for row in columns(plain, "")]
    assert pruned.ema.updates < plain.ema.updates


@pytest.mark.parametrize("task", ["detect", *TASKS])
def test_mixed_precision(settings, data_of, task):
    """Ultralytics has it on GPUs only; what it does there is autocast."""
    trainer, ending = TASKS.get(task, (Pruned, ""))
    settings |= {"data": data_of(task), "task": task}
    trainer, batch = ready(settings, f"yolo26n{ending}.yaml", trainer)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = trainer.model(batch["img"])
        assert outputs["one2one"]["scores"].dtype == torch.bfloat16
        expected, _ = trainer.model.init_criterion()(outputs, batch)
        loss, _ = trainer.model.criterion(outputs, batch)
    torch.testing.assert_close(loss, expected.sum(), rtol=1e-2, atol=0)
    loss.backward()
    assert trainer.train_data.scores.isfinite().sum() == BATCH


def test_mosaic_ends_also_in_workers(settings):
    """Without mosaic, an unchanged image has its own boxes only."""
    still = {"fliplr": 0.0, "translate": 0.0, "scale": 0.0, "close_mosaic": 2}
    counts = []

    class Counted(WatchedWithWorkers):
        def preprocess_batch(self, batch):
            batch = super().preprocess_batch(batch)
            boxes = [len(self.train_data.labels[image]["cls"]) for image in self.files]
            counts.append((self.epoch, len(batch["cls"]) == sum(boxes)))
            return batch

    train(settings, trainer=Counted, **still)
    assert not all(same for epoch, same in counts if epoch < 2)
    assert all(same for epoch, same in counts if epoch >= 2)


class StopHereError(Exception):
    """Stands for whatever ends a process."""


def interrupted(settings, epoch, trainer=Pruned):
    """Train up to the end of an epoch; return the trainer."""
    known = []

    def stop(trainer):
        known.append(trainer)
        if trainer.epoch == epoch:
            raise StopHereError

    with pytest.raises(StopHereError):
        train(settings, trainer=trainer, callbacks={"on_fit_epoch_end": stop})
    return known[-1]


def test_resume_continues_with_the_scores(settings):
    first = interrupted(settings, 1)
    state = first.train_data.state_dict()
    starts = []
    begun = lambda trainer: starts.append(  # noqa: E731
        (trainer.epoch, trainer.train_data.scores, trainer.train_data.plan.order)
    )
    yolo = YOLO(first.last)
    yolo.add_callback("on_train_batch_start", begun)
    yolo.train(trainer=Pruned, resume=True)
    epoch, scores, order = starts[0]
    assert epoch == 2
    torch.testing.assert_close(scores, first.train_data.scores, rtol=0, atol=0)
    twin = infobatch.Pruner(IMAGES, EPOCHS, policy="mean", delta=1.0)
    twin.load_state_dict(state)
    assert len(order) < IMAGES
    assert order.tolist() == twin.plan.order.tolist()
    assert len(yolo.trainer.train_loader) == FULL  # for the warm-up: not the pruned epoch's length
    assert len(yolo.trainer.train_data.savings.epochs) == EPOCHS


def test_resume_after_the_end_of_mosaic(settings):
    """The resumed epoch is without mosaic, too: an unchanged image has its own boxes only."""
    still = {"fliplr": 0.0, "translate": 0.0, "scale": 0.0, "close_mosaic": 2}
    first = interrupted({**settings, **still}, 2)
    found, read = [], []

    class Resumed(Pruned):
        def preprocess_batch(self, batch):
            files = [number_of(path) for path in batch["im_file"]]
            own = sum(len(self.train_data.labels[image]["cls"]) for image in files)
            found.append((self.epoch, len(batch["cls"]) - own))
            read.extend(files)
            return super().preprocess_batch(batch)

    yolo = YOLO(first.last)
    yolo.train(trainer=Resumed, resume=True)
    assert set(found) == {(3, 0)}
    assert read == yolo.trainer.train_data.plan.order.tolist()
    assert len(read) < IMAGES


def test_resume_without_a_trainer_is_ultralytics_own(settings):
    yolo, seen = YOLO(interrupted(settings, 2).last), []
    yolo.add_callback("on_train_batch_end", lambda trainer: seen.append(trainer.epoch))
    yolo.train(resume=True)
    assert type(yolo.trainer) is DetectionTrainer
    assert seen == [3] * FULL  # on all images


def test_resume_without_scores_says_so(settings):
    first = interrupted(settings, 1)
    checkpoint = torch.load(first.last, weights_only=False)
    del checkpoint["infobatch"]
    torch.save(checkpoint, first.last)
    yolo = YOLO(first.last)
    with pytest.warns(UserWarning, match="The first epoch that was trained is number 2"):
        yolo.train(trainer=Pruned, resume=True)
    lengths = [
        round(epoch.kept_fraction * IMAGES) for epoch in yolo.trainer.train_data.savings.epochs
    ]
    assert lengths[0] == IMAGES
    assert len(lengths) == 2


def test_checkpoints_have_the_scores_and_still_predict(settings):
    trainer = train(settings, save_period=1)
    for name in ("last", "best", "epoch1"):
        checkpoint = torch.load(trainer.wdir / f"{name}.pt", weights_only=False)
        twin = infobatch.Pruner(IMAGES, EPOCHS, policy="mean", delta=1.0)
        twin.load_state_dict(checkpoint["infobatch"])
        assert torch.isfinite(twin.scores).all()
    assert len(YOLO(trainer.last).predict(np.zeros((SIDE, SIDE, 3), np.uint8), verbose=False)) == 1


@pytest.mark.parametrize("files", [0, 1])
def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(settings, monkeypatch, files):
    """The disk is full at Ultralytics' own file, or at the one that replaces the last one."""
    trainer = interrupted(settings, 1)
    before = {path: path.read_bytes() for path in trainer.wdir.iterdir()}
    plain, written = Path.write_bytes, []

    def write(path, content):
        if len(written) == files:
            plain(path, content[:100])
            raise OSError("No space left on device")
        written.append(path)
        return plain(path, content)

    trainer.fitness = -1.0  # not the best one
    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(OSError, match="No space left"):
        trainer.save_model()
    assert {path: path.read_bytes() for path in trainer.wdir.iterdir()} == before


def test_an_epoch_with_a_loss_that_is_not_finite_is_repeated(settings, caplog):
    broken = []

    def breaks(trainer):
        if trainer.epoch == 2 and not broken:
            broken.append(trainer.train_data.plan.order.tolist())
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(torch.nan)

    trainer = train(settings, trainer=Watched, callbacks={"on_train_batch_end": breaks})
    assert "recovering from last.pt" in caplog.text
    assert trainer.orders[2] == broken[0]
    assert len(trainer.train_data.savings.epochs) == EPOCHS
    assert torch.isfinite(trainer.train_data.scores).all()


def test_smaller_batches_after_running_out_of_memory(settings):
    class Small(Watched):
        def preprocess_batch(self, batch):
            if len(batch["im_file"]) > 2 and len(self.read) == 1 and len(self.read[0]) == BATCH:
                self.read, self.orders = [], []
                raise RuntimeError("CUDA out of memory")
            return super().preprocess_batch(batch)

    trainer = train(settings, trainer=Small)
    assert trainer.batch_size == 2
    assert trainer.read == trainer.orders
    assert trainer.train_data.savings.made == sum(map(len, trainer.read))


@pytest.mark.parametrize("event", ["on_train_batch_end", "on_train_epoch_end"])
def test_stopping_early(settings, event):
    """In the middle of an epoch as the platform does, and after it as its patience does."""

    def stop(trainer):
        trainer.stop = trainer.epoch == 2

    trainer = train(settings, callbacks={event: stop}, cache="ram")
    assert trainer.epoch == 2
    assert len(trainer.train_data.savings.epochs) == 3


def test_mosaic_chooses_among_all_images_whatever_was_read(settings):
    trainer, _ = ready(settings)
    dataset = trainer.train_data.dataset
    mosaic = dataset.transforms.transforms[0].transforms[0]
    random.seed(0)
    for _ in range(50):
        dataset.load_image(3)
    dataset.buffer[:] = [3]  # the only image that was read lately
    chosen = [image for _ in range(600) for image in mosaic.get_indexes()]
    counts = np.bincount(chosen, minlength=IMAGES)
    expected = len(chosen) / IMAGES
    assert ((counts - expected) ** 2 / expected).sum() < 46.8  # chi-squared, 21 degrees, 0.001


def test_mosaic_leaves_the_estimate_unbiased(settings):
    """By enumeration: three images, every mosaic of four of them, every draw of an epoch."""
    trainer, _ = ready(settings, batch=1)
    dataset, model = trainer.train_data.dataset, trainer.model.eval()
    mosaic = dataset.transforms.transforms[0].transforms[0]
    size, partners = 3, list(itertools.product(range(3), repeat=3))
    losses = np.zeros((size, len(partners)))
    for image, (column, chosen) in itertools.product(range(size), enumerate(partners)):
        mosaic.get_indexes = lambda chosen=chosen: list(chosen)
        random.seed(0)  # the same place for the corner
        batch = trainer.preprocess_batch(dataset.collate_fn([dataset[image]]))
        with torch.no_grad():
            outputs = model(batch["img"])[1]
        with torch.enable_grad():
            losses[image, column] = model.init_criterion()(outputs, batch)[0].sum()
    del mosaic.get_indexes
    full = losses.mean()
    scores = torch.tensor([1.0, 2.0, 6.0])  # the first two are below the mean: one of them is kept
    independent, from_the_kept, draws = [], [], set()
    for seed in range(400):
        pruner = infobatch.Pruner(
            size, 2, policy="mean", seed=seed, initial_scores=scores, delta=1.0
        )
        kept, weights = pruner.plan.order.numpy(), pruner.plan.weights.numpy()
        draw = tuple(sorted(zip(kept.tolist(), weights.tolist(), strict=True)))
        if draw in draws:
            continue
        draws.add(draw)
        independent.append(weights @ losses[kept].mean(1) / size)
        among_kept = [i for i, row in enumerate(partners) if set(row) <= set(kept.tolist())]
        from_the_kept.append(weights @ losses[kept][:, among_kept].mean(1) / size)
    assert len(draws) == 2  # equally likely
    assert np.mean(independent) == pytest.approx(full, rel=1e-6)
    # What Ultralytics' buffer of recently read images would do:
    assert abs(np.mean(from_the_kept) / full - 1) > 1e-3


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
def test_afss_measures_every_fifth_epoch(settings, caplog):
    measured = {}

    class Measuring(Watched):
        pruning: ClassVar = {"policy": AfssPrune(hard=0.5, easy=0.5, keep_easy=0.5)}

        def qualities(self):
            measured[self.epoch] = super().qualities()
            return measured[self.epoch]

    trainer = train(settings, trainer=Measuring, epochs=8, verbose=True)
    assert list(measured) == [5]
    assert trainer.train_data.policy.extras
    lengths = [len(epoch) for epoch in trainer.read]
    easy = int((measured[5] > 0.5).sum())
    assert lengths[:6] == [IMAGES] * 6
    assert easy > 0  # empty images in which nothing is found
    assert lengths[6] == pytest.approx(IMAGES - easy / 2, abs=1)
    assert trainer.read == trainer.orders
    savings = trainer.train_data.savings
    assert savings.refreshed == IMAGES  # although the epoch left none of them out
    assert f"{IMAGES} forwarded to refresh scores, a third of a pass each" in caplog.text
    total = savings.made + savings.saved
    assert savings.fraction == pytest.approx((savings.saved - IMAGES / 3) / total)


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
def test_afss_refreshes_what_an_epoch_leaves_out(settings):
    """All images count as easy, so half of them are left out in the epoch that measures again."""

    class Measuring(Pruned):
        pruning: ClassVar = {"policy": AfssPrune(keep_easy=0.5)}

        def qualities(self):
            super().qualities()
            return torch.ones(IMAGES) if self.epoch == 5 else torch.zeros(IMAGES)

    trainer = train(settings, trainer=Measuring, epochs=12)
    kept = [round(epoch.kept_fraction * IMAGES) for epoch in trainer.train_data.savings.epochs]
    assert kept == [IMAGES] * 6 + [IMAGES // 2] * 5 + [IMAGES]
    assert trainer.train_data.savings.refreshed == 2 * IMAGES  # in epochs 5 and 10


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
def test_afss_counts_its_passes_also_after_resuming(settings):
    measuring = Pruned.with_options(policy="afss")
    trainers = []

    def stop(trainer):
        trainers.append(trainer)
        if trainer.epoch == 6:
            raise StopHereError

    with pytest.raises(StopHereError):
        train(settings, trainer=measuring, epochs=12, callbacks={"on_fit_epoch_end": stop})
    yolo = YOLO(trainers[-1].last)
    yolo.train(trainer=measuring, resume=True)
    assert yolo.trainer.train_data.savings.refreshed == 2 * IMAGES  # in epochs 5 and 10


def test_quality_where_a_part_is_detected(settings, monkeypatch):
    """Every first object is found, and a second time where it is not: the others are missed."""
    trainer, _ = ready(settings)
    seen = []
    plain = DetectionValidator.preprocess

    def preprocess(validator, batch):
        seen.append(plain(validator, batch))
        return seen[-1]

    def postprocess(validator, outputs):
        batch, results = seen[-1], []
        for image in range(len(batch["img"])):
            boxes = batch["bboxes"][batch["batch_idx"] == image][:1] * batch["img"].shape[3]
            kinds = batch["cls"][batch["batch_idx"] == image][:1, 0]
            centres, sizes = boxes[:, :2], boxes[:, 2:]
            corners = torch.cat([centres - sizes / 2, centres + sizes / 2], 1)
            elsewhere = corners + 40
            results.append(
                {
                    "bboxes": torch.cat([corners, elsewhere]),
                    "conf": torch.full((2 * len(boxes),), 0.9),
                    "cls": torch.cat([kinds, kinds]),
                    "extra": torch.zeros(2 * len(boxes), 0),
                }
            )
        return results

    monkeypatch.setattr(DetectionValidator, "preprocess", preprocess)
    monkeypatch.setattr(DetectionValidator, "postprocess", postprocess)
    objects = np.array([len(label["cls"]) for label in trainer.train_data.labels])
    expected = np.where(
        objects == 0, 1.0, 1 / np.maximum(objects, 2)
    )  # of two detections, one is right
    assert trainer.qualities().tolist() == pytest.approx(expected.tolist())
    assert {1, 2, 3} <= set(objects)


def test_quality_where_everything_or_nothing_is_detected(settings):
    """At its ends: false alarms everywhere, and nothing found anywhere."""
    trainer, _ = ready(settings)
    data = trainer.train_data
    with torch.no_grad():  # so that something is found: everywhere, with confidence
        for level in trainer.ema.ema.model[-1].cv3:
            level[-1].bias.fill_(1.0)
    qualities = trainer.qualities()
    assert len(qualities) == IMAGES
    objects = np.array([len(label["cls"]) for label in data.labels])
    assert (qualities[torch.from_numpy(objects == 0)] == 0).all()  # false alarms
    assert (qualities <= 1).all()
    with torch.no_grad():
        for level in trainer.ema.ema.model[-1].cv3:
            level[-1].bias.fill_(-20.0)
    assert trainer.qualities().tolist() == (objects == 0).astype(float).tolist()


def test_the_page(settings, monkeypatch, tmp_path):
    """With the small data set, and fewer epochs."""
    first, resuming, second, third = examples("docs/ultralytics.md")
    names = {**settings, "epochs": 3}
    monkeypatch.chdir(tmp_path)
    place = {"project": str(tmp_path / "runs/detect"), "name": "train"}
    state = interrupted({**settings, **place}, 2, InfoBatchDetectionTrainer).train_data.state_dict()
    scope = {}
    exec(resuming, scope)
    history = scope["model"].trainer.train_data.savings.epochs
    assert len(history) == EPOCHS
    assert history[-1].kept_fraction < 1
    twin = infobatch.Pruner(IMAGES, EPOCHS, policy="auto", warmup=1)
    twin.load_state_dict(state)
    assert history[-1].planned == len(twin.plan)
    plain = YOLO.train

    def briefly(model, **arguments):
        assert arguments["epochs"] == 100
        return plain(model, **{**names, "trainer": arguments["trainer"]})

    monkeypatch.setattr(YOLO, "train", briefly)
    scope = {}
    exec(first, scope)
    assert scope["model"].trainer.train_data.savings.saved > 0
    exec(second, scope)
    assert scope["model"].trainer.train_data.savings.saved > 0
    trainer, batch = ready(settings)
    model = unwrap_model(trainer.model)
    exec(third, {"model": model, "batch": batch, "train_data": trainer.train_data})
    assert sum(weight.grad is not None for weight in model.parameters()) > 100
    assert torch.isfinite(trainer.train_data.last_loss)


@pytest.mark.parametrize("task", TASKS)
def test_other_tasks_are_pruned(settings, data_of, task):
    """With precision and recall of their boxes as well."""
    trainer, ending = TASKS[task]
    measured = []

    class Measuring(trainer.with_options(policy="mean", delta=1.0)):
        def qualities(self):
            measured.append(super().qualities())
            return measured[-1]

    settings |= {"data": data_of(task), "epochs": 2}
    trainer = train(settings, f"yolo11n{ending}.yaml", Measuring)
    savings = trainer.train_data.savings
    assert savings.epochs[0].made == IMAGES
    assert savings.saved > 0
    assert torch.isfinite(trainer.train_data.scores).all()
    assert "infobatch" in torch.load(trainer.last, weights_only=False)
    trainer.ema.ema.float()
    quality = trainer.qualities()
    empty = torch.tensor([len(label["cls"]) == 0 for label in trainer.train_data.labels])
    assert ((quality >= 0) & (quality <= 1)).all()
    assert (quality[empty] == 1).all()  # nothing is found as yet


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Noise with a square in the colour of its class; the names do not follow the order of classes."""
    folder, rng = tmp_path_factory.mktemp("classes"), np.random.default_rng(0)
    for split, number in (("train", IMAGES), ("val", 4)):
        for name in range(number):
            (folder / split / ("red", "green")[name % 2]).mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 80, (SIDE, SIDE, 3)).astype(np.uint8)
            pixels[10:40, 20:50, 2 - name % 2] = 255
            cv2.imwrite(str(folder / split / ("red", "green")[name % 2] / f"{name:02}.png"), pixels)
    return folder


def test_classification(settings, folders):
    """At 32 pixels a batch of one image has one value for each channel, too few to normalise."""
    sizes, found = [], {}

    class Classifying(InfoBatchClassificationTrainer.with_options(policy="mean", delta=1.0)):
        def preprocess_batch(self, batch):
            batch = super().preprocess_batch(batch)
            sizes.append(len(batch["img"]))
            return batch

    def note(trainer):
        """Which image each loss belongs to is the plan's order; the whole is Ultralytics' own."""
        data, criterion = trainer.train_data, trainer.model.criterion._per_image
        losses = criterion.parts()["loss"].losses
        made = data.progress.done
        rows = data.plan.order[made - len(losses) : made]
        found.update(zip(rows.tolist(), losses.tolist(), strict=True))

    trainer = train(
        {**settings, "data": str(folders), "imgsz": 32},
        "yolo11n-cls.yaml",
        Classifying,
        {"on_train_batch_end": note},
    )
    data = trainer.train_data
    assert data.savings.epochs[0].made == IMAGES
    assert data.savings.saved > 0
    torch.testing.assert_close(data.scores, torch.tensor([found[row] for row in range(IMAGES)]))
    assert min(sizes) > 1
    scores = data.scores
    trainer._read_pruned_data()  # as where other processes have trained
    assert trainer.train_data is not data
    torch.testing.assert_close(trainer.train_data.scores, scores, rtol=0, atol=0)


def test_classification_losses_are_those_of_ultralytics(settings, folders):
    settings |= {"data": str(folders), "task": "classify"}
    trainer, batch = ready(settings, "yolo11n-cls.yaml", InfoBatchClassificationTrainer)
    outputs = trainer.model(batch["img"])
    expected, expected_items = trainer.model.init_criterion()(outputs, batch)
    loss, items = trainer.model.criterion(outputs, batch)
    torch.testing.assert_close(loss, expected)
    assert items == expected_items
    for ours, theirs in zip(
        gradients(loss, trainer.model), gradients(expected, trainer.model), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_classification_with_a_rule_for_boxes_raises(settings):
    with pytest.raises(ValueError, match='got policy="afss", which goes by the precision'):
        train(
            settings, "yolo11n-cls.yaml", InfoBatchClassificationTrainer.with_options(policy="afss")
        )


@pytest.mark.parametrize(
    ("model", "trainer", "message"),
    [
        ("yolo11n-seg.yaml", Pruned, "task='segment', expected task='detect'. Use InfoBatchSeg"),
        ("yolo11n-pose.yaml", Pruned, "task='pose', expected task='detect'. Use InfoBatchPose"),
        ("yolo11n-obb.yaml", Pruned, "task='obb', expected task='detect'. Use InfoBatchOBB"),
        ("yolo11n-cls.yaml", Pruned, "task='classify', expected .*Use InfoBatchClassification"),
        ("yolo11n.yaml", InfoBatchPoseTrainer, "task='detect', expected task='pose'"),
        ("yolo26n-sem.yaml", Pruned, "task='semantic', .* train it with Ultralytics' own trainer"),
    ],
)
def test_other_tasks_raise(settings, model, trainer, message):
    with pytest.raises(ValueError, match=message):
        train(settings, model, trainer)


def test_options_that_need_other_loaders_raise(settings):
    with pytest.raises(ValueError, match=r"with_options\(sharded=True\) cannot be used"):
        train(settings, trainer=Pruned.with_options(sharded=True))


def test_compiled_models_on_several_devices_raise(settings):
    trainer = Pruned(overrides={**settings, "model": "yolo11n.yaml"})
    trainer.args.compile, trainer.args.device, trainer.world_size = True, "0,1", 2
    with pytest.raises(ValueError, match=r"compile=True and device='0,1', expected one device or"):
        trainer._check_settings()


def test_unsupported_settings_raise(settings):
    for setting, reason in (({"rect": True}, "fixed by the shapes"), ({"time": 0.1}, "set epochs")):
        (name,) = setting
        with pytest.raises(
            ValueError, match=f"got {name}=.* cannot be used with pruning: .*{reason}"
        ):
            train(settings, **setting)


def test_other_losses_raise(settings):
    trainer = Pruned(overrides={**settings, "model": "rtdetr-l.yaml"})
    with pytest.raises(TypeError, match="a model that ends in RTDETRDecoder, expected Detect"):
        trainer._setup_train()


def test_processes_without_devices_raise(settings):
    """Ultralytics connects the processes of torchrun only if device= names as many devices."""
    script = (
        "import ultralytics_operators\n"
        "from infobatch.integrations.ultralytics import InfoBatchDetectionTrainer\n"
        f"InfoBatchDetectionTrainer(overrides={ {**settings, 'model': 'yolo11n.yaml'}!r}).train()\n"
    )
    path = os.pathsep.join([str(ROOT / "tests/support"), str(ROOT / "src"), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "RANK": "0", "LOCAL_RANK": "0"}
    environment["WORLD_SIZE"] = "2"
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert "got several processes (RANK=0) and device='cpu', expected as many devices" in run.stderr


def test_criteria_of_other_models_raise():
    with pytest.raises(TypeError, match=r"criterion is TVPDetectLoss, expected .* v8DetectionLoss"):
        ImageLosses(TVPDetectLoss.__new__(TVPDetectLoss))
    with pytest.raises(TypeError, match=r"criterion is object, expected .*v8ClassificationLoss"):
        ClassificationLosses(object())


def test_docstrings_are_complete():
    names = list(public_names("infobatch.integrations.ultralytics"))
    assert names
    for name in names:
        for owner, target in callables(name):
            assert missing(target) == [], owner
