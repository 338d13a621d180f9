"""The sentences of a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from infobatch.lab.stats.candidate import Candidate
from infobatch.lab.stats.contrast import USUAL_SEEDS
from infobatch.lab.stats.gate import Gate
from infobatch.lab.stats.outcome import decimals, described
from infobatch.lab.stats.precision import SeedRange
from infobatch.lab.stats.saving import Saving, percent

FEW_EPOCHS = 20  # below, a fraction of an epoch matters


@dataclass(frozen=True)
class Wording:
    """What the sentences need in addition to the numbers.

    ``settings`` has what was chosen for an arm, such as ``{"quantile": "learning rate 0.2"}``;
    ``epochs`` is the number at full length, if lengths should be given in epochs.
    """

    unit: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    epochs: int | None = None


@dataclass(frozen=True)
class Sentences:
    """Puts a decision into words. ``longest`` is full data's longest training."""

    margin: float
    longest: float
    wording: Wording

    def use(self, best: Candidate, reach: Saving | None, gate: Gate) -> str:
        """Use an arm: what it saves, and what shorter training at its cost would lose.

        ``reach`` is where the arm's own curve reaches full data's quality. An arm that is better
        than full data reaches it at a lower cost than any length it was trained for.
        """
        sentence = f"Use {self._name(best)}: as good as full data at {_saving(best.saving)}; "
        sentence += f"{self._shorter(best, cost='its cost')}."
        if reach and reach.bound is None and (reach.low or 0.0) > (best.saving.low or 0.0):
            sentence += f" Its own curve reaches full data's quality at {_saving(reach)}."
        return sentence + _caution(gate)

    def instead(self, best: Candidate, gate: Gate) -> str:
        """Use an arm instead of shorter training: it is above full data's curve."""
        sentence = f"Use {self._arm(best)} instead of shorter training: for "
        sentence += f"{self._length(best.point.length)} it "
        if best.saving.bound is None:
            sentence += f"is as good as all data for {self._length(best.equal_length)}, at "
            sentence += f"{_saving(best.saving)}."
        else:
            sentence += f"saves {best.saving.text} at equal quality."
        return sentence + _caution(gate)

    def perhaps_as_good(self, best: Candidate, more: SeedRange, *, likely: bool) -> str:
        """The open question of an arm above the curve: which way it leans, what it would take."""
        sentence = (
            f"Whether it is as good as {self._whole} is not decided: {self._difference(best)}, "
        )
        sentence += f"where the margin is {self.margin:g}. "
        sentence += f"It leans towards {'yes' if likely else 'no'}; "
        return f"{sentence}deciding would take {more.text}."

    def not_as_good(self, best: Candidate) -> str:
        """What an arm that is above the curve loses."""
        sentence = (
            f"It is not as good as {self._whole}: {self._difference(best)}, where the margin is "
        )
        return f"{sentence}{self.margin:g}. For that quality keep all data."

    def train_shorter(self, best: Candidate) -> str:
        """Full data at the same cost is better."""
        better = self._amount(-best.to_shorter.mean)
        sentence = (
            f"{self._name(best)} is lossless against full data, but shorter training is better "
        )
        sentence += f"by {better} at the same cost: train {self._length(best.shorter_length)}"
        return (
            f"{sentence} instead of {self.wording.epochs}."
            if self.wording.epochs
            else f"{sentence}."
        )

    def keep(self, best: Candidate | None, *, diverged: bool) -> str:
        """No arm is worth using."""
        if best is None:
            return "Keep all data: every other arm diverged."
        sentence = "Keep all data: no arm is as good at less compute"
        sentence += ", and some diverged" if diverged else ""
        sentence += f". The best, {self._name(best)}, is {self._against_full(best)}; "
        return f"{sentence}{self._shorter(best)}."

    def not_decided(self, best: Candidate, leaning: str, more: SeedRange) -> str:
        """The open question of the most promising arm: which way it leans, what it would take."""
        if best.lossless:
            sentence = f"{self._name(best)} is as good as full data at {_compute(best.saved)}, "
            sentence += "but shorter training may be, too: its saving at equal quality is "
        else:
            sentence = f"{self._name(best)} is {self._against_full(best)}, where the margin is "
            sentence += f"{self.margin:g}; its saving at equal quality is "
        sentence += f"{best.saving.text}. "
        return (
            f"Not decided: {sentence}It leans towards {leaning}; deciding would take {more.text}."
        )

    def few_seeds(self, best: Candidate, gate: Gate) -> str:
        """What one or two seeds can show: what happened, and that it may be chance."""
        single = best.to_full.count == 1
        difference = best.to_full.mean
        than = "better" if difference > 0 else "worse"
        sentence = f"Not decided: there {'is one seed. On it,' if single else 'are two seeds. On average,'} "
        sentence += (
            f"{self._name(best)} was {self._amount(abs(difference))} {than} than full data at "
        )
        sentence += f"{_compute(best.saved)}; {self._shorter(best, past=True)}. "
        if gate.loss is not None and gate.length is not None and gate.loss.mean < self.margin:
            sentence += (
                f"All data for {gate.length:g} × the epochs was within the margin, so training "
            )
            sentence += "may be longer than it needs to be. "
        sentence += "One seed" if single else "Two seeds"
        return f"{sentence} cannot tell this from chance; {USUAL_SEEDS} usually can."

    def _arm(self, best: Candidate) -> str:
        setting = self.wording.settings.get(best.point.arm)
        return f"`{best.point.arm}`" + (f" with {setting}" if setting else "")

    def _name(self, best: Candidate) -> str:
        sentence = self._arm(best)
        if best.point.length != self.longest:
            sentence += f" for {self._length(best.point.length)}"
        return sentence

    def _length(self, length: float) -> str:
        share = length / self.longest
        if self.wording.epochs:
            digits = 1 if self.wording.epochs < FEW_EPOCHS else 0
            return f"{share * self.wording.epochs:.{digits}f}".removesuffix(".0") + " epochs"
        return f"{share:.2g} × the epochs"

    def _amount(self, value: float) -> str:
        return f"{value:.{decimals(self.margin)}f} {self.wording.unit}".rstrip()

    @property
    def _whole(self) -> str:
        if self.wording.epochs:
            return f"all data for {self.wording.epochs} epochs"
        return "full data at full length"

    def _difference(self, best: Candidate) -> str:
        sentence = described(best.to_full, self.margin, unit=self.wording.unit)
        return f"{sentence} at {_compute(best.saved)}"

    def _against_full(self, best: Candidate) -> str:
        sentence = described(best.to_full, self.margin, unit=self.wording.unit)
        return f"{sentence} against full data at {_compute(best.saved)}"

    def _shorter(self, best: Candidate, *, past: bool = False, cost: str = "that cost") -> str:
        """What shorter training at the same cost loses."""
        if best.point.below_curve and best.shorter_length >= self.longest:
            return "shorter training was not tried"
        loss = -best.shorter_to_full.mean
        verb = ("lost" if past else "loses") if loss >= 0 else ("gained" if past else "gains")
        more = "more than " if best.point.below_curve else ""
        return f"shorter training at {cost} {verb} {more}{self._amount(abs(loss))}"


def _caution(gate: Gate) -> str:
    if gate.regime == "unknown":
        return " Whether training is longer than it needs to be is not clear yet."
    return ""


def _saving(saving: Saving) -> str:
    """A saving that is established, with its interval."""
    return f"{_compute(saving.estimate)} ({saving.interval})"


def _compute(saved: float) -> str:
    return f"{percent(abs(saved))} {'more' if saved < 0 else 'less'} compute"
