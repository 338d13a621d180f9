"""The base class of policies, and the samples that a policy sees."""

from __future__ import annotations

import dataclasses
import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from infobatch.memory.tracks import Ema, Track
from infobatch.plan import FloatArray, Strata

Sum = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
Budget = Literal["scale", "own", "none"]
Gradient = Literal["cross_entropy", "score", "root"]

MOST_LEFT_OUT = 0.9  # the largest share that a budget takes from a stratum; the rest weighs 10


def alone(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the values unchanged: the sum over a single rank."""
    return values


@dataclass(frozen=True)
class Samples:
    """What is known about the samples when an epoch begins; read-only.

    Attributes:
        scores: one float32 per sample, NaN where a sample was never seen: its last score, or the
            moving average where the policy has a ``smoothing``. With sharded scores these are one
            rank's samples.
        epoch: the epoch that is about to begin, from 0.
        num_epochs: how many epochs training takes in total.
        target: the share to leave out, if the user has set a budget.
        columns: what the policy's tracks remember, by name; ``samples["visits"]`` is one of them.
        cost: the cost of each sample, if the user has given costs.
        labels: the class of each sample, if the user has given it.
        sizes: the sizes of the gradients, where a scoring function reports them.
        sum: a function that adds up numbers over the ranks, for policies that work with sharded scores.
        seed: the key of the random draws.
    """

    scores: FloatArray
    epoch: int = 0
    num_epochs: int = 1
    target: float | None = None
    columns: Mapping[str, npt.NDArray[Any]] | None = None
    cost: FloatArray | None = None
    labels: npt.NDArray[Any] | None = None
    sizes: FloatArray | None = None
    sum: Sum = alone
    seed: int = 0

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        """A column that the policy's tracks remember, such as ``samples["visits"]``."""
        columns = self.columns or {}
        if column not in columns:
            raise KeyError(
                f"samples[{column!r}] is not remembered. Known columns: {sorted(columns)}. Name the "
                "track that has it in the policy's tracks, for instance tracks = (Visits(),)."
            )
        return columns[column]

    @property
    def age(self) -> npt.NDArray[np.int32]:
        """Epochs since each sample's last visit, 1 if it was in the previous epoch; needs LastVisit."""
        age: npt.NDArray[np.int32] = np.int32(self.epoch) - self["last_visit"]
        return age

    def rng(self) -> np.random.Generator:
        """Return a random generator for the policy, keyed by the seed and the epoch.

        Returns:
            A new generator, the same on every rank and after a resume.
        """
        return np.random.default_rng((self.seed, self.epoch, 1))


class Policy(ABC):
    """The base class of every pruning rule: derive from it and implement :meth:`strata`.

    The attributes below have defaults. A rule sets those that it needs in the body of the class, as
    settings (fields of a dataclass, assignments in ``__init__``) or as properties; it may have any
    other attributes and methods of its own.

    A policy has no state: what it has to remember about the samples is declared in ``tracks``.
    Whether it is biased is not declared but follows from the weights of its strata; the first time
    that they are biased, the user gets a ``BiasedPolicyWarning``.

    Raises:
        TypeError: when a class is defined with one of these attributes misspelt (``needs_label``) or
            with a value that the attribute cannot have, or with one that a rule does not declare
            (``biased``, ``delta``). Attributes and methods of your own raise it if their name is nearly
            one of these: rename them, or begin the name with an underscore.

    >>> import infobatch
    >>> class MedianPrune(infobatch.Policy):
    ...     '''Prune half of the samples below the median score.'''
    ...
    ...     def strata(self, samples):
    ...         return infobatch.Strata.below(samples.scores, [(np.nanmedian(samples.scores), 0.5)])
    >>> pruner = infobatch.Pruner(1000, num_epochs=10, policy=MedianPrune())
    """

    smoothing: float = 0.0
    """Rank by a moving average of the scores, in which the earlier ones have this share of the weight."""

    budget: Budget = "scale"
    """What a budget, ``InfoBatch(save=…)``, does: ``"scale"`` scales the shares that are left out to fit
    ``samples.target``; ``"own"`` leaves that to ``strata``; with ``"none"`` a budget raises an error."""

    gradient: Gradient | None = None
    """How the size of a gradient follows from a score, where the rule depends on it; see
    :mod:`infobatch.policies.gradient`. With ``"cross_entropy"``, sizes that a scoring function reports
    come first (``samples.sizes``). None does not depend on it; the noise that is reported is then
    estimated as for cross-entropies."""

    label_smoothing: float = 0.0
    """The label smoothing of the cross-entropies that are the scores, if ``gradient`` takes them for such."""

    num_classes: int | None = None
    """The number of classes, which a ``label_smoothing`` needs: it determines the smallest loss."""

    default_delta: float = 0.875
    """What ``delta`` is if the user does not set it: the share of the epochs that prune."""

    refreshes: bool = False
    """Whether the samples that an epoch leaves out are to be forwarded at its end, see
    :meth:`infobatch.InfoBatch.refresh`."""

    needs_labels: bool = False
    """Whether ``samples.labels`` must be given."""

    shardable: bool = False
    """Whether everything that is computed over all samples goes through ``samples.sum``, so that the
    policy works with ``sharded=True``."""

    # Read-only to a type checker, so that a rule may derive them from its settings in a property.
    if TYPE_CHECKING:

        @property
        def tracks(self) -> Sequence[Track]:
            """What to remember about each sample besides its score, see :mod:`infobatch.tracks`."""

        @property
        def first_epoch(self) -> int:
            """The first epoch that may prune; earlier ones are whole, because too little is known."""

        @property
        def most_left_out(self) -> float:
            """The largest share of an epoch that the rule can leave out: the limit of a budget."""

    else:
        tracks = ()
        first_epoch = 0
        most_left_out = MOST_LEFT_OUT

    @abstractmethod
    def strata(self, samples: Samples) -> Strata:
        """Return the strata of the epoch that is about to begin.

        Called once at the start of each pruned epoch. Must be deterministic: take randomness from
        ``samples.rng()`` and leave the choice within a stratum to the draw that follows. Samples
        without a score are kept, whatever their label.

        Args:
            samples: what is known about the samples.

        Returns:
            The stratum of each sample, and what share of each stratum to keep.
        """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        mixins = [base for base in reversed(cls.__mro__) if not issubclass(base, Policy)]
        for base in (*mixins, cls):  # policies that it derives from were checked themselves
            _check_attributes(f"class {cls.__name__}", vars(base))


def check_policy(policy: Policy) -> None:
    """Check the attributes of a policy that are known only now: settings and properties.

    Raises:
        TypeError: as when a class is defined, see :class:`Policy`.
    """
    known = {name: getattr(policy, name) for name in _EXPECTED}
    _check_attributes(repr(policy), {**vars(policy), **known})


def tracks_of(policy: Policy) -> tuple[Track, ...]:
    """The tracks that this policy needs, including the one for its ``smoothing``."""
    tracks = tuple(policy.tracks)
    averaged = any(isinstance(track, Ema) for track in tracks)
    return (*tracks, Ema(policy.smoothing)) if policy.smoothing and not averaged else tracks


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.floating) and not isinstance(value, bool)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _are_tracks(value: object) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(track, Track) for track in value)


