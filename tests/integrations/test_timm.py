"""timm's own loader, losses, MixUp and schedules, and a timm ResNet that trains with each of them."""

import copy
import inspect
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import timm
import timm.data.mixup
import torch
from PIL import Image
from timm.loss import (
    AsymmetricLossSingleLabel,
    BinaryCrossEntropy,
    JsdCrossEntropy,
    LabelSmoothingCrossEntropy,
    SoftTargetCrossEntropy,
)
from timm.scheduler import create_scheduler_v2
from timm.task import ClassificationTask, resume_task_checkpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset

import infobatch
from docstrings import callables, missing, public_names
from document_examples import examples
from infobatch.integrations.timm import (
    CheckpointSaver,
    Mixup,
    create_train_loader,
    load_pruning,
    per_sample,
)
from numbered import loss_of

ROOT = Path(__file__).parent.parent.parent
SIZE, CLASSES, EPOCHS, BATCH, SIDE = 160, 4, 3, 16, 32


class Pictures(Dataset):
    """Noisy pictures of four classes, as timm's data sets hand them out: PIL, and a transform."""

    def __init__(self, size=SIZE, *, numbered=False):
        rng = np.random.default_rng(0)
        self.labels = rng.integers(0, CLASSES, size)
        pixels = rng.integers(0, 120, (size, SIDE, SIDE, 3))
        for image, label in zip(pixels, self.labels, strict=True):
            image[label // 2 * 16 :][:16, label % 2 * 16 :][:, :16] += 130
        self.images = pixels.astype(np.uint8)
        self.numbered = numbered
        self.transform = None

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = Image.fromarray(self.images[index])
        target = index if self.numbered else int(self.labels[index])
        return (image if self.transform is None else self.transform(image)), target


def seed_numpy(seed):
    np.random.seed(seed)  # noqa: NPY002 - timm mixes by it


def loader_of(train_data, **options):
    options = {"num_workers": 0, "use_prefetcher": False, **options}
    return create_train_loader(
        train_data, (3, SIDE, SIDE), BATCH, is_training=True, device=torch.device("cpu"), **options
    )


# Losses, one per sample.

CRITERIA = {
    "cross entropy": (nn.CrossEntropyLoss(), "labels"),
    "cross entropy, smoothed": (nn.CrossEntropyLoss(label_smoothing=0.2), "labels"),
    "label smoothing": (LabelSmoothingCrossEntropy(0.1), "labels"),
    "soft targets": (SoftTargetCrossEntropy(), "soft"),
    "binary": (BinaryCrossEntropy(), "labels"),
    "binary, soft": (BinaryCrossEntropy(), "soft"),
    "binary, threshold": (BinaryCrossEntropy(target_threshold=0.2), "soft"),
    "binary, sum": (BinaryCrossEntropy(smoothing=0.0, sum_classes=True), "labels"),
    "binary, weights": (
        BinaryCrossEntropy(weight=torch.tensor([1.0, 2.0, 0.5, 1.0]), pos_weight=3.0),
        "labels",
    ),
}


def batch_of(kind="labels", count=8):
    logits = torch.randn(count, CLASSES, requires_grad=True)
    labels = torch.randint(0, CLASSES, (count,))
    if kind == "labels":
        return logits, labels
    return logits, timm.data.mixup.mixup_target(labels, CLASSES, 0.7, 0.1)


@pytest.mark.parametrize("name", CRITERIA)
def test_the_mean_is_timms_loss(name):
    criterion, kind = CRITERIA[name]
    logits, target = batch_of(kind)
    result = per_sample(criterion)(logits, target)
    losses = result.losses
    assert losses.shape == (8,)
    expected = criterion(logits, target)
    assert torch.allclose(losses.mean(), expected, atol=1e-6)
    gradients = [
        torch.autograd.grad(v, logits, retain_graph=True)[0] for v in (losses.mean(), expected)
    ]
    assert torch.allclose(*gradients, atol=1e-6)
    for sample in range(8):  # each depends on its own sample alone
        alone = criterion(logits[sample : sample + 1], target[sample : sample + 1])
        assert torch.allclose(losses[sample], alone, atol=1e-6)
        if name == "cross entropy":
            assert not result.extras, "1 − exp(−loss) is the size of the gradient"
        else:
            (gradient,) = torch.autograd.grad(losses[sample], logits, retain_graph=True)
            assert torch.allclose(result.extras["gradient"][sample], gradient.norm(), atol=1e-6)


@pytest.mark.parametrize(
    "criterion",
    [
        JsdCrossEntropy(),
        AsymmetricLossSingleLabel(),
        nn.CrossEntropyLoss(weight=torch.ones(CLASSES)),
        BinaryCrossEntropy(reduction="sum"),
        nn.MSELoss(),
    ],
)
def test_other_losses_raise(criterion):
    with pytest.raises(TypeError, match=r"per_sample\(\) got .*expected nn.CrossEntropyLoss .*1-D"):
        per_sample(criterion)


# MixUp and CutMix.

MIXES = {
    "mixup": {"mixup_alpha": 0.8},
    "cutmix": {"mixup_alpha": 0.0, "cutmix_alpha": 1.0},
    "both": {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "prob": 0.7},
    "smoothed": {"mixup_alpha": 0.8, "label_smoothing": 0.2},
}


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("mix", MIXES)
def test_it_mixes_as_timm_does(mix, mode):
    options = {"num_classes": CLASSES, "mode": mode, **MIXES[mix]}
    ours, theirs = Mixup(**options), timm.data.Mixup(**options)
    for seed in range(5):
        x, labels = torch.randn(8, 3, 12, 12), torch.randint(0, CLASSES, (8,))
        seed_numpy(seed)
        mixed, target = ours(x.clone(), labels)
        seed_numpy(seed)
        expected, expected_target = theirs(x.clone(), labels)
        assert torch.equal(mixed, expected)
        assert torch.allclose(target, expected_target, atol=1e-6)
        assert ours.num_classes == CLASSES


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("binary", [False, True])
def test_losses_and_scores_of_mixed_samples(mode, binary):
    """Against a slow loop over samples and the places where they are."""
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, prob=0.8, mode=mode, num_classes=CLASSES)
    criterion = BinaryCrossEntropy() if binary else SoftTargetCrossEntropy()
    for seed in range(5):
        seed_numpy(seed)
        labels = torch.randint(0, CLASSES, (8,))
        _, target = mixup(torch.randn(8, 3, 12, 12), labels)
        logits = torch.randn(8, CLASSES, requires_grad=True)
        result = per_sample(criterion, mixup)(logits, target)
        losses, scores = result
        assert torch.allclose(losses.mean(), criterion(logits, target), atol=1e-6)
        chance = logits.sigmoid() if binary else logits.softmax(1)
        for i, label in enumerate(labels.tolist()):
            j = 7 - i
            lam, lam_there = mixup.lam[i].item(), mixup.lam[j].item()
            pure = timm.data.mixup.mixup_target(labels, CLASSES, 1.0, 0.1)[i : i + 1]
            here, there = (criterion(logits[k : k + 1], pure) for k in (i, j))
            assert losses[i].item() == pytest.approx(
                (lam * here + (1 - lam_there) * there).item(), abs=1e-5
            )
            score = target[i, label] - chance[i, label]
            if lam_there < 1:
                score = score + target[j, label] - chance[j, label]
            assert scores[i].item() == pytest.approx(score.item(), abs=1e-5)
            (gradient,) = torch.autograd.grad(losses[i], logits, retain_graph=True)
            assert result.extras["gradient"][i].item() == pytest.approx(
                gradient.norm().item(), abs=1e-5
            )
        assert not scores.requires_grad


