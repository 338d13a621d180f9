"""Training dynamics of a sample: forgetting events, and the variation of its probability.

Both read a history with one row per epoch and one column per sample; NaN means no visit.
"""

from __future__ import annotations

import torch

from infobatch.coresets.checks import Array, as_tensor
from infobatch.memory.gathered import DynUnc

WINDOW = 10


def forgetting(correct: Array) -> torch.Tensor:
    """The number of changes from correct to wrong; a sample never correct ranks above all.

    Toneva et al., *An Empirical Study of Example Forgetting* (ICLR 2019).

    Args:
        correct: (epochs, samples): whether the sample was classified correctly when it was visited, as booleans
            or as 0, 1 and NaN.

    Returns:
        One score per sample, where higher scores are chosen first.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.

    >>> forgetting([[0, 1, 1, 0], [1, 0, 1, 0], [0, 1, 1, 0]]).tolist()
    [1.0, 1.0, 0.0, 3.0]
    """
    values = _history("forgetting()", "correct", correct)
    if not bool(((values == 0) | (values == 1) | values.isnan()).all()):
        raise ValueError(
            "forgetting() got values other than right (1), wrong (0) and not visited (NaN) in correct. "
            "Are they probabilities? Pass outputs.argmax(1) == labels of each visit."
        )
    events = values.new_zeros(values.shape[1])
    before = torch.zeros_like(events)
    for epoch in values:
        visited = ~epoch.isnan()
        events += visited & (before == 1) & (epoch == 0)
        before = torch.where(visited, epoch, before)
    never_right = ~(values == 1).any(0)
    return torch.where(never_right, float(len(values)), events)


def dyn_unc(label_probabilities: Array, *, window: int | None = None) -> torch.Tensor:
    """Dyn-Unc: the standard deviation of p_y in a window of epochs, averaged over all windows.

    He et al., *Large-scale Dataset Pruning with Dynamic Uncertainty* (2023). The track
    :class:`infobatch.tracks.DynUnc` computes the same during training.

    Args:
        label_probabilities: (epochs, samples): the probability of the sample's label at each visit.
        window: the number of epochs in a window; by default 10, or all if there are fewer.

    Returns:
        One score per sample, where higher scores are chosen first.

    Raises:
        TypeError, ValueError: if an argument is not what is expected.
    """
    call = "dyn_unc()"
    values = _history(call, "label_probabilities", label_probabilities)
    epochs = len(values)
    length = min(WINDOW, epochs) if window is None else window
    if not 2 <= length <= epochs:
        raise ValueError(
            f"{call} got window={length} and a history of {epochs} epochs, expected a window from 2 to the "
            "number of epochs. Train longer, or choose a shorter window."
        )
    if bool(values.isnan().any()):
        raise ValueError(
            f"{call} got a history in which some samples were not visited in some epochs, expected a "
            "probability for each. Use the history of a training run on all data."
        )
    track = DynUnc(length)
    rows = values.cpu().numpy()
    columns = track.begin(rows[0])
    for epoch, probabilities in enumerate(rows):
        columns = track.fold(columns, probabilities, epoch)
    return torch.from_numpy(columns["dyn_unc"]).to(values.device)


def observed(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Compute the values of a batch for coresets, as in ``update(losses, extras=observed(logits, labels))``.

    Args:
        logits: (samples, classes), the outputs of a batch.
        labels: the class of each sample.

    Returns:
        Whether each sample is ``correct``, its ``el2n`` error ‖p − y‖, and its ``label_probability``; the
        tracks in ``infobatch.tracks`` record them.

    >>> observed(torch.zeros(1, 2), torch.tensor([1]))["label_probability"]
    tensor([0.5000])
    """
    outputs = logits.detach().float().softmax(1)
    of_label = outputs.gather(1, labels[:, None])[:, 0]
    # ‖p − y‖² = Σ p² − 2 p_y + 1, without a one-hot matrix.
    squares = outputs.square().sum(1) - 2 * of_label + 1
    return {
        "correct": (outputs.argmax(1) == labels).float(),
        "el2n": squares.clamp_min(0).sqrt(),
        "label_probability": of_label,
    }


def _history(call: str, name: str, value: Array) -> torch.Tensor:
    values = as_tensor(call, name, value)
    if values.dim() != 2 or 0 in values.shape:
        raise ValueError(
            f"{call} got {name} of shape {tuple(values.shape)}, expected (epochs, samples)."
        )
    if bool(values.isinf().any()):
        raise ValueError(
            f"{call} got infinite values in {name}, expected numbers, NaN where not visited."
        )
    return values.float()
