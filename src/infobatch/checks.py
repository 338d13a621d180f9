"""Checks of user arguments: each error says what was called, what it got and what to do."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset

from infobatch.per_sample import GRADIENT, PerSample

Rows = torch.Tensor | np.ndarray[Any, Any]  # one value per sample


def check_dataset(call: str, dataset: object) -> None:
    """Raise if data cannot be read by index, or has no length."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"{call} got {type(dataset).__name__}, expected a data set that is read "
            "by index: pruning chooses which samples to read. If its samples have keys, use "
            "KeyedPruner, which prunes streamed data before it is decoded (docs/streamed.md); or load the "
            "stream into a list or a memory-mapped data set first."
        )
    if not hasattr(dataset, "__len__"):
        raise TypeError(
            f"{call} got {type(dataset).__name__}, which has no length. Expected a "
            "data set with __len__: a score is kept for each sample. Give it one, or wrap it in "
            "torch.utils.data.Subset(dataset, range(n))."
        )


def check_count(name: str, value: Any, why: str, *, least: int = 1) -> int:
    """Return an integer of at least ``least``, or raise an error that names the argument."""
    try:
        count = operator.index(value)
    except TypeError:
        count = least - 1
    if isinstance(value, bool) or count < least:
        raise ValueError(f"{name} got {value!r}, expected an integer >= {least}: {why}.")
    return count


def check_epochs(num_epochs: Any) -> int:
    """Return the number of epochs, or raise an error; a fraction is a misplaced prune ratio."""
    why = "training takes at least one epoch"
    if isinstance(num_epochs, float) and 0 < num_epochs < 1:
        why += ". Is it the ratio? InfoBatch's order is (dataset, num_epochs, prune_ratio, delta)"
    return check_count("num_epochs", num_epochs, why)


def check_delta(delta: Any, default: float) -> float:
    """Return delta, the share of epochs that prune, or raise an error; None is the default."""
    if delta is None:
        delta = default
    if not isinstance(delta, int | float | np.floating) or not 0 <= delta <= 1:
        raise ValueError(
            f"delta got {delta!r}, expected a share of the epochs, a number in [0, 1]: 0.875 prunes "
            "in the first seven eighths of the epochs, 0 never, 1 always."
        )
    return float(delta)


def check_steps(call: str, steps_per_epoch: Any) -> int:
    """Return the number of steps of a full epoch, or raise an error."""
    why = "it counts the optimizer steps of an epoch over all data"
    return check_count(f"{call}: steps_per_epoch", steps_per_epoch, why)


def check_shrink(shrink: object) -> None:
    """Raise at anything but the two ways in which an epoch can get smaller."""
    if shrink not in ("epoch", "batch"):
        raise ValueError(
            f"batch_sampler(shrink=…) got {shrink!r}, expected 'epoch' (a pruned epoch has fewer "
            "batches) or 'batch' (it has as many, each smaller)."
        )


def check_batch(
    call: str, losses: torch.Tensor | PerSample, scores: torch.Tensor | None, index: Any
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return the losses, scores and indices that a loop reports for a batch, or raise an error."""
    if isinstance(losses, PerSample):
        scores = losses.scores if scores is None else scores
        losses = losses.losses
    check_losses(f"{call}()", losses)
    check_not_captured(call, losses)
    if scores is not None:
        check_scores(scores, losses)
    if index is not None:
        index = check_index(call, index, losses)
    return losses, scores, index


def check_counts(call: str, losses: torch.Tensor | PerSample) -> PerSample | None:
    """Return a batch whose loss is divided by counts, None for others; raise an error if they do not fit."""
    if not isinstance(losses, PerSample) or losses.counts is None:
        return None
    shape = losses.losses.shape
    for values in (losses.counts, *chain.from_iterable(losses.parts)):
        if not isinstance(values, torch.Tensor) or values.shape != shape:
            got = getattr(values, "shape", type(values).__name__)
            raise ValueError(
                f"{call}() got a PerSample with counts or parts of {got}, expected one number per sample: "
                f"tensors of shape {tuple(shape)}."
            )
    return losses


def check_not_captured(call: str, losses: torch.Tensor) -> None:
    """Raise while a CUDA graph is being captured: it would repeat this batch's weights for ever."""
    if losses.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{call}() was called while a CUDA graph is being captured, which would freeze this "
            "batch's samples and weights in it. Expected a captured step that is a pure function: pass "
            "it batch_weights(), copied into a tensor of its own before each replay, and call "
            "record(losses) after it, outside of the graph. See docs/accelerators.md."
        )


