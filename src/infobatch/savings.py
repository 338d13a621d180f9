"""The savings of pruning, in sample passes, or in training steps if scoring costs extra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FORWARD = 1 / 3  # of a training step: the backward pass takes about twice as long as the forward


@dataclass(frozen=True)
class EpochPasses:
    """The sample passes of one epoch, over all ranks.

    Attributes:
        epoch: the epoch, from 0.
        full: the data set's size.
        planned: how many samples the plan keeps.
        made: how many of these passes were made.
        unscored: how many of those gave no score: their loss, or what ``update(scores=…)`` got for them,
            was NaN or infinite, or the batch was skipped.
        thresholds: the scores below which samples were pruned, for rules that have such.
        added_noise: how much the plan expects pruning to add to the gradient noise.
        planned_cost: the share of the cost that the plan keeps, if the user has given costs.
        refreshed: how many samples were forwarded without a step, to refresh their scores or to measure
            something.
        refreshed_cost: their share of a full epoch's cost.
        realised_noise: how much noise pruning added by this epoch's losses; None while it is running, and
            for biased rules.
    """

    epoch: int
    full: int
    planned: int
    made: int
    unscored: int
    thresholds: tuple[float, ...] = ()
    added_noise: float = 0.0
    planned_cost: float | None = None
    refreshed: int = 0
    refreshed_cost: float = 0.0
    # A measurement: its last digits depend on the order of sums, so that equal epochs may differ in it.
    realised_noise: float | None = field(default=None, compare=False)

    @property
    def kept_cost(self) -> float:
        """The share of a full epoch's cost that the plan keeps."""
        return self.kept_fraction if self.planned_cost is None else self.planned_cost

    @property
    def saved_cost(self) -> float:
        """The share of a full epoch's cost that was saved, less what refreshing took."""
        return (1 - self.kept_cost) * self.completed - FORWARD * self.refreshed_cost

    @property
    def completed(self) -> float:
        """The share of the plan that has been trained on."""
        return self.made / self.planned

    @property
    def saved(self) -> int:
        """The passes that full data would have needed beyond those made.

        An epoch that was left early, or is still running, counts in proportion to its progress:
        samples that were not trained on for that reason are not savings.
        """
        return (self.full - self.planned) * self.made // self.planned

    @property
    def kept_fraction(self) -> float:
        """The share of the data set that the plan keeps."""
        return self.planned / self.full


@dataclass(frozen=True)
class Savings:
    """Sample passes made and saved, by epoch and in total.

    Attributes:
        epochs: one record per epoch.
        forecast: flat numbers of the rules that are followed with ``shadow=``, for :meth:`as_dict`.

    >>> savings = Savings((EpochPasses(0, 100, 100, 100, 0), EpochPasses(1, 100, 60, 60, 0, (0.7,))))
    >>> print(savings)
    Saved 20.0% of 200 sample passes (160 made in 2 epochs)
    >>> savings.as_dict()["infobatch/samples_saved"]
    40
    """

    epochs: tuple[EpochPasses, ...] = ()
    forecast: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def made(self) -> int:
        """All sample passes made."""
        return sum(epoch.made for epoch in self.epochs)

    @property
    def saved(self) -> int:
        """All sample passes saved."""
        return sum(epoch.saved for epoch in self.epochs)

    @property
    def unscored(self) -> int:
        """All passes that gave no score: NaN and infinite losses or ``scores=``, skipped batches."""
        return sum(epoch.unscored for epoch in self.epochs)

    @property
    def refreshed(self) -> int:
        """All samples that were forwarded without a step, to refresh their scores."""
        return sum(epoch.refreshed for epoch in self.epochs)

    @property
    def fraction(self) -> float:
        """The share of full-data training's passes, or of their cost if given, that was saved.

        Forwarding a sample to refresh its score costs a third of a pass.
        """
        if not any(epoch.planned_cost is not None for epoch in self.epochs):
            total = self.made + self.saved
            return (self.saved - FORWARD * self.refreshed) / total if total else 0.0
        total_cost = sum(epoch.completed for epoch in self.epochs)
        return sum(epoch.saved_cost for epoch in self.epochs) / total_cost if total_cost else 0.0

    def as_dict(self) -> dict[str, float]:
        """Return flat numbers for a logger.

        Returns:
            The numbers by name, each beginning with ``"infobatch/"``; ``threshold`` is the highest one
            if a rule has several.
        """
        numbers: dict[str, float] = {
            "infobatch/samples_made": self.made,
            "infobatch/samples_saved": self.saved,
            "infobatch/saved_fraction": self.fraction,
            "infobatch/samples_unscored": self.unscored,
        }
        if self.refreshed:
            numbers["infobatch/samples_refreshed"] = self.refreshed
        if self.epochs:
            numbers["infobatch/kept_fraction"] = self.epochs[-1].kept_fraction
            numbers["infobatch/added_noise"] = self.epochs[-1].added_noise
            measured = [
                epoch.realised_noise for epoch in self.epochs[-2:]
            ]  # the last one may be running
            if known := [noise for noise in measured if noise is not None]:
                numbers["infobatch/realised_noise"] = known[-1]
            if self.epochs[-1].thresholds:
                numbers["infobatch/threshold"] = self.epochs[-1].thresholds[-1]
        return {**numbers, **self.forecast}

    def __str__(self) -> str:
        total = self.made + self.saved
        noun = "epoch" if len(self.epochs) == 1 else "epochs"
        text = f"Saved {self.fraction:.1%} of "
        if any(epoch.planned_cost is not None for epoch in self.epochs):
            text += "the cost of "
        text += f"{total:,} sample passes"
        text += f" ({self.made:,} made in {len(self.epochs)} {noun}"
        if self.unscored:
            text += f", {self.unscored:,} of them without a score: NaN, infinite or skipped"
        if self.refreshed:
            text += f"; {self.refreshed:,} forwarded to refresh scores, a third of a pass each"
        return text + ")"


@dataclass(frozen=True)
class StreamSavings:
    """What a :class:`StreamPruner` has cost, in training steps of one sample.

    Attributes:
        scored: the samples that went through a forward pass without gradients.
        trained: those of them that went through a training step.
        unscored: those of them that had no usable score and were kept for that reason.
        forward_cost: the cost of a forward pass without gradients, in training steps.

    >>> savings = StreamSavings(scored=300, trained=100)
    >>> print(savings)
    Saved 33.3% of 300 training steps (300 scored, 100 trained)
    """

    scored: int = 0
    trained: int = 0
    unscored: int = 0
    forward_cost: float = FORWARD

    @property
    def cost(self) -> float:
        """The total cost in training steps: a third for scoring a sample, one for training."""
        return self.scored * self.forward_cost + self.trained

    @property
    def fraction(self) -> float:
        """The share of plain training's cost that was saved; negative if it was not worth it."""
        return 1 - self.cost / self.scored if self.scored else 0.0

    def as_dict(self) -> dict[str, float]:
        """Return flat numbers for a logger.

        Returns:
            The numbers by name, each beginning with ``"infobatch/"``.
        """
        return {
            "infobatch/samples_scored": self.scored,
            "infobatch/samples_trained": self.trained,
            "infobatch/samples_unscored": self.unscored,
            "infobatch/saved_fraction": self.fraction,
        }

    def __str__(self) -> str:
        text = f"Saved {self.fraction:.1%} of {self.scored:,} training steps"
        text += f" ({self.scored:,} scored, {self.trained:,} trained"
        if self.unscored:
            text += f", {self.unscored:,} of them without a usable score"
        return text + ")"
