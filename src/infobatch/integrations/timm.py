"""Parts for timm's training script: loader, per-sample losses, MixUp and checkpoints."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from infobatch import InfoBatch, PerSample
from infobatch.integrations.versions import require
from infobatch.trainers import GRADIENT

require("timm", ">=1.0.30,<1.1", extra="timm")

import timm.data  # noqa: E402 - after the check of its version
import timm.loss  # noqa: E402
import timm.utils  # noqa: E402
from timm.data.loader import PrefetchLoader  # noqa: E402
from timm.data.mixup import mixup_target  # noqa: E402

Losses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Options that break the matching of losses to samples, or need timm's own sampler.
_UNSUPPORTED = {
    "num_aug_repeats": "repeated samples would share one weight",
    "num_aug_splits": "the copies of a sample would share one score",
    "input_size_choices": "it has its own batch sampler",
    "use_multi_epochs_loader": "it never ends an epoch; use persistent_workers instead",
}


def create_train_loader(train_data: InfoBatch, *args: Any, **kwargs: Any) -> Any:
    """timm's ``create_loader`` for a training set that prunes its own epochs.

    For evaluation, keep timm's ``create_loader``.

    Args:
        train_data: an ``InfoBatch`` around the data set that timm created, whose transform is set as in
            timm.
        args, kwargs: as in ``timm.data.create_loader``.

    Returns:
        What ``create_loader`` returns, with a loader of the epochs' samples inside.

    Raises:
        TypeError: if ``train_data`` is not an ``InfoBatch``.
        ValueError: if an option cannot be used with pruning: repeated or split augmentation, a
            choice of input sizes, the multi-epoch loader, or ``FastCollateMixup``.
    """
    if not isinstance(train_data, InfoBatch):
        raise TypeError(
            f"create_train_loader() got {type(train_data).__name__}, expected an InfoBatch: "
            "infobatch.InfoBatch(dataset_train, num_epochs). For evaluation use timm's create_loader."
        )
    for name, reason in _UNSUPPORTED.items():
        if kwargs.get(name):
            raise ValueError(
                f"create_train_loader({name}={kwargs[name]!r}) cannot be used with pruning: {reason}. Leave it out."
            )
    if isinstance(kwargs.get("collate_fn"), timm.data.FastCollateMixup):
        raise ValueError(
            "create_train_loader(collate_fn=FastCollateMixup) loses the labels of the mixed samples, which "
            "their scores need. Leave it out, and mix in the loop: infobatch.integrations.timm.Mixup."
        )
    loader = timm.data.create_loader(train_data.dataset, *args, **kwargs)
    inner = loader.loader if isinstance(loader, PrefetchLoader) else loader
    pruned: DataLoader[Any] = DataLoader(
        train_data,
        batch_size=inner.batch_size,
        sampler=train_data.sampler,
        drop_last=inner.drop_last,
        num_workers=inner.num_workers,
        collate_fn=inner.collate_fn,
        pin_memory=inner.pin_memory,
        worker_init_fn=inner.worker_init_fn,
        persistent_workers=inner.persistent_workers,
    )
    if not isinstance(loader, PrefetchLoader):
        return pruned
    loader.loader = pruned
    return loader


class Mixup(timm.data.Mixup):  # type: ignore[misc]
    """timm's ``Mixup`` (MixUp, CutMix, all modes) that also remembers which samples it mixed.

    Pass it to :func:`per_sample` together with the criterion; its arguments are timm's.

    Attributes:
        labels: the labels of the last batch before mixing.
        lam: each sample's share of the image at its own position; the rest is its partner's.
    """

    num_classes: int
    label_smoothing: float
    labels: torch.Tensor | None = None
    lam: torch.Tensor

    def __call__(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mix a batch in place; return it with its soft targets."""
        classes, smoothing = self.num_classes, self.label_smoothing
        # With the position in the batch as the label, the returned targets are the shares.
        self.num_classes, self.label_smoothing = len(x), 0.0
        try:
            x, shares = super().__call__(x, torch.arange(len(x), device=target.device))
        finally:
            self.num_classes, self.label_smoothing = classes, smoothing
        self.labels, self.lam = target, shares.diagonal()
        soft: torch.Tensor = mixup_target(target, classes, self.lam.unsqueeze(1), smoothing)
        return x, soft


