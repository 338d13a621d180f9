"""A probe of the true gradients: their sizes, sample by sample, from the backward pass that runs anyway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch._compile import _disable_dynamo  # torch.compiler.disable, but imports Dynamo when called

from infobatch.checks import check_count
from infobatch.per_sample import GRADIENT, PerSample
from infobatch.policies.gradient import gradient_size

if TYPE_CHECKING:
    from typing_extensions import Self

Watched = TypeVar("Watched", torch.Tensor, PerSample)
Numbers = npt.NDArray[np.float64]

_REPORTED_EVERY = (
    8  # batches: computing the sizes that scoring reports takes a pass over the logits
)
_NOT_KNOWN = torch.tensor(torch.nan)
_BY_REPORTED = "    by the size that the scoring function reports       {:.0%}"
_TAU = 0.2  # the added noise at which the report compares what has to be kept: that of "auto"
_FLOOR = 0.25  # and its smallest probability of being kept


class Probe:
    """Measures the size of each sample's gradient at the output of one layer.

    Rules such as ``"auto"`` keep samples in proportion to the sizes of their gradients, which they
    estimate from the losses. In language models, segmentation and masked autoencoders the loss says
    little about the gradient. The probe measures it: a hook on the layer's output h takes the norm of
    ∂ loss_i / ∂ h_i of each sample i in the backward pass. The gradient that arrives at the losses
    themselves is measured as well, and divided out: pruning weights, a GradScaler's factor, the mean
    over the batch, gradient accumulation, whatever lies between the losses and ``backward()``.

    Give it the losses of each batch before they are reduced, and read :attr:`sizes` after the backward
    pass::

        probe = infobatch.Probe(model.layer3)
        for x, y in loader:
            weights = train_data.batch_weights(device=x.device)
            losses = probe.watch(criterion(model(x), y))
            (weights * losses).mean().backward()
            train_data.record(losses, extras={"gradient": probe.sizes})

    With ``train_data.update(losses)`` the probe works as well, but the sizes come too late for this
    batch: use it to look (``print(probe.report())``), and the form above to prune by what it sees.

    Nothing waits for the device before :attr:`numbers` or :meth:`report` is asked for. Losses that are
    mixed between samples after the layer (batch normalisation in training mode, contrastive losses)
    make the sizes approximate: ∂ loss_i / ∂ h_i then is not all that arrives.

    Args:
        layer: the module whose output is measured; one in the middle of the network predicts the norm
            over all parameters best. Its output is a tensor, or a tuple, list or mapping whose first
            tensor counts, with one entry per sample. Under ``torch.compile``, create the probe before
            the first step; the graph is split at the layer.
        batch_dim: the dimension of the output that counts the samples, 1 for (time, batch, …).
        window: how many of the latest samples :attr:`numbers` and :meth:`report` are about.

    Raises:
        TypeError: if ``layer`` is not a module.

    >>> layer = nn.Linear(3, 1)
    >>> probe = Probe(layer)
    >>> losses = probe.watch(layer(torch.ones(4, 3)).squeeze(1) * torch.arange(4.0))
    >>> (0.5 * losses).mean().backward()  # neither the factor nor the mean matters
    >>> probe.sizes
    tensor([0., 1., 2., 3.])
    """

    def __init__(self, layer: nn.Module, *, batch_dim: int = 0, window: int = 8192) -> None:
        if not isinstance(layer, nn.Module):
            raise TypeError(
                f"Probe() got {type(layer).__name__}, expected a module of the model, such as "
                "model.layer3: the gradient is measured at its output."
            )
        self._batch_dim = check_count("Probe(): batch_dim", batch_dim, "it is a dimension", least=0)
        self._window = _Window(check_count("Probe(): window", window, "it counts samples", least=2))
        self._name = type(layer).__name__
        self._open: _Pass | None = None  # has run through the layer, its losses are still to come
        self._last: _Pass | None = None  # whose losses were watched last
        self._watched = 0  # batches
        self._handle = layer.register_forward_hook(self._after_forward)

    # For the training loop.

    def watch(self, losses: Watched) -> Watched:
        """Connect the losses of a batch with the gradients that will be measured.

        Call it once after each forward pass, with what ``update`` or the mean over the batch gets.

        Args:
            losses: one loss per sample, or a :class:`~infobatch.PerSample`.

        Returns:
            The argument itself.

        Raises:
            ValueError: if there is not one loss per sample, or not one entry of the layer's output.
            RuntimeError: if the losses have no gradient, or the layer ran several times.
        """
        values = losses.losses if isinstance(losses, PerSample) else losses
        if not isinstance(values, torch.Tensor) or values.dim() != 1:
            got = getattr(values, "shape", type(values).__name__)
            raise ValueError(
                f"watch() got losses of {got}, expected one per sample: a 1-D tensor, from a criterion "
                'with reduction="none".'
            )
        if not values.requires_grad:
            raise RuntimeError(
                "watch() got losses without a gradient, expected those that backward() will be called "
                "for. Call it in training steps only, outside torch.no_grad()."
            )
        step = self._open or _Pass()
        self._open = None
        if step.calls > 1:
            raise RuntimeError(
                f"watch() got losses of a batch for which the probed {self._name} ran {step.calls} times, "
                "expected once: the gradients of the runs would be confused. Probe a layer that runs "
                "once per step, call watch() after each forward pass, and evaluate under "
                "torch.no_grad()."
            )
        if step.size is not None:
            self._check_size(step.size, len(values))
        step.losses = values.detach()
        if isinstance(losses, PerSample) and self._watched % _REPORTED_EVERY == 0:
            step.reported = losses.extras.get(GRADIENT)
        self._watched += 1
        values.register_hook(step.at_losses)  # type: ignore[no-untyped-call]
        self._last = step
        return losses

    @property
    def sizes(self) -> torch.Tensor:
        """The size of each sample's gradient in the last backward pass, float32, (B,).

        NaN where it cannot be known: the sample has weight 0, or a half precision gradient overflowed.
        ``record`` takes NaN as "keeps its old score".

        Raises:
            RuntimeError: if no gradient has arrived since the last ``watch()``.
        """
        step = self._last
        if step is None or step.sizes is None:
            raise RuntimeError(
                f"Probe.sizes was asked for, but no gradient has arrived at the probed {self._name} since "
                "the last watch(). Expected losses = probe.watch(…) before backward() and sizes after it. "
                "If the model is compiled, create the probe before its first step; if the layer did not run "
                "or is frozen with all before it, probe another one."
            )
        return step.sizes

    # The hooks.

    @_disable_dynamo  # a hook within a compiled graph would not be called
    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        """Prepare for the gradient of this output, if it will have one."""
        tensor = next(_tensors(output), None)
        if tensor is None:
            raise TypeError(
                f"Probe got {type(output).__name__} from the probed {self._name}, expected a tensor, or a "
                "tuple, list or mapping with one. Probe another layer."
            )
        if not tensor.requires_grad or not torch.is_grad_enabled():
            return  # evaluation, or a checkpointed forward that will run again
        is_recomputed = in_backward()  # checkpointing
        step = self._last if is_recomputed else self._open
        if step is None:
            step = self._open = _Pass()
        if not is_recomputed:
            step.calls += 1
            dims = tensor.dim()
            if self._batch_dim >= dims:
                raise ValueError(
                    f"Probe(batch_dim={self._batch_dim}) got an output of shape {tuple(tensor.shape)} from the "
                    f"probed {self._name}, expected at least {self._batch_dim + 1} dimensions."
                )
            step.size = tensor.shape[self._batch_dim]
        tensor.register_hook(lambda gradient: self._at_layer(step, gradient))  # type: ignore[no-untyped-call]

    def _at_layer(self, step: _Pass, gradient: torch.Tensor) -> None:
        """The gradient has arrived at the layer's output."""
        if step.factors is None or step.losses is None:
            return  # the losses of this pass were not watched
        self._check_size(gradient.shape[self._batch_dim], len(step.losses))
        with torch.no_grad():
            rows = _rows(gradient, self._batch_dim)
            factors = step.factors.to(rows.device)
            usable = factors.isfinite() & (factors != 0)
            inverse = torch.where(usable, 1 / factors.abs(), torch.nan)
            norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float32)
            sizes = norms * inverse
            step.sizes = torch.where(sizes.isfinite(), sizes, torch.nan)
            # Samples that are not known do not count, neither here nor in their number.
            shares = torch.where(step.sizes.isfinite(), 1 / factors, 0.0)
            total = shares @ rows.float()
            known = [step.losses, step.reported if step.reported is not None else _NOT_KNOWN]
            columns = [column.to(rows.device, torch.float32).expand_as(sizes) for column in known]
            self._window.add(torch.stack([step.sizes, *columns]), total.square().sum())

    def _check_size(self, entries: int, count: int) -> None:
        if entries != count:
            raise ValueError(
                f"Probe(batch_dim={self._batch_dim}) found {entries} entries in the output of the probed "
                f"{self._name}, expected {count}, one per loss. Pass the dimension that counts the samples, "
                "batch_dim=1 for (time, batch, …), or probe a layer whose output keeps samples apart."
            )

    # For the user.

    @property
    def numbers(self) -> dict[str, float]:
        """What :meth:`report` says as numbers by name, for a logger; waits for the device.

        Empty before the first two samples. Each rank of a distributed job has its own.
        """
        return self._window.numbers()

    def report(self) -> str:
        """Say whether the loss shows the size of the gradient, and how noisy the gradient is.

        Returns:
            A few lines on the latest samples.
        """
        numbers = self.numbers
        if not numbers:
            return "No gradients measured yet."
        scale = numbers["probe/noise_scale"]
        noise_scale = "not measurable: the mean gradient is lost in the noise"
        if np.isfinite(scale):
            noise_scale = f"{scale:,.0f} samples, where a batch has {numbers['probe/batch']:,.0f}"
        kept = [numbers[f"probe/kept_by_{name}"] for name in ("size", "loss", "root")]
        reported = numbers.get("probe/kept_by_reported_size")
        by_reported = [] if reported is None else [_BY_REPORTED.format(reported)]
        return "\n".join(
            [
                f"Gradients at {self._name}, {numbers['probe/samples']:,.0f} samples:",
                f"  spread of the sizes (standard deviation / mean)   {numbers['probe/spread']:.2f}",
                f"  rank correlation with the loss                    {numbers['probe/rank_correlation']:.2f}",
                f"  correlation of the logarithms                     {numbers['probe/log_correlation']:.2f}",
                f"  to keep for {_TAU:.0%} more noise, by the true size      {kept[0]:.0%}",
                f"    by 1 − exp(−loss)                               {kept[1]:.0%}",
                f"    by the root of the loss                         {kept[2]:.0%}",
                *by_reported,
                f"  gradient noise scale at this layer: {noise_scale}",
            ]
        )

    def remove(self) -> None:
        """Remove the hook from the layer."""
        self._handle.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()


