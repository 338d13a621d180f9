"""What pruning has saved, counted in sample passes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EpochPasses:
    """The sample passes of one epoch, over all ranks.

    ``full`` is the data set's size, ``planned`` how many samples the plan kept, ``made`` how many
    passes were made of them, ``unscored`` how many of those left no score: their loss was NaN or
    infinite, or the batch was skipped.
    """

    epoch: int
    full: int
    planned: int
    made: int
    unscored: int
    thresholds: tuple[float, ...] = ()

    @property
    def saved(self) -> int:
        """The passes that full data would have needed beyond those made.

        An epoch that was broken off, or is still running, has saved in proportion to its progress:
        breaking off is no saving.
        """
        return (self.full - self.planned) * self.made // self.planned

    @property
    def kept_fraction(self) -> float:
        """The share of the data set that the plan keeps."""
        return self.planned / self.full


@dataclass(frozen=True)
class Savings:
    """Sample passes made and saved, by epoch and in all.

    >>> savings = Savings((EpochPasses(0, 100, 100, 100, 0), EpochPasses(1, 100, 60, 60, 0, (0.7,))))
    >>> print(savings)
    Saved 20.0% of 200 sample passes (160 made in 2 epochs)
    >>> savings.as_dict()["infobatch/samples_saved"]
    40
    """

    epochs: tuple[EpochPasses, ...] = ()

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
        """All passes that left no score: NaN and infinite losses, skipped batches."""
        return sum(epoch.unscored for epoch in self.epochs)

    @property
    def fraction(self) -> float:
        """The share of full-data training's passes that was saved."""
        total = self.made + self.saved
        return self.saved / total if total else 0.0

    def as_dict(self) -> dict[str, float]:
        """Flat numbers for a logger; ``threshold`` is the highest one where a rule has several."""
        numbers: dict[str, float] = {
            "infobatch/samples_made": self.made,
            "infobatch/samples_saved": self.saved,
            "infobatch/saved_fraction": self.fraction,
            "infobatch/samples_unscored": self.unscored,
        }
        if self.epochs:
            numbers["infobatch/kept_fraction"] = self.epochs[-1].kept_fraction
            if self.epochs[-1].thresholds:
                numbers["infobatch/threshold"] = self.epochs[-1].thresholds[-1]
        return numbers

    def __str__(self) -> str:
        total = self.made + self.saved
        noun = "epoch" if len(self.epochs) == 1 else "epochs"
        text = f"Saved {self.fraction:.1%} of {total:,} sample passes"
        text += f" ({self.made:,} made in {len(self.epochs)} {noun}"
        if self.unscored:
            text += f", {self.unscored:,} of them without a finite loss or skipped"
        return text + ")"