def test_the_score_is_low_where_the_model_is_right():
    """The paper's P_i[y_i] + P_j[y_i] is high for an easy sample: ours, which ranks hardness, is low."""
    mixup = Mixup(mixup_alpha=0.8, num_classes=CLASSES, label_smoothing=0.0)
    seed_numpy(0)
    labels = torch.tensor([0, 1, 2, 3])
    _, target = mixup(torch.zeros(4, 3, 4, 4), labels)
    right = per_sample(SoftTargetCrossEntropy(), mixup)(target.log(), target)
    assert torch.allclose(right.scores, torch.zeros(4), atol=1e-6)
    ignorant = target.clone()
    ignorant[:, 2] = 1e-9  # sees nothing of class 2, in neither of its places
    wrong = per_sample(SoftTargetCrossEntropy(), mixup)(ignorant.log(), target)
    assert wrong.scores.argmax() == 2
    assert wrong.scores[2] == pytest.approx(1.0, abs=1e-6)


def test_thresholded_targets_share_the_loss_by_the_shares():
    mixup = Mixup(mixup_alpha=0.8, num_classes=CLASSES, mode="elem")
    criterion = BinaryCrossEntropy(target_threshold=0.2)
    seed_numpy(0)
    _, target = mixup(torch.randn(8, 3, 4, 4), torch.randint(0, CLASSES, (8,)))
    logits = torch.randn(8, CLASSES)
    whole = per_sample(criterion)(logits, target).losses
    losses = per_sample(criterion, mixup)(logits, target).losses
    assert torch.allclose(losses.mean(), criterion(logits, target), atol=1e-6)
    for i in range(8):
        expected = mixup.lam[i] * whole[i] + (1 - mixup.lam[7 - i]) * whole[7 - i]
        assert torch.allclose(losses[i], expected)