def per_sample(
    criterion: nn.Module, mixup: Mixup | None = None
) -> Callable[[torch.Tensor, torch.Tensor], PerSample]:
    """Turn a criterion into one loss per sample, whose plain mean is the criterion's value.

    With ``mixup``, the losses are divided among the samples that were mixed, and ranked by the score of
    the paper's appendix A.3: how far the model's probabilities for a sample's label fall short of
    the mixed targets, in both images that contain the sample.

    Args:
        criterion: ``nn.CrossEntropyLoss``, or timm's ``LabelSmoothingCrossEntropy``,
            ``SoftTargetCrossEntropy`` or ``BinaryCrossEntropy``.
        mixup: the :class:`Mixup` that mixes the batches, if they are mixed.

    Returns:
        A function of output and target, whose result is passed to ``update``. Unless it is plain
        cross-entropy, the result has the sizes of the gradients, which rules such as ``"auto"`` need:
        a smoothed loss does not show them.

    Raises:
        TypeError: if the criterion is another one or has class weights, would smooth the mixed targets
            a second time, or ``mixup`` is timm's own.
    """
    losses_of = _unreduced(criterion)
    if mixup is None:
        is_plain = isinstance(criterion, nn.CrossEntropyLoss) and not criterion.label_smoothing
        return _Unmixed(losses_of, is_plain)
    if not isinstance(mixup, Mixup):
        raise TypeError(
            f"per_sample(mixup=…) got {type(mixup).__module__}.{type(mixup).__name__}, expected "
            "infobatch.integrations.timm.Mixup: timm's own does not keep the labels that it has mixed."
        )
    if isinstance(criterion, timm.loss.LabelSmoothingCrossEntropy):
        raise TypeError(
            "per_sample(LabelSmoothingCrossEntropy(), mixup) would smooth twice: Mixup's targets are "
            "smoothed already. Expected SoftTargetCrossEntropy() and Mixup(label_smoothing=…)."
        )
    return _Mixed(criterion, losses_of, mixup)


def _unreduced(criterion: nn.Module) -> Losses:
    if isinstance(criterion, timm.loss.LabelSmoothingCrossEntropy):
        return nn.CrossEntropyLoss(reduction="none", label_smoothing=criterion.smoothing)
    if isinstance(criterion, timm.loss.SoftTargetCrossEntropy):
        return _soft_target_cross_entropy
    if isinstance(criterion, nn.CrossEntropyLoss) and criterion.weight is None:
        return nn.CrossEntropyLoss(reduction="none", label_smoothing=criterion.label_smoothing)
    if isinstance(criterion, timm.loss.BinaryCrossEntropy) and (
        criterion.sum_classes or criterion.reduction == "mean"
    ):
        each_class = copy.copy(criterion)
        each_class.reduction, each_class.sum_classes = "none", False
        if criterion.sum_classes:
            return lambda output, target: each_class(output, target).sum(1)
        return lambda output, target: each_class(output, target).mean(1)
    raise TypeError(
        f"per_sample() got {type(criterion).__name__}, expected nn.CrossEntropyLoss without class weights, or timm's "
        "LabelSmoothingCrossEntropy, SoftTargetCrossEntropy or BinaryCrossEntropy with the mean over "
        "the batch. For another loss, pass update() a 1-D tensor with one loss per sample."
    )


def _soft_target_cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    dtype = torch.promote_types(output.dtype, target.dtype)  # as in timm's product
    return functional.cross_entropy(output.to(dtype), target.to(dtype), reduction="none")


class _Unmixed:
    """The losses, with the sizes of their gradients where these do not follow from them."""

    def __init__(self, losses_of: Losses, is_plain: bool) -> None:
        self._losses_of, self._is_plain = losses_of, is_plain

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> PerSample:
        losses = self._losses_of(output, target)
        if self._is_plain:
            return PerSample(losses, losses.detach())
        sizes = _squares(self._losses_of, output, target).sqrt()
        return PerSample(losses, losses.detach(), {GRADIENT: sizes})