class _Pass:
    """One forward and backward pass: what has been noted of it so far."""

    def __init__(self) -> None:
        self.calls = 0  # of the layer
        self.size: int | None = None  # of the batch, as the layer has it
        self.losses: torch.Tensor | None = None
        self.reported: torch.Tensor | None = None  # sizes of gradients, by a scoring function
        self.factors: torch.Tensor | None = None  # ∂ (what backward() was called for) / ∂ losses
        self.sizes: torch.Tensor | None = None

    def at_losses(self, gradient: torch.Tensor) -> None:
        """The gradient has arrived at the losses."""
        self.factors = gradient.detach().float()


class _Window:
    """The latest measured sizes, losses and reported sizes on the device, and the sums that the noise scale needs."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._seen = 0
        self._batches = 0
        self._columns: torch.Tensor | None = None  # (3, length)
        self._sums = torch.zeros(4)

    def add(self, columns: torch.Tensor, squared_sum: torch.Tensor) -> None:
        """Add a batch, and ‖Σ gradients‖² of its samples."""
        if self._columns is None or self._columns.device != columns.device:
            empty = torch.full((len(columns), self._length), torch.nan, device=columns.device)
            self._columns = empty if self._columns is None else self._columns.to(columns.device)
            self._sums = self._sums.to(columns.device)
        sizes, batch = columns[0], columns[:, -self._length :]
        count = batch.shape[1]
        at = self._seen % self._length
        first = min(count, self._length - at)
        self._columns[:, at : at + first] = batch[:, :first]
        self._columns[:, : count - first] = batch[:, first:]
        self._seen += count
        self._batches += 1
        # Unbiased for any batch of n gradients g: (‖Σ g‖² − Σ ‖g‖²) / (n (n − 1)) for the squared
        # mean, and Σ ‖g‖² / n for the mean square; both are averaged over batches, then compared.
        known = sizes.isfinite()
        number = known.sum()
        squares = torch.where(known, sizes, 0.0).square().sum()
        pairs = (number * (number - 1)).clamp_min(1)
        newest = torch.stack(
            [
                (squared_sum - squares) / pairs,
                squares / number.clamp_min(1),
                number.float(),
                (number > 1).float(),
            ]
        )
        # A memory of about as many batches as the window has.
        decay = max(0.0, 1 - count / self._length)
        usable = (number > 1) & newest.isfinite().all()  # an overflow in half precision
        self._sums = torch.where(usable, decay * self._sums + newest, self._sums)

    def numbers(self) -> dict[str, float]:
        """See :attr:`Probe.numbers`."""
        if self._columns is None:
            return {}
        sizes, losses, reported = self._columns.double().cpu().numpy()
        known = np.isfinite(losses) & np.isfinite(sizes)
        sizes, losses, reported = sizes[known], losses[known], reported[known]
        if len(sizes) < 2 or not sizes.any():
            return {}
        mean_square, square, batch, batches = (float(value) for value in self._sums.cpu())
        scale = (square - mean_square) / mean_square if mean_square > 0 else float("inf")
        positive = (losses > 0) & (sizes > 0)
        logs = np.log(losses[positive]), np.log(sizes[positive])
        scores = losses.astype(np.float32)
        numbers = {
            "probe/samples": float(len(sizes)),
            "probe/batch": batch / max(batches, 1e-12),
            "probe/spread": float(sizes.std() / sizes.mean()),
            "probe/rank_correlation": _correlation(_ranks(losses), _ranks(sizes)),
            "probe/log_correlation": _correlation(*logs),
            "probe/kept_by_size": _kept(sizes, sizes),
            "probe/kept_by_loss": _kept(gradient_size(scores, "cross_entropy"), sizes),
            "probe/kept_by_root": _kept(gradient_size(scores, "root"), sizes),
            "probe/noise_scale": scale,
        }
        compared = np.isfinite(reported)
        if sizes[compared].any():
            numbers["probe/kept_by_reported_size"] = _kept(reported[compared], sizes[compared])
        return numbers


def _rows(gradient: torch.Tensor, batch_dim: int) -> torch.Tensor:
    """One row per sample, as a view also where the channels come last in memory."""
    others = [dim for dim in range(gradient.dim()) if dim != batch_dim]
    others.sort(key=gradient.stride, reverse=True)
    return gradient.permute(batch_dim, *others).reshape(gradient.shape[batch_dim], -1)


def in_backward() -> bool:
    """Whether a backward pass is running: a forward pass inside it is that of a checkpoint."""
    return torch._C._current_graph_task_id() != -1  # as torch.utils.checkpoint asks


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """The tensors of floating point numbers in a layer's output."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)


def _ranks(values: Numbers) -> Numbers:
    """The rank of each value, the mean of the ranks where several are equal."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Numbers = (last - (counts - 1) / 2)[inverse]
    return ranks


def _correlation(first: Numbers, second: Numbers) -> float:
    """Pearson's; NaN if one of them does not vary."""
    if len(first) < 2 or first.std() == 0 or second.std() == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def _kept(predicted: npt.NDArray[np.floating[Any]], sizes: Numbers) -> float:
    """The share to keep, in proportion to predicted sizes, for an added noise of ``_TAU``."""
    squares = np.square(sizes)
    if not predicted.any():
        return 1 / (1 + _TAU)
    low, high = -60.0, 60.0
    relative = predicted / predicted.mean()
    for _ in range(50):
        middle = (low + high) / 2
        keep = np.clip(np.exp2(middle) * relative, _FLOOR, 1.0)
        adds = float(squares @ (1 / keep)) / float(squares.sum()) - 1
        low, high = (low, middle) if adds <= _TAU else (middle, high)
    return float(np.clip(np.exp2(high) * relative, _FLOOR, 1.0).mean())