def check_extras(
    call: str,
    losses: torch.Tensor | PerSample,
    extras: Mapping[str, torch.Tensor] | None,
    needed: Sequence[str],
    policy: object,
) -> list[torch.Tensor | None]:
    """Return the values reported besides the losses, detached, or raise an error if a batch lacks one.

    The sizes of gradients are None if they are not reported: every rule can do without them.
    """
    known = [extras or {}]
    if isinstance(losses, PerSample):
        known.append(losses.extras)
        losses = losses.losses
    columns: list[torch.Tensor | None] = []
    for name in needed:
        # One by one: sizes of gradients are computed only where they are needed.
        values = next((part[name] for part in known if name in part), None)
        if values is None and name == GRADIENT:
            columns.append(None)
            continue
        if values is None:
            raise ValueError(
                f"{call}() got no {name!r} for its samples, which {policy!r} needs. Pass "
                f"{call}(…, extras={{{name!r}: …}}), one value per sample, or a PerSample that "
                "has it among its extras."
            )
        if not isinstance(values, torch.Tensor) or values.shape != losses.shape:
            got = getattr(values, "shape", type(values).__name__)
            raise ValueError(
                f"{call}(extras=…) got {got} for {name!r}, expected one value per sample: a tensor "
                f"of shape {tuple(losses.shape)}."
            )
        columns.append(values.detach())
    return columns


def check_rows(
    name: str, values: object, num_samples: int, *, positive: bool
) -> npt.NDArray[Any] | None:
    """Return one value per sample as an array, or raise an error that names the argument."""
    if values is None:
        return None
    array = values.cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.shape != (num_samples,):
        raise ValueError(
            f"{name} got an array of shape {array.shape}, expected one value for each of the "
            f"{num_samples} samples."
        )
    if positive and not (usable := np.isfinite(array) & (array > 0)).all():
        sample = usable.argmin()
        raise ValueError(
            f"{name} got {array[sample]} for sample {sample}, expected finite numbers > 0."
        )
    return array.astype(np.float32) if positive else array


def check_share(name: str, value: object, why: str) -> float | None:
    """Return a share in [0, 1] or None, or raise an error that names the argument."""
    if value is None:
        return None
    if not isinstance(value, int | float | np.floating) or not 0 <= value <= 1:
        raise ValueError(f"{name} got {value!r}, expected a share in [0, 1]: {why}.")
    return float(value)


def check_losses(call: str, losses: object) -> None:
    """Raise at anything but one floating point loss per sample."""
    if not isinstance(losses, torch.Tensor):
        raise TypeError(
            f"{call} got {type(losses).__name__}, expected a tensor with one loss per sample. Build "
            'the criterion with reduction="none" and pass what it returns.'
        )
    if type(losses) is not torch.Tensor and hasattr(losses, "full_tensor"):
        raise TypeError(
            f"{call} got a {type(losses).__name__}, expected a plain tensor with one loss for each sample of "
            "this rank's batch. Pass losses.full_tensor() if the samples are divided among the ranks of its "
            "mesh, or losses.to_local() if each of them has all (and model_group= where they share a batch)."
        )
    if losses.dim() != 1:
        got = "a scalar" if losses.dim() == 0 else f"losses of shape {tuple(losses.shape)}"
        remedy = (
            'Build the criterion with reduction="none".'
            if losses.dim() == 0
            else "Reduce each sample's losses to one number, for instance losses.flatten(1).mean(1)."
        )
        raise ValueError(f"{call} got {got}, expected one loss per sample: a 1-D tensor. {remedy}")
    if not losses.is_floating_point():
        raise TypeError(
            f"{call} got losses of {losses.dtype}, expected floating point numbers: an integer has "
            "no gradient. Pass the criterion's output, not the labels or predictions."
        )
    if not losses.numel():
        raise ValueError(
            f"{call} got no losses, expected one per sample. For a batch without samples call skip()."
        )


def check_scores(scores: object, losses: torch.Tensor, call: str = "update") -> None:
    """Raise at scores that do not have the shape of the losses."""
    if not isinstance(scores, torch.Tensor) or scores.shape != losses.shape:
        got = getattr(scores, "shape", type(scores).__name__)
        raise ValueError(
            f"{call}(scores=…) got {got}, expected one score per sample, as the losses have: a "
            f"tensor of shape {tuple(losses.shape)}."
        )


def check_index(call: str, index: Any, losses: torch.Tensor | None = None) -> torch.Tensor:
    """Return the samples' indices as int64, one for each loss, or raise an error."""
    samples = index if isinstance(index, torch.Tensor) else torch.as_tensor(index)
    if losses is not None and samples.dtype is torch.int64 and samples.shape == losses.shape:
        return samples
    if losses is None:  # only the indices themselves
        losses = samples.flatten()
    if samples.is_floating_point() or samples.dtype is torch.bool or samples.shape != losses.shape:
        raise ValueError(
            f"{call}(index=…) got {samples.dtype} of shape {tuple(samples.shape)}, expected a sample "
            f"index for each of the {len(losses)} losses. If a collate function drops samples, "
            "drop their indices with them (see with_index)."
        )
    return samples.to(torch.int64)
