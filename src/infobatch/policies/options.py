"""What a user may ask of pruning: stated, documented and checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, get_args

import numpy as np
import torch.distributed as dist

from infobatch.checks import Rows, check_count, check_delta, check_share
from infobatch.memory.tracks import Track
from infobatch.plan import FloatArray
from infobatch.policies.base import Policy
from infobatch.policies.checks import check_number
from infobatch.policies.none import NoPrune
from infobatch.policies.registry import POLICIES
from infobatch.policies.resolve import resolve_policy

if TYPE_CHECKING:
    from typing_extensions import Self

Order = Literal["random", "stratified"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Options:
    """How the epochs of a training run are pruned; checked when it is created.

    Args:
        prune_ratio: the share of the below-mean samples that an epoch leaves out, 0.5 by default
            (the paper's r).
        delta: pruning stops from epoch ``delta * num_epochs`` on; 0.875 by default, for most rules.
        policy: a name or an object of :mod:`infobatch.policies`, instead of the mean rule.
        seed: the key of the draws; the global random generators are never touched.
        save: instead of a ratio, the share of the run's sample passes to save, counting the whole
            first and last epochs too. Each epoch adapts to what is still to be saved.
        cost: the cost of a pass of each sample (tokens, pixels), as an array or a function of a
            sample, which is called once for each. The budget and the savings then count cost, and
            importance rules prefer cheap samples.
        warmup: how many epochs at the start are whole.
        max_noise: prune less in an epoch that would add more than this share to the gradient noise;
            0.1 is like dividing the batch size by 1.1.
        protect_classes: the minimum share of each class that every epoch keeps.
        order: ``"random"``, or ``"stratified"``: every class has its share of every batch and of what
            an epoch keeps; it needs ``labels``.
        labels: the class of each sample, if a rule, ``protect_classes`` or ``order`` needs it; by
            default ``dataset.targets``, where there is a data set.
        initial_scores: the scores of an earlier run, so that even the first epoch is pruned: a
            tensor or array with one score per sample, or a file written by ``export_scores``.
        tracks: what to remember about each sample besides what the policy needs, for
            ``export_scores``; see :mod:`infobatch.tracks`.
        shadow: with ``policy="none"``, one or several rules to follow without pruning anything, for
            :meth:`~infobatch.InfoBatch.forecast`: names or policies, with the other options of this
            run, or complete ``Options`` of their own.

    Raises:
        TypeError: if ``policy`` or one of ``shadow`` is not one.
        ValueError: if a value is not what is described above.

    >>> Options(save=0.3, seed=1)
    Options(seed=1, save=0.3)
    """

    prune_ratio: float | None = None
    delta: float | None = None
    policy: Policy | str | None = None
    seed: int = 0
    save: float | None = None
    cost: Rows | Callable[[Any], float] | None = field(default=None, compare=False)
    warmup: int = 0
    max_noise: float | None = None
    protect_classes: float | None = None
    order: Order = "random"
    labels: Rows | None = field(default=None, compare=False)
    initial_scores: Rows | str | PathLike[str] | None = field(default=None, compare=False)
    tracks: Iterable[Track] = ()
    shadow: Rule | Iterable[Rule] = ()

    def __post_init__(self) -> None:
        """Check what can be checked without the data."""
        object.__setattr__(self, "tracks", check_tracks(self.tracks))
        several = isinstance(self.shadow, Iterable) and not isinstance(self.shadow, str)
        object.__setattr__(self, "shadow", tuple(self.shadow) if several else (self.shadow,))  # type: ignore[arg-type]
        rule = self.rule
        if self.shadow and not isinstance(rule, NoPrune):
            raise ValueError(
                f'shadow={self.shadow} was given with {rule!r}, expected policy="none": a rule can only '
                "be followed beside a training on all data, in which every sample is visited."
            )
        self.shadows  # noqa: B018 - raises at what is not a rule
        check_delta(self.delta, rule.default_delta)
        check_count("seed", self.seed, "it seeds the random draws", least=0)
        check_count("warmup", self.warmup, "it counts whole epochs", least=0)
        if self.max_noise is not None:
            why = "the noise that pruning may add, relative to that of full-data training"
            check_number("max_noise", self.max_noise, why, least=0)
        why = "at least this share of each class is kept in every epoch"
        check_share("protect_classes", self.protect_classes, why)
        if self.order not in get_args(Order):
            raise ValueError(
                f"order got {self.order!r}, expected 'random' or 'stratified' (each class has its share of "
                "every batch)."
            )
        if self.save is not None and rule.budget == "none":
            raise ValueError(
                f"save={self.save} was given with {rule!r}, which has no share to adapt. Use "
                'policy="importance" or another rule with a ratio, or leave save out.'
            )

    @cached_property
    def rule(self) -> Policy:
        """The policy itself, also where a name or a ratio was given."""
        return resolve_policy(self.policy, ratio=self.prune_ratio)

    @cached_property
    def pruned_share(self) -> float:
        """The share of the epochs that may prune: ``delta``, or the rule's default."""
        return check_delta(self.delta, self.rule.default_delta)

    @cached_property
    def shadows(self) -> dict[str, Options]:
        """The rules to follow without pruning: the options of each, by its name."""
        shadows = {}
        for rule in cast(tuple[Rule, ...], self.shadow):
            options = self._with_rule(rule)
            name = rule if isinstance(rule, str) else name_of(rule)
            if name in shadows:
                raise ValueError(
                    f"shadow={self.shadow} has the rule {name} twice, expected it once."
                )
            shadows[name] = options
        return shadows

    def _with_rule(self, rule: Rule) -> Options:
        """The options of a shadow: this run's with another rule, or its own with this run's data."""
        if isinstance(rule, Options):
            data = ("cost", "labels", "initial_scores")
            given = {name: getattr(rule, name) for name in data}
            ours = {name: getattr(self, name) for name in data if given[name] is None}
            return replace(rule, **ours, seed=self.seed)
        arguments = {**self.arguments(), "policy": resolve_policy(rule), "shadow": (), "tracks": ()}
        return Options(**{**arguments, "prune_ratio": None})

    @property
    def needs_labels(self) -> bool:
        """Whether the samples' classes must be known."""
        needed = self.protect_classes is not None or self.rule.needs_labels
        needed = needed or self.order == "stratified"
        return needed or any(options.needs_labels for options in self.shadows.values())

    def of_dataset(self, dataset: Any) -> Self:
        """Return the same options with what is read from a data set: costs and labels.

        Args:
            dataset: the data set whose samples a ``cost`` function is called with, and whose ``targets``
                are the labels if some are needed and none were given.

        Returns:
            The options, with arrays instead of functions.
        """
        cost, labels = self.cost, self.labels
        if callable(cost):
            cost = costs_of(dataset, cost)
        if labels is None and self.needs_labels:
            labels = getattr(dataset, "targets", None)  # torchvision's name for them
        return replace(self, cost=cost, labels=labels)

    def arguments(self) -> dict[str, Any]:
        """Return the options as keyword arguments, with which an equal object can be built.

        Returns:
            Every option by name.
        """
        return {option.name: getattr(self, option.name) for option in fields(self)}

    def __repr__(self) -> str:
        given = ", ".join(
            f"{option.name}={value!r}"
            for option in fields(self)
            if option.compare and (value := getattr(self, option.name)) != option.default
        )
        return f"{type(self).__name__}({given})"


Rule = Policy | str | Options


def name_of(given: Policy | Options) -> str:
    """The name of a rule, with the settings that are not its defaults.

    >>> from infobatch.policies import NoisePrune
    >>> name_of(Options(policy=NoisePrune(tau=0.3), delta=1.0))
    'noise(tau=0.3, delta=1.0)'
    """
    options = given if isinstance(given, Options) else Options(policy=given)
    rule = options.rule
    names = {POLICIES[name]: name for name in POLICIES}
    rule_defaults: dict[str, Any] = (
        {setting.name: setting.default for setting in fields(rule)} if is_dataclass(rule) else {}
    )
    settings: dict[str, Any] = {
        name: value
        for name in rule_defaults
        if (value := getattr(rule, name)) != rule_defaults[name]
    }
    shared = ("delta", "save", "warmup", "max_noise", "protect_classes")
    defaults = {option.name: option.default for option in fields(Options)}
    settings |= {
        name: value
        for name in shared
        if (value := getattr(options, name)) != defaults[name]
        and not (name == "delta" and value == rule.default_delta)
    }
    words = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    name = names.get(type(rule), type(rule).__name__)
    return f"{name}({words})" if words else name


class Arguments(TypedDict, total=False):
    """The keyword arguments of ``InfoBatch`` and ``Pruner``, for type checkers.

    Those of :class:`Options`, except for the ratio and delta, and of
    :class:`infobatch.distributed.ranks.Place`.
    """

    policy: Policy | str | None
    seed: int
    save: float | None
    cost: Rows | Callable[[Any], float] | None
    warmup: int
    max_noise: float | None
    protect_classes: float | None
    order: Order
    labels: Rows | None
    initial_scores: Rows | str | PathLike[str] | None
    tracks: Iterable[Track]
    shadow: Rule | Iterable[Rule]
    rank: int | None
    world_size: int | None
    process_group: dist.ProcessGroup | None
    model_group: dist.ProcessGroup | None
    sharded: bool
    global_order: bool | None
    meeting_timeout: float


def check_tracks(tracks: object) -> tuple[Track, ...]:
    """Return the tracks as a tuple; anything else raises an error."""
    given = tuple(tracks) if isinstance(tracks, Iterable) else (tracks,)
    if not isinstance(tracks, Iterable) or not all(isinstance(track, Track) for track in given):
        wrong = next((track for track in given if not isinstance(track, Track)), tracks)
        raise TypeError(
            f"tracks got {wrong!r}, expected a list of objects whose classes derive from "
            "infobatch.tracks.Track, such as tracks=[infobatch.tracks.Visits()]."
        )
    return given


def costs_of(dataset: Any, cost: Callable[[Any], float]) -> FloatArray:
    """The cost of each sample, read one by one: all at once may not fit into memory."""
    count = len(dataset)
    return np.fromiter((cost(dataset[index]) for index in range(count)), np.float32, count)
