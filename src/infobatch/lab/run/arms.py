"""The arms of a comparison: what each trains on, and at what cost.

An arm is written as a name with options: ``full``, ``mean:ratio=0.6:delta=0.9``, or, for a custom
rule, ``my_rules.py:MyRule:ratio=0.3``. ``coreset:el2n@0.3`` trains on a subset chosen beforehand,
and ``stream:keep=0.5`` on a part of each batch; so do
``proxy:hardest=0.5`` and ``blocking:layer=2:rarest=0.6``, which are experimental.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from infobatch.checks import check_count
from infobatch.experimental.hardest import Hardest
from infobatch.lab.options import value_of
from infobatch.lab.run.coreset_spec import CoresetSpec, parse_coreset, split_coreset
from infobatch.lab.run.identity import hash_of
from infobatch.lab.stats.runs import FULL, RANDOM, SHORT
from infobatch.lab.task import TaskError, import_file
from infobatch.policies import POLICIES, NoPrune, Policy, RandomPrune
from infobatch.policies.options import Options
from infobatch.pruner import Pruner
from infobatch.stream import StreamPruner

INFOBATCH, STREAM, AFSS, PROXY, BLOCKING = "infobatch", "stream", "afss", "proxy", "blocking"
DELTA = 0.875
LIMITS = ("save", "max_noise", "warmup", "protect_classes", "order")  # of any rule, see InfoBatch
RUN_OPTIONS = ("delta", "shrink", "scores", "probe", *LIMITS)  # not settings of the policy
OF_A_STREAM = ("keep", "max_noise", "floor", "window")  # options, see StreamPruner
HARDEST, RAREST = "hardest", "rarest"  # the share of a batch that is kept without weights
WITHIN_BATCHES = {  # the arms, and their options
    STREAM: OF_A_STREAM,
    PROXY: (*OF_A_STREAM, HARDEST, "every"),
    BLOCKING: (*OF_A_STREAM, RAREST, "layer"),
}
_POLICY_NAMES = {FULL: "none", SHORT: "none", INFOBATCH: "mean"}


@dataclass(frozen=True)
class Arm:
    """One arm: full data, fewer epochs of it, a part of each batch, or a policy, with its options."""

    name: str

    @cached_property
    def _parts(self) -> tuple[str, dict[str, str]]:
        """The rule and its options as strings; for a coreset, those of the arm trained on it."""
        rule, *rest = split_coreset(self.name)[1].split(":")
        if rule.endswith(".py") and rest:
            rule, rest = f"{rule}:{rest[0]}", rest[1:]
        options = dict(part.partition("=")[::2] for part in rest)
        return rule, options

    @cached_property
    def coreset(self) -> CoresetSpec | None:
        """The subset that it trains on, chosen beforehand; None for all data."""
        text, _ = split_coreset(self.name)
        return None if text is None else parse_coreset(text)

    @property
    def rule(self) -> str:
        """The name without the options."""
        return self._parts[0]

    @property
    def prunes(self) -> bool:
        """Whether any data is left out."""
        return self.rule not in (FULL, SHORT)

    @property
    def follows(self) -> bool:
        """Whether it has the cost of another arm, which therefore runs first."""
        by_itself = {"ratio", "save"} & self._parts[1].keys()
        return self.rule == SHORT or (self.rule == RANDOM and not by_itself)

    @property
    def stream(self) -> dict[str, Any] | None:
        """The settings of what chooses from each batch, if samples are left out there."""
        if self.rule not in WITHIN_BATCHES:
            return None
        options = self._parts[1].items()
        return {name: value_of(text) for name, text in options if name not in ("every", "layer")}

    @property
    def every(self) -> int:
        """One batch in so many is what a proxy learns from."""
        every: int = value_of(self._parts[1].get("every", "4"))
        return every

    @property
    def layer(self) -> str | None:
        """The layer of the model after which samples are left out."""
        return self._parts[1].get("layer")

    def chooser(self, *, seed: int, ramp: int) -> StreamPruner | Hardest:
        """What chooses from each batch: an unbiased draw, or those with the highest scores.

        By rarity, the share that is left out rises over ``ramp`` batches, and the loss is the mean over the
        kept samples, as published; by difficulty, it is over the whole batch, as published.
        """
        settings = self.stream
        assert settings is not None
        biased = {HARDEST, RAREST} & settings.keys()
        if not biased:
            return StreamPruner(**settings, seed=seed)
        (name,) = biased
        if len(settings) > 1:
            others = ", ".join(other for other in settings if other != name)
            raise ValueError(
                f"{name}={settings[name]} was combined with {others}, expected it alone: it keeps samples without "
                "weights, and the others are settings of an unbiased draw."
            )
        if name == RAREST:
            return Hardest(settings[name], ramp=ramp, mean_over="kept")
        return Hardest(settings[name])

    @property
    def delta(self) -> float | None:
        """The share of the epochs after which all data is used; None is the rule's default."""
        stated = self._parts[1].get("delta")
        return None if stated is None else float(stated)

    @property
    def limits(self) -> dict[str, Any]:
        """Limits on the rule besides its own settings: a budget, a bound on the noise, …"""
        if self.stream is not None:
            return {}
        options = self._parts[1]
        return {name: value_of(options[name]) for name in LIMITS if name in options}

    @property
    def shrink(self) -> Literal["epoch", "batch"]:
        """What pruning makes smaller: the epoch, or every batch."""
        return "batch" if self._parts[1].get("shrink") == "batch" else "epoch"

    @property
    def file(self) -> Path | None:
        """The user's file that contains the rule."""
        path, colon, _ = self.rule.partition(":")
        return Path(path) if colon else None

    @property
    def scores(self) -> Path | None:
        """The score file by which the first epoch is pruned."""
        path = self._parts[1].get("scores")
        return None if path is None else Path(path)

    @property
    def probe(self) -> str | None:
        """The layer of the model at which the sizes of gradients are measured."""
        return self._parts[1].get("probe")

    @property
    def hash(self) -> str | None:
        """A hash of the user's files, those of the rule and the scores."""
        files = [file for file in (self.file, self.scores) if file is not None and file.exists()]
        return "-".join(map(hash_of, files)) or None

    @property
    def folder_name(self) -> str:
        """The name in a form that is valid in folder names on every system."""
        return re.sub(r"[^\w.=-]", "_", self.name)

    def policy(self, *, num_samples: int, passes: int, epochs: int, budget: int | None) -> Policy:
        """The pruning policy for a training run of ``passes`` on all data, in ``epochs``.

        ``budget`` is how many of these sample passes a following arm may make.
        """
        if self.stream is not None:
            return NoPrune()  # of epochs: samples are left out within each batch
        if self.rule == RANDOM and self.follows:
            assert budget is not None
            # The first epoch is whole for every policy, and so are the last ones.
            delta = DELTA if self.delta is None else self.delta
            end = min(math.ceil(round(delta * epochs, 9)), passes / num_samples)
            if end <= 1:
                return NoPrune()
            ratio = (passes - budget) / (num_samples * (end - 1))
            return RandomPrune(ratio=min(max(ratio, 0.0), 0.99))
        values = {
            name: value_of(text) for name, text in self._parts[1].items() if name not in RUN_OPTIONS
        }
        policy: Policy = self._policy_class(**values)
        return policy

    @property
    def can_be_followed(self) -> bool:
        """Whether a run on all data can tell what this arm would leave out.

        Such a run measures no gradients, starts from no scores, and keeps its own order and batches.
        """
        by_itself = self.prunes and not self.follows and self.stream is None
        by_itself = by_itself and self.rule != AFSS  # which measures the model that it trains
        otherwise = {"scores", "probe", "order"} & self._parts[1].keys()
        return by_itself and self.coreset is None and self.shrink == "epoch" and not otherwise

    @property
    def options(self) -> Options:
        """The options of an arm that can be followed; its rule does not depend on the data's size."""
        policy = self.policy(num_samples=1, passes=1, epochs=1, budget=None)
        return Options(policy=policy, delta=self.delta, **self.limits)

    @cached_property
    def _policy_class(self) -> Any:
        if self.file is None:
            return POLICIES[_POLICY_NAMES.get(self.rule, self.rule)]
        name = self.rule.partition(":")[2]
        if not self.file.is_file():
            raise ValueError(f"--arms got {self.name!r}, but there is no file {self.file}.")
        try:
            module = import_file(self.file)
        except TaskError as error:
            raise ValueError(f"--arms got {self.name!r}: {error}") from error
        rule = getattr(module, name, None)
        if not (isinstance(rule, type) and issubclass(rule, Policy)):
            raise ValueError(
                f"--arms got {self.name!r}, but {self.file} has no policy {name!r}. Expected a class "
                f"{name}(infobatch.Policy) with a method strata()."
            )
        return rule

    def check(self) -> None:
        """Raise at an arm that cannot be trained, before anything starts."""
        if self.coreset is not None:
            on_top = Arm(split_coreset(self.name)[1])
            on_top.check()
            if on_top.follows or on_top.coreset is not None:
                raise ValueError(
                    f"--arms got {self.name!r}: {on_top.name} cannot be trained on a coreset. Expected a "
                    "policy, such as coreset:el2n@0.3+infobatch, or nothing after the coreset."
                )
            return
        known = [
            FULL,
            SHORT,
            RANDOM,
            INFOBATCH,
            *WITHIN_BATCHES,
            *sorted(set(POLICIES) - {"none", RANDOM}),
        ]
        if self.file is None and self.rule not in known:
            raise ValueError(
                f"There is no arm {self.rule!r}. Expected some of {', '.join(known)}; with options, "
                "such as mean:ratio=0.6; a subset, coreset:el2n@0.3; or your own rule, my_rules.py:MyRule."
            )
        self._check_names()
        self._check_values()

    def _check_names(self) -> None:
        rule, options = self._parts
        for name in self.name.removeprefix(rule).split(":")[1:]:
            if "=" not in name:
                raise ValueError(
                    f"--arms got {self.name!r}, expected name=value after each colon, such as "
                    "mean:ratio=0.6:delta=0.9."
                )
        allowed = self._options()
        for name in options:
            if name not in allowed:
                hint = f"Expected some of {', '.join(allowed)}." if allowed else "It has none."
                raise ValueError(
                    f"--arms got {self.name!r}, but {rule} has no option {name!r}. {hint}"
                )

    def _check_values(self) -> None:
        options = self._parts[1]
        try:
            delta = DELTA if self.delta is None else self.delta
        except ValueError:
            delta = -1.0
        if not 0 <= delta <= 1:
            raise ValueError(
                f"--arms got {self.name!r}: delta={options['delta']}, expected a share from 0 to 1."
            )
        if options.get("shrink", "epoch") not in ("epoch", "batch"):
            raise ValueError(
                f"--arms got {self.name!r}: shrink={options['shrink']}, expected epoch or batch."
            )
        if self.rule == BLOCKING and self.layer is None:
            raise ValueError(
                f"--arms got {self.name!r} without a layer, expected the name of the model's last layer that sees every "
                "sample, such as blocking:layer=2:rarest=0.6."
            )
        if self.scores is not None and not self.scores.is_file():
            raise ValueError(
                f"--arms got {self.name!r}, but there is no file {self.scores}. Expected scores that "
                "`infobatch score` or export_scores() wrote."
            )
        try:
            if self.stream is not None:
                self.chooser(seed=0, ramp=0)
                check_count(
                    "Proxy(): every", self.every, "the proxy learns from one batch in so many"
                )
            policy = self.policy(num_samples=100, passes=1000, epochs=10, budget=900)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the run itself will warn
                # Enough epochs to meet any budget; the real number depends on the task.
                Pruner(
                    100, 1000, policy=policy, delta=self.delta, labels=np.arange(100), **self.limits
                )
        except (TypeError, ValueError) as error:
            message = str(error)
            if not message.startswith("--arms"):
                message = f"--arms got {self.name!r}: {message}"
            raise ValueError(message) from error

    def _options(self) -> list[str]:
        if not self.prunes:
            return ["order"] if self.rule == FULL else []
        if self.rule in WITHIN_BATCHES:
            return list(WITHIN_BATCHES[self.rule])
        rule = self._policy_class
        options = [field.name for field in fields(rule) if field.init] if is_dataclass(rule) else []
        return [*options, *RUN_OPTIONS]