# How a class has an attribute whose value only its objects have.
_DERIVED = (property, cached_property, MemberDescriptorType)
_Check = tuple[Callable[[Any], bool], str]
# What a rule might declare, but does not: why, and what to do.
_UNDECLARED = {
    "biased": "whether a rule is biased follows from the weights of its strata; leave it out",
    "delta": "it is an option of InfoBatch and Pruner; a rule has the default, default_delta",
}
_FLAG: _Check = (_is_flag, "True or False")
# The attributes of a policy: whether a value is possible, and what is.
_EXPECTED: dict[str, _Check] = {
    "tracks": (_are_tracks, "a tuple of tracks, such as (Visits(),)"),
    "smoothing": (lambda v: _is_number(v) and 0 <= v < 1, "a number in [0, 1)"),
    "budget": (lambda v: isinstance(v, str) and v in get_args(Budget), "'scale', 'own' or 'none'"),
    "gradient": (
        lambda v: v is None or (isinstance(v, str) and v in get_args(Gradient)),
        "'cross_entropy', 'score', 'root' or None",
    ),
    "label_smoothing": (lambda v: _is_number(v) and 0 <= v < 1, "a number in [0, 1)"),
    "num_classes": (
        lambda v: v is None or (isinstance(v, int) and not _is_flag(v) and v >= 2),
        "an integer >= 2 or None",
    ),
    "default_delta": (lambda v: _is_number(v) and 0 <= v <= 1, "a number in [0, 1]"),
    "first_epoch": (
        lambda v: isinstance(v, int) and not _is_flag(v) and v >= 0,
        "an integer >= 0",
    ),
    "most_left_out": (lambda v: _is_number(v) and 0 <= v <= 1, "a number in [0, 1]"),
    "refreshes": _FLAG,
    "needs_labels": _FLAG,
    "shardable": _FLAG,
}


def _check_attributes(owner: str, attributes: Mapping[str, object]) -> None:
    """Raise an error if an attribute has an impossible value, or is probably misspelt."""
    plain = {name.lower().replace("_", ""): name for name in _EXPECTED}
    for name, value in attributes.items():
        if isinstance(value, dataclasses.Field):  # field(default=…) in the body of a class
            value = value.default  # noqa: PLW2901
        if name.startswith("_"):
            continue
        if name in _UNDECLARED:
            raise TypeError(
                f"{owner}: a policy has no attribute {name!r}: {_UNDECLARED[name]}. An attribute of "
                "your own needs another name, or one that begins with an underscore. See infobatch.Policy."
            )
        if name in _EXPECTED:
            possible, expected = _EXPECTED[name]
            if value is dataclasses.MISSING or isinstance(value, _DERIVED) or possible(value):
                continue
            method = isinstance(value, FunctionType)
            raise TypeError(
                f"{owner}: {name} is {'a method' if method else repr(value)}, expected "
                f"{expected}{' or a property: add @property' * method}. See infobatch.Policy."
            )
        spelling = name.lower().replace("_", "")
        alike = (
            0.9 if isinstance(value, FunctionType) else 0.8
        )  # a method may well be named refresh
        if close := difflib.get_close_matches(spelling, plain, n=1, cutoff=alike):
            raise TypeError(
                f"{owner}: a policy has no attribute {name!r}. Did you mean "
                f"{plain[close[0]]!r}? An attribute or method of your own needs another name, or one "
                "that begins with an underscore. See infobatch.Policy."
            )
