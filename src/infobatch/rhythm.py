"""When a training loop steps its schedule, and how many steps an epoch over all data has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infobatch.epoch.progress import Progress


@dataclass
class Rhythm:
    """When ``step()`` is called: the first epoch shows how many steps an epoch over all data has.

    A step has ``period`` samples. The first call may come earlier (loops that step ``if batch %
    accumulation == 0`` make one after the first batch), and so may the last, at the end of the
    epoch; calls may also be left out (because of a NaN, for instance), but then the samples between
    two calls are a multiple of the period.
    """

    first: int = 0  # samples before the first call
    gaps: set[int] = field(default_factory=set)  # samples between two calls, as far as they differ
    calls: int = 0
    last: Progress | None = None  # at the first epoch's last call
    drops_rest: bool = False  # at an epoch's end: accumulated gradients that make no step
    loaded: int = 0  # the period before a resume
    interrupted: bool = False  # the loop was restarted since the last call

    def observe(self, progress: Progress) -> None:
        """Note a call in the first epoch."""
        before = 0 if self.last is None else self.last.done
        if progress.done <= before:
            return
        self.calls += 1
        if not self.first:
            self.first = progress.done
        elif progress.done < progress.total and not self.interrupted:
            self.gaps.add(progress.done - before)
        self.last, self.interrupted = progress, False

    def end_epoch(self, last: Progress) -> None:
        """Note the last call of an epoch."""
        self.drops_rest |= 0 < last.total - last.done < self.period

    @property
    def _groups(self) -> set[int]:
        """The samples of a step, or of several where calls were left out."""
        return self.gaps | ({self.first} if self.gaps and self.first >= min(self.gaps) else set())

    @property
    def period(self) -> int:
        """The samples of a step: batches may differ by a sample or so."""
        groups = self._groups
        return max((group for group in groups if group < 2 * min(groups)), default=self.first)

    @property
    def fewest_steps(self) -> int:
        """A lower limit of the steps per epoch."""
        return 0 if self.last is None or not self.gaps else self.last.full // self.period

    def _count(self, samples: int) -> int:
        """The calls after that many samples of an epoch over all data."""
        if not self.gaps:
            return self.calls
        return 1 - (self._offset - samples) // self.period

    @property
    def _offset(self) -> int:
        """The samples before an epoch's first call."""
        return (self.first - 1) % self.period + 1

    def steps(self, progress: Progress) -> int:
        """The full-data steps that are due; raises if calls are irregular."""
        if not self.first:  # nothing was updated before this call
            return 0
        steps, groups = self._count(progress.done), self._groups
        irregular = steps != self.calls and any(group % min(groups) for group in groups)
        if irregular or 2 * self.period <= self.loaded:
            groups |= {self.loaded} - {0}
            raise RuntimeError(
                f"paced(…).step() was called after groups of {_listed(groups)} samples, so the first "
                "epoch cannot show how many steps an epoch over all data has. Expected equal groups: "
                "pass paced(…, steps_per_epoch=…)."
            )
        if progress.total < progress.full:  # a warm start
            return progress.full_steps(self._count(progress.full))
        return steps

    def steps_per_epoch(self, epoch: int) -> int:
        """The number of steps in an epoch over all data; ``epoch`` is the one that asks."""
        last = self.last
        if last is None:
            raise RuntimeError(
                f"paced(…).step() was first called in epoch {epoch}, so the first epoch could not "
                "show how many samples a step has. Pass paced(…, steps_per_epoch=…), or load its "
                "state with load_state_dict()."
            )
        rest = last.total - last.done
        if self.drops_rest:
            return self._count(last.full - rest)
        if rest and not self.gaps:
            raise RuntimeError(
                f"paced(…).step() was called {self.calls} time(s) in the first epoch, the last time after "
                f"{last.done} of its {last.total} samples, which does not show how many steps an epoch "
                "over all data has. Pass paced(…, steps_per_epoch=…)."
            )
        return self._count(last.full)

    def last_call(self, total: int) -> int:
        """The position of the last call in a later epoch."""
        if not self.drops_rest:
            return total
        return max(total - (total - self._offset) % self.period, 1)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        last = None if self.last is None else list(self.last)
        names = ("first", "calls", "drops_rest")
        return {name: getattr(self, name) for name in names} | {
            "gaps": sorted(self.gaps),
            "last": last,
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Rhythm:
        """The rhythm of a state, continued by a loop that was restarted."""
        last = None if state["last"] is None else Progress(*state["last"])
        rhythm = cls(**{**state, "gaps": set(state["gaps"]), "last": last}, interrupted=True)
        rhythm.loaded = rhythm.period if rhythm.gaps else 0
        return rhythm


def _listed(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