def _squares(losses_of: Losses, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """‖gradient‖² of each loss with respect to its row of the output."""
    with torch.enable_grad():
        free = output.detach().float().requires_grad_()
        (gradient,) = torch.autograd.grad(losses_of(free, target).sum(), free)
    return gradient.square().sum(1)


class _Mixed:
    """The losses of a mixed batch, divided among the samples in it."""

    def __init__(self, criterion: nn.Module, losses_of: Losses, mixup: Mixup) -> None:
        self._losses_of = losses_of
        self._mixup = mixup
        self._binary = isinstance(criterion, timm.loss.BinaryCrossEntropy)
        # Thresholded targets are no longer mixtures: the loss is then divided in proportion to lam.
        self._divisible = getattr(criterion, "target_threshold", None) is None

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> PerSample:
        labels = self._mixup.labels
        if labels is None or labels.shape[0] != output.shape[0]:
            mixed = None if labels is None else labels.shape[0]
            raise RuntimeError(
                f"per_sample(…, mixup) got outputs for {output.shape[0]} samples where the last batch "
                f"that went through mixup has {mixed}. Expected input, target = mixup(input, target) "
                "before each forward; use timm's own criterion for evaluation."
            )
        lam = self._mixup.lam
        targets = (target, target)
        if self._divisible:
            smoothing, classes = self._mixup.label_smoothing, output.shape[1]
            pure = mixup_target(labels, classes, 1.0, smoothing)
            targets = (pure, pure.flip(0))
        # A sample has share lam at its own position, and the remaining share at its partner's.
        at_home, others = (self._losses_of(output, wanted) for wanted in targets)
        losses = lam * at_home + ((1 - lam) * others).flip(0)
        at_home, others = (_squares(self._losses_of, output, wanted) for wanted in targets)
        squares = lam.square() * at_home + ((1 - lam).square() * others).flip(0)
        scores = self._scores(output.detach(), target, labels, lam)
        return PerSample(losses, scores, {GRADIENT: squares.sqrt()})

    def _scores(
        self, output: torch.Tensor, target: torch.Tensor, labels: torch.Tensor, lam: torch.Tensor
    ) -> torch.Tensor:
        output = output.float()
        probabilities = output.sigmoid() if self._binary else functional.softmax(output, dim=1)
        missing = target.float() - probabilities
        in_place = missing.gather(1, labels.unsqueeze(1)).squeeze(1)
        in_partner = missing.flip(0).gather(1, labels.unsqueeze(1)).squeeze(1)
        return in_place + torch.where(lam.flip(0) < 1, in_partner, 0.0)


_ENTRY = "infobatch"  # in timm's checkpoints


class CheckpointSaver(timm.utils.CheckpointSaver):  # type: ignore[misc]
    """timm's ``CheckpointSaver``, which also saves the state of ``train_data``.

    timm saves on only one process. After an epoch's last update that is enough, because the
    processes have exchanged their losses. A recovery file from the middle of an epoch has only this
    process's losses of that epoch.

    Args:
        train_data: the ``InfoBatch`` that is trained on.
        args, task, kwargs: as in ``timm.utils.CheckpointSaver``.

    Raises:
        TypeError: if ``train_data`` is not an ``InfoBatch``.
    """

    def __init__(self, *args: Any, train_data: InfoBatch, task: Any, **kwargs: Any) -> None:
        if not isinstance(train_data, InfoBatch):
            raise TypeError(
                f"CheckpointSaver(train_data=…) got {type(train_data).__name__}, expected the InfoBatch "
                "that is trained on. Without pruning use timm.utils.CheckpointSaver."
            )
        super().__init__(*args, task=_TaskAndData(task, train_data), **kwargs)


class _TaskAndData:
    """Stands in for the task when timm's saver asks what to save."""

    def __init__(self, task: Any, train_data: InfoBatch) -> None:
        self._task = task
        self._train_data = train_data

    def get_checkpoint_state(self, ema: bool = False, **options: Any) -> dict[str, Any]:
        """The task's checkpoint entries, plus infobatch's."""
        entries: dict[str, Any] = self._task.get_checkpoint_state(ema=ema, **options)
        # Recovery files are written in the middle of an epoch, where the other ranks do not take part.
        return entries if ema else {**entries, _ENTRY: self._train_data.state_dict(gather=False)}


def load_pruning(train_data: InfoBatch, checkpoint_path: str | Path) -> None:
    """Load the state of ``train_data`` from a checkpoint written by :class:`CheckpointSaver`.

    Call it after creating the scheduler: from then on, the loader has the next epoch's length.

    Args:
        train_data: the ``InfoBatch`` that training continues with.
        checkpoint_path: the file that the saver wrote.

    Raises:
        ValueError: if the checkpoint has no such state.
    """
    with torch.serialization.safe_globals(
        [argparse.Namespace]
    ):  # timm saves the script's arguments
        checkpoint = torch.load(checkpoint_path, map_location="cpu", weights_only=True, mmap=True)
    if _ENTRY not in checkpoint:
        raise ValueError(
            f"load_pruning() found no scores in {checkpoint_path}, expected a checkpoint of "
            "infobatch.integrations.timm.CheckpointSaver. Leave the call out to continue without "
            "scores: the next epoch then visits all samples."
        )
    train_data.load_state_dict(checkpoint[_ENTRY])
