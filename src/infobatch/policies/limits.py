"""Limits for any rule: budget, costs, a bound on the noise, protected classes, warm-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infobatch.checks import check_count, check_rows, check_share
from infobatch.plan import FloatArray
from infobatch.policies.base import Policy
from infobatch.policies.checks import check_number


@dataclass(frozen=True)
class Limits:
    """See :class:`infobatch.InfoBatch`; ``cost`` and ``labels`` have one entry per sample."""

    save: float | None = None
    cost: FloatArray | None = None
    warmup: int = 0
    max_noise: float | None = None
    protect_classes: float | None = None
    labels: npt.NDArray[Any] | None = None

    @classmethod
    def checked(  # noqa: PLR0917 - the order of the fields
        cls,
        policy: Policy,
        num_samples: int,
        save: Any,
        cost: Any,
        warmup: Any,
        max_noise: Any,
        protect_classes: Any,
        labels: Any,
    ) -> Limits:
        """Check the user's arguments, except whether the budget can be met."""
        if max_noise is not None:
            why = "the noise that pruning may add, relative to that of full-data training"
            check_number("max_noise", max_noise, why, least=0)
        classes = check_rows("labels", labels, num_samples, positive=False)
        why = "at least this share of each class is kept in every epoch"
        least = check_share("protect_classes", protect_classes, why)
        if classes is None and (least is not None or policy.needs_labels):
            wanted = f"policy={policy!r}" if least is None else f"protect_classes={least}"
            raise ValueError(
                f"{wanted} got no labels, expected the class of each sample: pass labels=, an array "
                "with one entry per sample."
            )
        if save is not None and policy.budget == "none":
            raise ValueError(
                f"save={save} was given with {policy!r}, which has no share to adapt. Use "
                'policy="importance" or another rule with a ratio, or leave save out.'
            )
        return cls(
            warmup=check_count("warmup", warmup, "it counts whole epochs", least=0),
            save=save,
            cost=check_rows("cost", cost, num_samples, positive=True),
            max_noise=max_noise,
            protect_classes=least,
            labels=classes,
        )


NO_LIMITS = Limits()


def costs_of(dataset: Any, cost: Callable[[Any], float]) -> FloatArray:
    """The cost of each sample, read one by one: all at once may not fit into memory."""
    count = len(dataset)
    return np.fromiter((cost(dataset[index]) for index in range(count)), np.float32, count)


def labels_of(dataset: Any, policy: Policy, protected: float | None) -> Any:
    """The data set's labels, by torchvision's name for them, if they are needed."""
    needed = protected is not None or policy.needs_labels
    return getattr(dataset, "targets", None) if needed else None
