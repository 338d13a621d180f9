"""Language models: a score for each sequence, padded or packed, and a token-weighted loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from infobatch.per_sample import PerSample
from infobatch.scoring.checks import check_indices, check_shape, check_tensor
from infobatch.scoring.reduction import (
    at_least_float32,
    missing_squares,
    own_means,
    shares,
    with_sizes,
)
from infobatch.transfer import send


def token_losses(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    shift: bool = True,
    ignore_index: int = -100,
) -> torch.Tensor:
    """The cross-entropy of each label, (B, T): entry [b, t] is the loss of ``labels[b, t]``.

    It is 0 where the label is ``ignore_index`` and, with ``shift``, at t = 0, which nothing predicts.

    Args:
        logits: (B, T, V).
        labels: (B, T); not shifted, as in Hugging Face's models.
        shift: position t − 1 predicts token t, as in a causal model; False for a masked one, or if
            the labels are already shifted.
        ignore_index: the label of tokens that are not trained on: padding, the prompt.

    Returns:
        (B, T), differentiable, in float32 if the logits have half precision.

    Raises:
        ValueError: if the labels are not (B, T).
        TypeError: if the labels are not integers.

    >>> token_losses(torch.zeros(1, 3, 4), torch.tensor([[0, 1, -100]]))
    tensor([[0.0000, 1.3863, 0.0000]])
    """
    return _token_losses("token_losses()", logits, labels, shift, ignore_index)


def _token_losses(
    call: str, logits: torch.Tensor, labels: torch.Tensor, shift: bool, ignore_index: int
) -> torch.Tensor:
    check_tensor(call, "logits", logits, "(B, T, V)", least_dims=3)
    places = tuple(logits.shape[:2])
    remedy = "Pass one label per token, not shifted; ignore_index where there is none."
    check_shape(call, "labels", labels, places, remedy)
    labels = send(check_indices(call, "labels", labels, remedy), logits.device)
    if shift:  # shift the labels, not the logits, which are large and would be copied
        labels = functional.pad(labels[:, 1:], (0, 1), value=ignore_index)
    losses = functional.cross_entropy(
        at_least_float32(logits).flatten(0, 1),
        labels.flatten(),
        ignore_index=ignore_index,
        reduction="none",
    ).view(places)
    return functional.pad(losses[:, :-1], (1, 0)) if shift else losses


def causal_lm(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    shift: bool = True,
    ignore_index: int = -100,
    num_items: torch.Tensor | int | None = None,
    boundaries: torch.Tensor | None = None,
) -> PerSample:
    """A score for each sequence, the mean over its labelled tokens; the loss stays token-weighted.

    ``losses.mean()`` is the mean over all labelled tokens of the batch, the loss that transformers'
    models return: long answers count for more than short ones, as usual. A sequence without a
    labelled token has loss 0 and score NaN: it keeps its old score. A batch with only such
    sequences has loss 0, whereas torch returns NaN. The size of the gradient, ``extras["gradient"]``, is
    the root of Σ (1 − p(label))² over the labelled tokens: it grows with their number, as the gradient
    of a token-weighted loss does.

    Packed rows hold several sequences each: with ``boundaries`` there is an entry for each of them,
    so that ``update(…, index=…)`` takes an index for each sequence. No token is predicted from the
    preceding sequence: the first token of each does not count, whatever its label.

    Args:
        logits, labels, shift, ignore_index: as in :func:`token_losses`.
        num_items: divide by this number rather than by the labelled tokens of this batch: the
            ``num_items_in_batch`` of Hugging Face's Trainer, over all micro-batches of a step. If yours
            does not depend on the batch, such as the usual number of tokens, leave out the counts, so
            that nothing is corrected: ``PerSample(*result, result.extras)``.
        boundaries: where the sequences start in the B·T tokens, row after row, followed by B·T: for
            lengths 3 and 5 the tensor [0, 3, 8]. These are FlashAttention's ``cu_seq_lens``;
            compute them from position ids with :func:`sequence_boundaries`. Padding belongs to the
            sequence before it, and an empty one (two equal boundaries) is a sequence without a
            token.

    Returns:
        One loss and one score per sequence: (B,) each, or as many as ``boundaries`` delimit.

    Raises:
        ValueError: if the labels are not (B, T), or ``boundaries`` (on a CPU) do not rise from 0 to B·T.
        TypeError: if labels or boundaries are not integers.

    >>> logits, labels = torch.zeros(2, 3, 4), torch.tensor([[0, 1, 2], [3, -100, -100]])
    >>> causal_lm(logits, labels).scores
    tensor([1.3863,    nan])
    """
    call = "causal_lm()"
    losses = _token_losses(call, logits, labels, shift, ignore_index)
    counts = send(labels, logits.device) != ignore_index
    if shift:
        counts = functional.pad(counts[:, 1:], (1, 0))
    if boundaries is None:
        sums, number = losses.sum(1), counts.sum(1)
        by_sample: Callable[[torch.Tensor], torch.Tensor] = partial(torch.sum, dim=1)
    else:
        losses, by_sample, number = _by_sequence(call, losses, counts, boundaries, shift)
        sums = by_sample(losses)
    divisor = number.sum() if num_items is None else num_items

    def squares() -> torch.Tensor:
        return torch.where(number > 0, by_sample(missing_squares(losses)), torch.nan)

    return with_sizes(shares(sums, divisor), own_means(sums, number), squares, number)


def per_sequence(
    losses: torch.Tensor, counted: torch.Tensor, missing: torch.Tensor | None = None
) -> PerSample:
    """The losses of sequences from those of their tokens, which a model has computed itself.

    As with :func:`causal_lm`, ``losses.mean()`` is the mean over all counted tokens of the batch, and a
    score is the sequence's own mean.

    Args:
        losses: (B, T), the cross-entropy of each token.
        counted: (B, T), True for the tokens that are trained on.
        missing: (B, T), what the probability of each label lacks to its target, from which the sizes of
            the gradients follow. Plain cross-entropies show it; label smoothing hides it.

    Returns:
        One loss and one score per sequence: (B,) each.

    >>> losses, counted = torch.tensor([[1.0, 3.0], [2.0, 0.0]]), torch.tensor([[1, 1], [1, 0]])
    >>> per_sequence(losses, counted == 1).scores
    tensor([2., 2.])
    """
    losses = at_least_float32(losses)
    sums, counts = (losses * counted).sum(1), counted.sum(1)

    def squares() -> torch.Tensor:
        by_token = missing_squares(losses) if missing is None else missing.square()
        return torch.where(counts > 0, (by_token * counted).sum(1), torch.nan)

    return with_sizes(shares(sums, counts.sum()), own_means(sums, counts), squares, counts)


def _by_sequence(
    call: str, losses: torch.Tensor, counts: torch.Tensor, boundaries: torch.Tensor, shift: bool
) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """The tokens' losses, a sum over the tokens of each sequence, and how many count in each."""
    tokens = losses.numel()
    if not isinstance(boundaries, torch.Tensor) or boundaries.dim() != 1 or len(boundaries) < 2:
        got = getattr(boundaries, "shape", type(boundaries).__name__)
        raise ValueError(
            f"{call} got boundaries of {got}, expected a 1-D tensor from 0 to {tokens}, one entry "
            "more than there are sequences: cu_seq_lens, or sequence_boundaries(position_ids)."
        )
    boundaries = check_indices(call, "boundaries", boundaries, "Pass offsets into the tokens.")
    # The check costs nothing on a CPU; elsewhere every step would wait for the device.
    if boundaries.device.type == "cpu":
        ends = boundaries.tolist()
        if ends[0] != 0 or ends[-1] != tokens or ends != sorted(ends):
            raise ValueError(
                f"{call} got boundaries from {ends[0]} to {ends[-1]}, expected rising offsets from 0 "
                f"to {tokens}, the number of tokens in the batch: rows one after the other."
            )
    boundaries = send(boundaries, losses.device)
    places = torch.arange(tokens, device=losses.device)
    owner = torch.bucketize(places, boundaries[1:-1], right=True)
    flat, counted = losses.reshape(-1), counts.reshape(-1)
    if shift:  # nothing in its own sequence predicts the first token
        inside = places != boundaries[owner]
        flat, counted = flat * inside, counted & inside
    number = len(boundaries) - 1

    def by_sequence(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(number).index_add(0, owner, values)

    return flat, by_sequence, by_sequence(counted.long())


def sequence_boundaries(position_ids: torch.Tensor) -> torch.Tensor:
    """The boundaries of packed sequences, which start where positions do not increase by one.

    Their number depends on the data, so on a GPU this waits for the device: call it in the collate
    function.

    Args:
        position_ids: (B, T), the positions that the model gets.

    Returns:
        The offsets at which sequences start in the B·T tokens, followed by B·T.

    Raises:
        ValueError: if ``position_ids`` is not a tensor with two dimensions.

    >>> sequence_boundaries(torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]]))
    tensor([ 0,  3,  5, 10])
    """
    if not isinstance(position_ids, torch.Tensor) or position_ids.dim() != 2:
        got = getattr(position_ids, "shape", type(position_ids).__name__)
        raise ValueError(
            f"sequence_boundaries() got position_ids of {got}, expected (B, T): the positions that "
            "the model gets."
        )
    starts = torch.ones_like(position_ids, dtype=torch.bool)
    starts[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
    first = starts.flatten().nonzero().flatten()
    return torch.cat([first, first.new_tensor([position_ids.numel()])])