def test_mixing_that_was_left_out_is_told():
    mixup = Mixup(num_classes=CLASSES)
    losses_of = per_sample(SoftTargetCrossEntropy(), mixup)
    with pytest.raises(RuntimeError, match=r"8 samples where the last batch .* has None.*mixup\("):
        losses_of(*batch_of("soft"))
    mixup(torch.zeros(4, 3, 4, 4), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(RuntimeError, match=r"8 samples where the last batch .* has 4"):
        losses_of(*batch_of("soft"))
    with pytest.raises(TypeError, match=r"got timm.data.mixup.Mixup, expected infobatch"):
        per_sample(SoftTargetCrossEntropy(), timm.data.Mixup())
    with pytest.raises(TypeError, match="would smooth twice"):
        per_sample(LabelSmoothingCrossEntropy(), mixup)


def test_half_precision_goes_by_timms_rules():
    criterion = SoftTargetCrossEntropy()
    logits, target = batch_of("soft")
    losses = per_sample(criterion)(logits.bfloat16(), target).losses
    assert losses.dtype is criterion(logits.bfloat16(), target).dtype is torch.float32
    mixup = Mixup(num_classes=CLASSES)
    _, target = mixup(torch.randn(8, 3, 4, 4), torch.randint(0, CLASSES, (8,)))
    mixed = per_sample(criterion, mixup)(logits.bfloat16(), target)
    assert mixed.losses.dtype is torch.float32
    assert torch.allclose(mixed.losses.mean(), criterion(logits.bfloat16(), target), atol=1e-2)


# The loader.


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_loss_reaches_its_sample(prefetch, workers):
    """Same plans, scores and savings as the plain loop, also under the prefetcher's read-ahead."""
    data = Pictures(150, numbered=True)
    plain = infobatch.InfoBatch(data, EPOCHS, delta=1.0)
    batches = DataLoader(
        plain, BATCH, sampler=plain.sampler, drop_last=True, collate_fn=lambda batch: batch
    )
    train_data = infobatch.InfoBatch(Pictures(150, numbered=True), EPOCHS, delta=1.0)
    loader = loader_of(train_data, use_prefetcher=prefetch, num_workers=workers)
    assert train_data.dataset.transform is not None
    for epoch in range(EPOCHS):
        for pruned in (plain, train_data):
            pruned.set_epoch(epoch)
        assert torch.equal(train_data.plan.order, plain.plan.order)
        for batch in batches:
            plain.update(loss_of(torch.tensor([float(target) for _, target in batch]), epoch))
        length, steps = len(loader), 0
        for images, target in loader:
            assert images.shape == (BATCH, 3, SIDE, SIDE)
            assert images.dtype == torch.float32
            train_data.update(loss_of(target.float(), epoch))
            steps += 1
        assert steps == length
    for pruned in (plain, train_data):
        pruned.set_epoch(EPOCHS)
    assert torch.equal(train_data.scores.nan_to_num(-1), plain.scores.nan_to_num(-1))
    assert str(train_data.savings) == str(plain.savings)
    assert train_data.savings.saved > 0


def test_it_is_timms_loader_but_for_the_sampler():
    train_data = infobatch.InfoBatch(Pictures(), EPOCHS)
    options = {"persistent_workers": True, "num_workers": 1, "pin_memory": False}
    ours = loader_of(train_data, use_prefetcher=True, re_prob=0.5, **options)
    theirs = timm.data.create_loader(
        Pictures(),
        (3, SIDE, SIDE),
        BATCH,
        is_training=True,
        device=torch.device("cpu"),
        re_prob=0.5,
        **options,
    )
    assert type(ours) is type(theirs)
    assert ours.random_erasing is not None
    assert ours.sampler is train_data.sampler
    for name in ("batch_size", "drop_last", "num_workers", "collate_fn", "pin_memory"):
        assert getattr(ours.loader, name) == getattr(theirs.loader, name)
    assert ours.loader.persistent_workers
    assert str(train_data.dataset.transform) == str(theirs.dataset.transform)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_aug_repeats": 3}, r"num_aug_repeats=3\) cannot be used with pruning"),
        ({"num_aug_splits": 2}, "the copies of a sample would share one score"),
        ({"use_multi_epochs_loader": True}, "it never ends an epoch"),
        ({"input_size_choices": [24, 32]}, "it has its own batch sampler"),
        ({"collate_fn": timm.data.FastCollateMixup()}, r"loses the labels .*timm\.Mixup"),
    ],
)
def test_what_does_not_go_with_pruning_raises(options, message):
    with pytest.raises(ValueError, match=message):
        loader_of(infobatch.InfoBatch(Pictures(), EPOCHS), **options)


