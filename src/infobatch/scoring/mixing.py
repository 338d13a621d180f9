"""MixUp and CutMix: a sample's loss and score from the two mixed images that it is in.

Mixed image k shows sample k with weight lam_k and its partner with weight 1 − lam_k, and the usual
loss is the mean over the images of

    lam_k · CE(out_k, y_k) + (1 − lam_k) · CE(out_k, y_partner(k))

Each of the two terms has one sample's label, so it belongs to that sample. Sample i is in image i and
in the image in(i) of which it is the partner:

    loss_i = lam_i · CE(out_i, y_i) + (1 − lam_in(i)) · CE(out_in(i), y_i)

The sum over the batch is the same. A pair needs no separate weight: ``update`` weights each term by
the sample whose label it has.
"""

from __future__ import annotations

import torch

from infobatch.per_sample import PerSample
from infobatch.scoring.checks import check_indices, check_range, check_shape, check_tensor
from infobatch.scoring.reduction import at_least_float32, with_sizes
from infobatch.transfer import send


def mixed_cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    partners: torch.Tensor | None = None,
    lam: torch.Tensor | float | None = None,
    *,
    label_smoothing: float = 0.0,
) -> PerSample:
    """Cross-entropy of mixed images; ``losses.mean()`` is that with the mixed soft labels.

    The score is the paper's (A.3), reversed so that 0 means learned and 1 not learned: how much of
    the probability that the two images should give to the sample's class is missing. With the mixed
    label m_k and the prediction P_k of image k it is, over both images,

        (m_i[y_i] − P_i[y_i]) + (m_in(i)[y_i] − P_in(i)[y_i])

    which is a constant minus the paper's P_i[y_i] + P_in(i)[y_i] if the two samples of an image
    have different classes. If they have the same class, its missing probability is divided between
    them in proportion lam : 1 − lam; the same applies to a sample that is mixed with itself.

    Unlike other scores, this one does not depend on the sample alone: it also depends on the
    partner in this visit, which makes it noisy.

    Args:
        logits: (B, C), for the mixed images.
        targets: (B,), the class indices of the samples before mixing.
        partners: (B,), a permutation: image k was mixed from samples k and ``partners[k]``. By default
            the flipped batch, pairs (k, B − 1 − k), as in timm and in the paper.
        lam: the weight of sample k in image k, required: one for the batch or one per image, (B,).
            For CutMix, the share of the area that it kept.
        label_smoothing: as in torch's cross-entropy.

    Returns:
        One loss and one score per sample, (B,) each, in the order of ``targets``.

    Raises:
        ValueError: if shapes do not fit, ``lam`` is not in [0, 1], or ``partners`` (on a CPU) is not a
            permutation.
        TypeError: if ``lam`` is missing, or a tensor has the wrong type.

    >>> logits = torch.tensor([[0.7, 0.3], [0.3, 0.7]]).log()
    >>> mixed_cross_entropy(logits, torch.tensor([0, 1]), lam=0.7).scores.abs() < 1e-6
    tensor([True, True])
    """
    call = "mixed_cross_entropy()"
    check_tensor(call, "logits", logits, "(B, C)", least_dims=2)
    if logits.dim() != 2:
        raise ValueError(
            f"{call} got logits of shape {tuple(logits.shape)}, expected (B, C): one prediction per image."
        )
    size, num_classes = logits.shape
    remedy = "Pass the class indices from before mixing, one per image."
    check_shape(call, "targets", targets, (size,), remedy)
    targets = check_indices(call, "targets", targets, remedy)
    partners = _check_partners(call, partners, targets)
    check_range(call, "label_smoothing", label_smoothing, 0.0, 1.0)
    log_p = at_least_float32(logits).log_softmax(1)
    own_share = _check_lam(call, lam, log_p)
    other_share = 1 - own_share

    others = targets[partners]
    labels = torch.stack([targets, others], 1)
    log_p_label = log_p.gather(1, labels)
    losses = -(1 - label_smoothing) * log_p_label - label_smoothing * log_p.mean(1, keepdim=True)
    # The terms are by image; a partner's terms move to the partner's own image.
    home = torch.empty_like(partners).scatter_(
        0, partners, torch.arange(size, device=logits.device)
    )
    losses = own_share * losses[:, 0] + (other_share * losses[:, 1])[home]

    def squares() -> torch.Tensor:
        by_part = _squared_norms(log_p.detach(), labels, label_smoothing)
        return own_share**2 * by_part[:, 0] + (other_share**2 * by_part[:, 1])[home]

    # The mixed label at the two classes, and which sample accounts for the missing probability.
    mixed = torch.stack([own_share, other_share], 1)
    same_class = (targets == others).unsqueeze(1)
    expected = (
        torch.where(same_class, 1.0, mixed) * (1 - label_smoothing) + label_smoothing / num_classes
    )
    responsible = torch.where(same_class, mixed, 1.0)
    missing = responsible * (expected - log_p_label.detach().exp())
    return with_sizes(losses, missing[:, 0] + missing[:, 1][home], squares)


def _squared_norms(
    log_p: torch.Tensor, labels: torch.Tensor, label_smoothing: float
) -> torch.Tensor:
    """‖softmax − target‖² of each image for each of its labels, the targets smoothed."""
    p, num_classes = log_p.exp(), log_p.shape[1]
    label, others = 1 - label_smoothing, label_smoothing / num_classes
    products = label * p.gather(1, labels) + others
    lengths = label**2 + 2 * label * others + label_smoothing * others
    return (p.square().sum(1, keepdim=True) - 2 * products + lengths).clamp_min(0)


def _check_partners(
    call: str, partners: torch.Tensor | None, targets: torch.Tensor
) -> torch.Tensor:
    size = targets.shape[0]
    if partners is None:
        return torch.arange(size - 1, -1, -1, device=targets.device)
    remedy = "Pass the permutation that the images were mixed with: images[partners]."
    check_shape(call, "partners", partners, (size,), remedy)
    partners = check_indices(call, "partners", partners, remedy)
    # The check costs nothing on a CPU; elsewhere every step would wait for the device.
    if partners.device.type == "cpu" and partners.sort().values.tolist() != list(range(size)):
        raise ValueError(
            f"{call} got partners that are not a permutation of 0 to {size - 1}, expected each sample "
            "as a partner once: it is scored from the two images that it is in. Draw them with "
            "torch.randperm."
        )
    return send(partners, targets.device)


def _check_lam(call: str, lam: torch.Tensor | float | None, like: torch.Tensor) -> torch.Tensor:
    if lam is None:
        raise TypeError(
            f"{call} got no lam, expected the weight of each image's own sample: lam=…. For a batch that was "
            "not mixed use cross_entropy()."
        )
    size = like.shape[0]
    if isinstance(lam, torch.Tensor):
        if lam.shape not in ((), (size,)):
            raise ValueError(
                f"{call} got lam of shape {tuple(lam.shape)}, expected a number or one per image: "
                f"({size},). For images of (B, 1, 1, 1) pass lam.flatten()."
            )
        return send(lam.detach(), like.device, like.dtype).expand(size)
    return like.new_full((size,), check_range(call, "lam", lam, 0.0, 1.0))
