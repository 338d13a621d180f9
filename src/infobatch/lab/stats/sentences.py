"""The sentences of a decision, about its candidates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from infobatch.forecast import percent
from infobatch.lab.stats.curve import Saving
from infobatch.lab.stats.frontier import Point, Pooled
from infobatch.lab.stats.intervals import (
    FEWEST_SEEDS,
    USUAL_SEEDS,
    Estimate,
    SeedRange,
    decimals,
)
from infobatch.lab.stats.runs import FULL_LENGTH, Question
from infobatch.lab.stats.verdict import Gate, word_for

Value = TypeVar("Value")

FEW_EPOCHS = 20  # below, a fraction of an epoch matters
WORTHWHILE = 0.05  # the smallest saving at equal quality for which anybody would prune


@dataclass(frozen=True)
class Candidate:
    """An arm at a length that a decision may be about, and what its intervals establish.

    It has been measured and has not diverged, so none of its numbers is missing. Nothing is
    established with fewer than three seeds. ``pooled`` is what the arm saves from several lengths
    together, if it has them: then that, and no single length, says whether the arm saves anything.
    """

    point: Point
    margin: float
    saved: float
    saving: Saving
    to_full: Estimate
    to_shorter: Estimate
    shorter_to_full: Estimate
    shorter_length: float
    equal_length: float
    pooled: Pooled | None = None

    @property
    def enough_seeds(self) -> bool:
        """Whether there are enough seeds for any conclusion."""
        return self.to_full.count >= FEWEST_SEEDS

    @property
    def lossless(self) -> bool:
        """Established: worse than full data by less than the margin, if at all."""
        return word_for(self.to_full, self.margin) == "lossless"

    @property
    def worse(self) -> bool:
        """Established: worse than full data by more than the margin."""
        return word_for(self.to_full, self.margin) == "worse than the margin"

    @property
    def above_curve(self) -> bool:
        """Established: full data needs more compute to be as good.

        At a length that is not one of those pooled, both the arm and this length must show it.
        """
        if not self.enough_seeds:
            return False
        if self.pooled is None:
            return _above_zero(self.saving)
        return _above_zero(_known(self.pooled.saving)) and (
            self.is_pooled or _above_zero(self.saving)
        )

    @property
    def is_pooled(self) -> bool:
        """Whether this is one of the lengths whose savings are pooled."""
        return self.pooled is not None and self.point.length in self.pooled.lengths

    @property
    def arms_saving(self) -> Saving:
        """The saving by which the arm is judged at this length."""
        return _known(self.pooled.saving) if self.pooled and self.is_pooled else self.saving

    @property
    def against_shorter(self) -> Estimate:
        """The difference from full data at the same cost by which the arm is judged here."""
        return _known(self.pooled.to_shorter) if self.pooled and self.is_pooled else self.to_shorter

    @property
    def under_curve(self) -> bool:
        """Established: full data is better at the same cost, at which it must have been run.

        For savings that are pooled: the arm saves nothing that is worth having.
        """
        if self.pooled is not None and self.point.length <= FULL_LENGTH:
            high = _known(self.pooled.saving).high
            return self.enough_seeds and high is not None and high < WORTHWHILE
        high = self.to_shorter.high
        comparable = self.enough_seeds and not self.point.below_curve
        return comparable and high is not None and high < 0


def candidates(
    points: Iterable[Point], *, margin: float, pooled: Iterable[Pooled] = ()
) -> list[Candidate]:
    """The points that have been measured on a common seed and have not diverged.

    A saving counts as pooled if it is that of several lengths, within full data's curve.
    """
    by_arm = {
        row.arm: row
        for row in pooled
        if row.saving is not None and len(row.lengths) > 1 and not row.below_curve
    }
    return [
        Candidate(
            point=point,
            margin=margin,
            saved=_known(point.saved),
            saving=_known(point.saving),
            to_full=point.to_full,
            to_shorter=_known(point.to_shorter),
            shorter_to_full=_known(point.shorter_to_full),
            shorter_length=_known(point.shorter_length),
            equal_length=_known(point.equal_length),
            pooled=by_arm.get(point.arm),
        )
        for point in points
        if point.to_full is not None
    ]


def _known(value: Value | None) -> Value:
    assert value is not None
    return value


def _above_zero(saving: Saving) -> bool:
    return saving.low is not None and saving.low > 0


@dataclass(frozen=True)
class Sentences:
    """Puts a decision into words. ``full_length`` is what full data is trained for as a rule."""

    question: Question
    full_length: float

    def use(self, best: Candidate, reach: Saving | None, gate: Gate) -> str:
        """Use an arm: what it saves, and what shorter training at its cost would lose.

        ``reach`` is where the arm's own curve reaches full data's quality. An arm that is better
        than full data reaches it at a lower cost than any length it was trained for.
        """
        if best.is_pooled:
            sentence = f"Use {self._name(best)}: at equal quality it saves "
            sentence += f"{_of_compute(best.arms_saving)}, and it is as good as full data: "
            return f"{sentence}{self._difference(best)}.{_caution(gate)}"
        sentence = f"Use {self._name(best)}: as good as full data at {_saving(best.saving)}; "
        sentence += f"{self._shorter(best, cost='its cost')}."
        if reach and reach.bound is None and (reach.low or 0.0) > (best.saving.low or 0.0):
            sentence += f" Its own curve reaches full data's quality at {_saving(reach)}."
        return sentence + _caution(gate)

    def instead(self, best: Candidate, gate: Gate) -> str:
        """Use an arm instead of shorter training: it is above full data's curve."""
        if best.is_pooled:
            sentence = f"Use {self._arm(best)} instead of shorter training: at equal quality it "
            sentence += f"saves {_of_compute(best.arms_saving)}."
            if best.saving.bound is None:
                sentence += f" For {self._length(best.point.length)} it is as good as all data for "
                sentence += f"{self._length(best.equal_length)}."
            return sentence + _caution(gate)
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
        sentence = f"Whether it is as good as {self._whole} is open: {self._difference(best)}, "
        sentence += f"where the margin is {self.question.margin:g}. "
        sentence += f"It leans towards {'yes' if likely else 'no'}; "
        return f"{sentence}deciding would take {more.text}."

    def not_as_good(self, best: Candidate) -> str:
        """What an arm that is above the curve loses."""
        sentence = (
            f"It is not as good as {self._whole}: {self._difference(best)}, where the margin is "
        )
        return f"{sentence}{self.question.margin:g}. For that quality keep all data."

    def train_shorter(self, best: Candidate) -> str:
        """Full data at the same cost is better, or the arm saves nothing that is worth having."""
        if best.is_pooled:
            sentence = f"{self._name(best)} is lossless against full data, but at equal quality it "
            sentence += f"saves {best.arms_saving.text}, less than {percent(WORTHWHILE)}: train "
            return f"{sentence}{self._length(best.shorter_length)} on all data for its cost."
        better = self._amount(-best.to_shorter.mean)
        sentence = (
            f"{self._name(best)} is lossless against full data, but shorter training is better "
        )
        sentence += f"by {better} at the same cost: train {self._length(best.shorter_length)}"
        return (
            f"{sentence} instead of {self.question.epochs}."
            if self.question.epochs
            else f"{sentence}."
        )

    def keep(self, best: Candidate | None, *, diverged: bool) -> str:
        """No arm is worth using."""
        if best is None:
            return "Keep all data: every other arm diverged."
        sentence = "Keep all data: no arm is as good at less compute"
        sentence += ", and some diverged" if diverged else ""
        sentence += f". The best, {self._name(best)}, is {self._against_full(best)}; "
        sentence += f"{self._shorter(best)}."
        if best.is_pooled:
            sentence += f" At equal quality it saves {best.arms_saving.text}."
        return sentence

    def not_decided(self, best: Candidate, leaning: str, more: SeedRange) -> str:
        """The open question of the most promising arm: which way it leans, what it would take."""
        if best.lossless:
            sentence = f"{self._name(best)} is as good as full data at {_compute(best.saved)}, "
            sentence += "but shorter training may be, too: its saving at equal quality is "
        else:
            sentence = f"{self._name(best)} is {self._against_full(best)}, where the margin is "
            sentence += f"{self.question.margin:g}; its saving at equal quality is "
        sentence += f"{best.arms_saving.text}. "
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
        if (
            gate.loss is not None
            and gate.length is not None
            and gate.loss.mean < self.question.margin
        ):
            sentence += (
                f"All data for {gate.length:g} × the epochs was within the margin, so training "
            )
            sentence += "may be longer than it needs to be. "
        sentence += "One seed" if single else "Two seeds"
        return f"{sentence} cannot tell this from chance; {USUAL_SEEDS} usually can."

    def _arm(self, best: Candidate) -> str:
        setting = self.question.settings.get(best.point.arm)
        return f"`{best.point.arm}`" + (f" with {setting}" if setting else "")

    def _name(self, best: Candidate) -> str:
        sentence = self._arm(best)
        if best.point.length != self.full_length:
            sentence += f" for {self._length(best.point.length)}"
        return sentence

    def _length(self, length: float) -> str:
        share = length / self.full_length
        if self.question.epochs:
            digits = 1 if self.question.epochs < FEW_EPOCHS else 0
            return f"{share * self.question.epochs:.{digits}f}".removesuffix(".0") + " epochs"
        return f"{share:.2g} × the epochs"

    def _amount(self, value: float) -> str:
        return f"{value:.{decimals(self.question.margin)}f} {self.question.unit}".rstrip()

    @property
    def _whole(self) -> str:
        if self.question.epochs:
            return f"all data for {self.question.epochs} epochs"
        return "full data at full length"

    def _difference(self, best: Candidate) -> str:
        sentence = best.to_full.in_words(decimals(self.question.margin), unit=self.question.unit)
        return f"{sentence} at {_compute(best.saved)}"

    def _against_full(self, best: Candidate) -> str:
        sentence = best.to_full.in_words(decimals(self.question.margin), unit=self.question.unit)
        return f"{sentence} against full data at {_compute(best.saved)}"

    def _shorter(self, best: Candidate, *, past: bool = False, cost: str = "that cost") -> str:
        """What shorter training at the same cost loses."""
        if best.point.below_curve and best.shorter_length >= self.full_length:
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


def _of_compute(saving: Saving) -> str:
    """A saving that is established, of several lengths."""
    bound = f"{saving.bound} " if saving.bound else ""
    return f"{bound}{percent(saving.estimate)} of the compute ({saving.interval})"


def _compute(saved: float) -> str:
    return f"{percent(abs(saved))} {'more' if saved < 0 else 'less'} compute"