def test_a_data_set_that_is_not_pruned_raises():
    with pytest.raises(
        TypeError, match=r"create_train_loader\(\) got Pictures, expected an InfoBatch"
    ):
        loader_of(Pictures())


# A whole training, as timm's script does it.

MIX = {"mixup_alpha": 0.2, "cutmix_alpha": 1.0, "label_smoothing": 0.1, "num_classes": CLASSES}
TRAININGS = {
    "cross entropy": (nn.CrossEntropyLoss(), None),
    "label smoothing": (LabelSmoothingCrossEntropy(0.1), None),
    "binary": (BinaryCrossEntropy(), None),
    "soft targets, mixed": (SoftTargetCrossEntropy(), MIX),
    "binary, mixed": (BinaryCrossEntropy(), MIX),
    "binary, mixed, threshold": (BinaryCrossEntropy(target_threshold=0.2), MIX),
}


def cross_entropy_on(batches, model):
    """The mean on pictures that are not mixed: the loss of mixed ones is as noisy as the mixing."""
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(model(x), y).item() for x, y in batches]
    return sum(losses) / len(losses)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("name", TRAININGS)
def test_a_resnet_trains(name, accumulate):
    criterion, mix = TRAININGS[name]
    seed_numpy(0)
    model = timm.create_model("resnet10t", num_classes=CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = Pictures()
    train_data = infobatch.InfoBatch(data, EPOCHS, delta=1.0)
    loader = loader_of(
        train_data, use_prefetcher=True, no_aug=True, mean=(0.5,) * 3, std=(0.25,) * 3
    )
    mixup = None if mix is None else Mixup(**mix)
    losses_of = per_sample(criterion, mixup)
    updates_per_epoch = -(-len(loader) // accumulate)
    schedule, _ = create_scheduler_v2(
        optimizer,
        sched="cosine",
        num_epochs=EPOCHS,
        warmup_epochs=0,
        min_lr=1e-5,
        step_on_epochs=False,
        updates_per_epoch=updates_per_epoch,
    )
    untrained, seen, at_epoch_ends = copy.deepcopy(model), [], []
    for epoch in range(EPOCHS):
        train_data.set_epoch(epoch)
        batches = len(loader)
        for step, (x, y) in enumerate(loader, 1):
            if epoch == 0:
                seen.append((x.clone(), y))
            inputs, target = (x, y) if mixup is None else mixup(x, y)
            loss = train_data.update(losses_of(model(inputs), target))
            (loss / accumulate).backward()
            if step % accumulate and step < batches:
                continue
            optimizer.step()
            optimizer.zero_grad()
            schedule.step_update(num_updates=train_data.virtual_step(updates_per_epoch))
        schedule.step(epoch + 1)
        at_epoch_ends.append(optimizer.param_groups[0]["lr"])
        assert train_data.virtual_step(updates_per_epoch) == (epoch + 1) * updates_per_epoch
    expected = []
    for epoch in range(EPOCHS):
        schedule.step_update(num_updates=(epoch + 1) * updates_per_epoch)
        expected.append(optimizer.param_groups[0]["lr"])
    assert at_epoch_ends == expected
    assert at_epoch_ends[-1] == pytest.approx(1e-5)
    assert cross_entropy_on(seen, model) < cross_entropy_on(seen, untrained) - 0.1
    assert train_data.savings.saved > 0
    assert train_data.scores.isfinite().all()


# Checkpoints.


def saved_run(folder, kind=CheckpointSaver, **options):
    """An epoch and a half of training, and a saver for it."""
    train_data = infobatch.InfoBatch(Pictures(numbered=True), EPOCHS, delta=1.0)
    for epoch in range(2):
        for step, (_, target) in enumerate(loader_of(train_data)):
            if epoch and step == 2:
                break
            train_data.update(loss_of(target.float(), epoch))
    model = nn.Linear(2, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    task = ClassificationTask(model, nn.CrossEntropyLoss(), verbose=False)
    if kind is CheckpointSaver:
        options["train_data"] = train_data
    folders = {"checkpoint_dir": str(folder), "recovery_dir": str(folder)}
    saver = kind(model, optimizer, args=Namespace(model="linear"), task=task, **folders, **options)
    return train_data, saver, task


@pytest.mark.parametrize("file", ["last", "model_best", "checkpoint-1", "recovery-1-2"])
def test_timm_s_checkpoints_have_the_scores(file, tmp_path):
    train_data, saver, task = saved_run(tmp_path)
    saver.save_checkpoint(1, metric=0.5)
    saver.save_recovery(1, batch_idx=2)
    path = tmp_path / f"{file}.pth.tar"
    resumed = infobatch.InfoBatch(Pictures(numbered=True), EPOCHS, delta=1.0)
    load_pruning(resumed, path)
    assert resumed.epoch == train_data.epoch == 1
    assert torch.equal(resumed.scores, train_data.scores)
    for epochs in (train_data, resumed):  # timm continues with the epoch after the saved one
        epochs.set_epoch(2)
    assert torch.equal(resumed.plan.order, train_data.plan.order)
    assert str(resumed.savings) == str(train_data.savings)
    assert resume_task_checkpoint(task, str(path), log_info=False) == 2


def test_checkpoints_without_scores_are_told(tmp_path):
    train_data, saver, task = saved_run(tmp_path, timm.utils.CheckpointSaver)
    saver.save_checkpoint(1, metric=0.5)
    message = (
        r"load_pruning\(\) found no scores in .*last.pth.tar, expected a checkpoint of .*Saver"
    )
    with pytest.raises(ValueError, match=message):
        load_pruning(train_data, tmp_path / "last.pth.tar")
    message = r"CheckpointSaver\(train_data=…\) got Pictures, expected the InfoBatch"
    with pytest.raises(TypeError, match=message):
        CheckpointSaver(train_data=Pictures(), task=task, model=None, optimizer=None)


def run_page(options=""):
    """Run the page's loop, and return its names."""
    (block,) = examples("docs/timm.md")
    block = block.replace("num_epochs)", f"num_epochs{options})", 1)
    model = timm.create_model("resnet10t", num_classes=CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule, _ = create_scheduler_v2(
        optimizer, "cosine", num_epochs=EPOCHS, step_on_epochs=False, updates_per_epoch=10
    )
    namespace = {
        "dataset": Pictures(),
        "num_epochs": EPOCHS,
        "num_classes": CLASSES,
        "input_size": (3, SIDE, SIDE),
        "batch_size": BATCH,
        "device": torch.device("cpu"),
        "model": model,
        "optimizer": optimizer,
        "scheduler": schedule,
    }
    exec(compile(block, "timm.md", "exec"), namespace)
    return namespace


def test_page(capsys):
    optimizer = run_page()["optimizer"]
    assert capsys.readouterr().out.startswith("Saved")
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


def test_the_forecast():
    train_data = run_page(', policy="none", shadow=("mean", "auto")')["train_data"]
    assert train_data.savings.saved == 0
    rules = train_data.forecast().rules
    assert [len(rule.epochs) for rule in rules.values()] == [EPOCHS, EPOCHS]
    assert rules["mean"].left_out > 0.1
    assert "infobatch/forecast/auto/realised_noise" in train_data.savings.as_dict()


def test_example():
    code = "import torchvision_operators, runpy, sys; sys.argv = sys.argv[1:];"
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, str(ROOT / "examples" / "timm_fashion.py")]
    path = os.pathsep.join([str(ROOT / "tests/support"), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [*command, "--epochs", "2", "--samples", "256"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "rate 0.0000" in run.stdout.splitlines()[-2]
    assert run.stdout.splitlines()[-1].startswith("Saved")


def test_what_is_used_of_timm():
    """A release that changes any of this needs infobatch.integrations.timm looked at again."""
    loader = timm.data.create_loader(
        Pictures(),
        (3, SIDE, SIDE),
        BATCH,
        is_training=True,
        num_workers=0,
        device=torch.device("cpu"),
    )
    assert type(loader) is timm.data.loader.PrefetchLoader
    assert type(loader.loader) is DataLoader
    assert loader.loader.drop_last
    source = inspect.getsource(timm.data.create_loader)
    for name in ("dataset.transform = create_transform(", "loader_class(dataset, **loader_args)"):
        assert name in source
    call = inspect.getsource(timm.data.Mixup.__call__)
    assert "mixup_target(target, self.num_classes, lam, self.label_smoothing)" in call
    mixed = timm.data.mixup.mixup_target(torch.arange(4), 4, 0.75)
    assert torch.equal(mixed, 0.75 * torch.eye(4) + 0.25 * torch.eye(4).flip(0))


def test_docstrings_are_complete():
    names = list(public_names("infobatch.integrations.timm"))
    assert names
    for name in names:
        for owner, target in callables(name):
            assert missing(target) == [], owner
