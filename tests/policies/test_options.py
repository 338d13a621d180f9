"""What a user may ask of any rule: warm-up and labels; the budget and the noise have files of their own."""

import copy
from dataclasses import fields

import numpy as np
import pytest
import torch

import infobatch
from infobatch.distributed.ranks import Place
from infobatch.policies import POLICIES
from infobatch.policies.options import Arguments, Options, costs_of
from infobatch.tracks import Visits

pytestmark = [
    pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning"),
    pytest.mark.filterwarnings(r"ignore:refresh\(\) was not called"),
]
SIZE = 60


def kept_fractions(epochs, **options):
    pruner = infobatch.Pruner(SIZE, epochs, labels=np.arange(SIZE) % 3, **options)
    for epoch in range(epochs):
        order = list(pruner.sampler)
        losses = torch.linspace(0, 1, SIZE) * (1 + 0.1 * ((torch.arange(SIZE) + epoch) % 3))
        pruner.update(losses[order])
    return [epoch.kept_fraction for epoch in pruner.savings.epochs]


@pytest.mark.parametrize("name", POLICIES)
def test_the_warm_up_is_whole_and_what_follows_is_not(name):
    first = max(4, POLICIES[name]().first_epoch)
    kept = kept_fractions(first + 4, policy=name, warmup=4, delta=1.0)
    assert kept[:first] == [1.0] * first
    assert (min(kept[first:]) < 1) == (name != "none")


def test_a_warm_up_of_1_is_what_happens_anyway():
    assert kept_fractions(8, warmup=1) == kept_fractions(8)
    assert kept_fractions(8, warmup=9) == [1.0] * 8


def test_a_warm_up_also_comes_before_initial_scores():
    options = {"initial_scores": np.linspace(0, 1, SIZE), "delta": 1.0}
    assert kept_fractions(4, **options)[0] < 1
    assert kept_fractions(4, warmup=2, **options)[:2] == [1.0, 1.0]


@pytest.mark.parametrize("warmup", [-1, 1.5, True, "2"])
def test_error_of_the_warm_up(warmup):
    with pytest.raises(
        ValueError, match=r"warmup got .*, expected an integer >= 0: it counts whole"
    ):
        infobatch.Pruner(SIZE, 4, warmup=warmup)


def test_costs_are_read_one_by_one():
    seen = []

    class Counted(list):
        def __getitem__(self, index):
            seen.append(index)
            return super().__getitem__(index)

    costs = costs_of(Counted(["a", "bbb", "cc"]), len)
    assert costs.tolist() == [1, 3, 2]
    assert costs.dtype == np.float32
    assert seen == [0, 1, 2]


def test_labels_of_a_data_set_are_read_only_where_they_are_needed():
    class Data(list):
        targets = (0, 1, 1)

    data = Data("abc")
    assert Options(policy="mean").of_dataset(data).labels is None
    assert Options(policy="mean", protect_classes=0.5).of_dataset(data).labels == (0, 1, 1)
    assert Options(policy="rcap").of_dataset(data).labels == (0, 1, 1)
    assert Options(policy="rcap").of_dataset(["a"]).labels is None


def test_the_options_are_stated_once():
    """The keyword arguments, for type checkers, are those of the two checked objects."""
    stated = {option.name: option.type for option in fields(Options)}
    stated |= {place.name: place.type for place in fields(Place)}
    assert stated.pop("prune_ratio") == stated.pop("delta") == "float | None"
    assert stated == {
        name: kind.__forward_arg__ for name, kind in Arguments.__annotations__.items()
    }


def test_options_are_checked_without_data():
    assert Options(save=0.3, tracks=iter([Visits()])).tracks == (Visits(),)
    with pytest.raises(
        ValueError, match=r"save=0.3 was given with NoisePrune\(.*, which has no share"
    ):
        Options(policy="noise", save=0.3)
    with pytest.raises(ValueError, match=r"delta got 2, expected a share of the epochs"):
        Options(delta=2)
    with pytest.raises(ValueError, match=r"protect_classes got 3, expected a share in \[0, 1\]"):
        Options(protect_classes=3)


def test_a_pruner_has_no_data_to_compute_costs_from():
    with pytest.raises(
        TypeError,
        match=r"^Pruner\(cost=…\) got a function, expected an array with the cost of each sample: a "
        r"Pruner has no data set to apply it to\. Use InfoBatch, or compute the array\.$",
    ):
        infobatch.Pruner(4, 2, cost=len)


def test_an_argument_that_does_not_exist():
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_noice'"):
        infobatch.InfoBatch(range(4), 2, max_noice=0.1)


@pytest.mark.parametrize(
    ("tracks", "got"),
    [([Visits], "<class '"), ([Visits(), "ema"], "'ema'"), (Visits(), r"Visits\(\)"), (3, "3")],
)
def test_error_of_the_tracks(tracks, got):
    message = rf"^tracks got {got}.*, expected a list of objects whose classes derive from "
    with pytest.raises(TypeError, match=message + r"infobatch\.tracks\.Track, such as tracks=\["):
        infobatch.Pruner(4, 3, tracks=tracks)


def test_limits_survive_a_copy():
    options = {"save": 0.3, "cost": np.arange(1, SIZE + 1), "warmup": 2, "max_noise": 0.5}
    pruner = infobatch.Pruner(SIZE, 10, **options, protect_classes=0.1, labels=np.arange(SIZE) % 2)
    twin = copy.deepcopy(pruner)
    assert repr(twin._course.planner) == repr(pruner._course.planner)
    for name in ("cost", "labels"):
        twins, ours = (getattr(owner._course.planner, name) for owner in (twin, pruner))
        assert np.array_equal(twins, ours)