def parse_arms(text: str) -> list[Arm]:
    """Read a list of arms such as ``full,mean:ratio=0.6,quantile``.

    >>> [arm.name for arm in parse_arms("full, quantile:bands=((0.5,0.5),)")]
    ['full', 'quantile:bands=((0.5,0.5),)']
    """
    names = [name.strip() for name in _split_at_commas(text) if name.strip()]
    arms = [Arm(name) for name in names]
    for arm in arms:
        arm.check()
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"--arms got {text!r}, expected each arm once and at least one.")
    leader_of(arms)
    return arms


def _split_at_commas(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def in_order(arms: Sequence[Arm]) -> list[Arm]:
    """The order of running: following arms come last, since they need their leader's cost."""
    return sorted(arms, key=lambda arm: arm.follows)


def leader_of(arms: Sequence[Arm]) -> Arm | None:
    """The pruned arm whose cost ``short`` and ``random`` match: infobatch, or the first one."""
    leaders = [arm for arm in arms if not arm.follows and arm.prunes]
    if not leaders and any(arm.follows for arm in arms):
        raise ValueError(
            "The arms short and random match the cost of a pruned arm, but there is none. Add infobatch."
        )
    return next((arm for arm in leaders if arm.name == INFOBATCH), leaders[0] if leaders else None)
