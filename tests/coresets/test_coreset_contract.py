"""What holds for every method, through select()."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from infobatch import coresets
from infobatch.coresets.base import class_quotas
from infobatch.coresets.registry import METHODS

N, D, C = 90, 6, 3
RANKING = [name for name, method in METHODS.entries.items() if method.ranks]
CHOOSING = [name for name, method in METHODS.entries.items() if not method.ranks]
NAMES = [
    *("random", "herding", "k_center", "contextual_diversity", "least_confidence", "entropy"),
    *("margin", "forgetting", "grand", "el2n", "deepfool", "cal", "craig", "glister", "graph_cut"),
    *("facility_location", "influence", "dp", "dyn_unc", "ccs", "dataset_quantization"),
]


def given(seed=0, n=N):
    """All that a method may need, of a linear network on random inputs."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x = torch.randn(n, D, generator=generator)
    model = nn.Linear(D, C)
    logits = model(x).detach() * 2
    return coresets.Inputs(
        features=x,
        logits=logits,
        labels=torch.randint(C, (n,), generator=generator),
        history=coresets.History(
            correct=torch.rand(12, n, generator=generator) < 0.6,
            label_probabilities=torch.rand(12, n, generator=generator),
        ),
        model=model,
        data=TensorDataset(x),
    )


def test_all_methods_are_there():
    assert list(METHODS) == NAMES
    assert set(NAMES) <= set(coresets.__all__)
    for name in NAMES:
        assert getattr(coresets, name) is METHODS[name] is METHODS.entries[name].function
        assert METHODS.entries[name].summary == METHODS[name].__doc__.strip().splitlines()[0]


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_choice(name, balanced):
    """Different samples, as many as asked for, the same each time, and the inputs as before."""
    inputs = given()
    before = inputs.features.clone(), inputs.logits.clone()
    chosen = coresets.select(name, fraction=0.3, inputs=inputs, balanced=balanced)
    assert len(chosen) == len(set(chosen.indices.tolist())) == len(chosen.weights) == 27
    assert chosen.indices.dtype == np.int64
    assert chosen.num_samples == N
    again = coresets.select(name, fraction=0.3, inputs=given(), balanced=balanced)
    assert again.indices.tolist() == chosen.indices.tolist()
    assert again.weights.tolist() == chosen.weights.tolist()
    assert torch.equal(inputs.features, before[0])
    assert torch.equal(inputs.logits, before[1])
    if name == "craig":
        assert chosen.weights.sum() == N
        assert chosen.weights.min() >= 1
    else:
        assert (chosen.weights == 1).all()


@pytest.mark.parametrize("name", NAMES)
def test_balanced_keeps_the_share_of_each_class(name):
    inputs = given()
    labels = torch.tensor([0] * 60 + [1] * 20 + [2] * 10)
    chosen = coresets.select(name, fraction=0.3, inputs=inputs, labels=labels, balanced=True)
    assert np.bincount(labels[chosen.indices]).tolist() == [18, 6, 3]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fraction", [1e-9, 0.011, 0.5, 1, 1.0])
def test_fractions(name, fraction):
    options = {"beta": 0.0} if name == "ccs" else {}
    chosen = coresets.select(name, fraction=fraction, inputs=given(), **options)
    assert len(chosen) == max(1, round(fraction * N))
    if fraction == 1:
        assert sorted(chosen.indices.tolist()) == list(range(N))


@pytest.mark.parametrize("name", NAMES)
def test_a_class_with_fewer_samples_than_are_chosen(name):
    """Two samples of the last class, of which a class-by-class choice takes one or two, never more."""
    labels = torch.tensor([0] * 50 + [1] * 38 + [2] * 2)
    for fraction in (0.1, 0.6, 1.0):
        options = {"beta": 0.0} if name == "ccs" else {}
        chosen = coresets.select(
            name, fraction=fraction, inputs=given(), labels=labels, balanced=True, **options
        )
        assert len(set(chosen.indices.tolist())) == round(fraction * N)
        assert 1 <= int((labels[chosen.indices] == 2).sum()) <= 2


@pytest.mark.parametrize("name", NAMES)
def test_duplicates(name):
    """Ten times the same samples: any may be chosen, none of them twice."""
    inputs = given(n=9)
    many = {field: getattr(inputs, field).repeat(10, 1) for field in ("features", "logits")}
    history = coresets.History(
        *(part.repeat(1, 10) for part in dataclasses.astuple(inputs.history))
    )
    chosen = coresets.select(
        name,
        fraction=0.5,
        **many,
        labels=inputs.labels.repeat(10),
        history=history,
        model=inputs.model,
        data=TensorDataset(many["features"]),
    )
    assert len(set(chosen.indices.tolist())) == 45
    assert chosen.weights.sum() == (90 if name == "craig" else 45)


@pytest.mark.parametrize("name", ["k_center", "facility_location", "craig", "contextual_diversity"])
def test_a_copy_of_a_chosen_sample_is_chosen_last(name):
    """Methods that cover the data take each of nine samples once before any copy."""
    inputs = given(n=9)
    chosen = coresets.select(
        name,
        fraction=0.1,
        features=inputs.features.repeat(10, 1),
        logits=inputs.logits.repeat(10, 1),
        labels=inputs.labels.repeat(10),
    )
    assert sorted((chosen.indices % 9).tolist()) == list(range(9))


@pytest.mark.parametrize("name", ["k_center", "contextual_diversity"])
def test_copies_are_equals(name):
    """Where only copies are left, the lowest index is chosen: rounding must not decide."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(30, 4, generator=generator).repeat(4, 1)
    chosen = coresets.select(name, fraction=1.0, features=values, logits=values)
    copies = chosen.indices[30:].tolist()
    assert copies == sorted(copies)


@pytest.mark.parametrize("name", [*RANKING, "k_center", "herding", "graph_cut", "glister"])
def test_among_equals_the_lower_index(name):
    """All samples are the same."""
    inputs = given(n=1)
    chosen = coresets.select(
        name,
        fraction=0.25,
        features=inputs.features.repeat(40, 1),
        logits=inputs.logits.repeat(40, 1),
        labels=inputs.labels.repeat(40),
        history=coresets.History(np.tile([[1], [0]], 40), np.tile([[0.1], [0.9]], 40)),
        model=inputs.model,
        data=TensorDataset(inputs.features.repeat(40, 1)),
        **({"step_size": 0.0} if name == "glister" else {}),
    )
    assert chosen.indices.tolist() == list(range(10))


@pytest.mark.parametrize(("fraction", "beta"), [(0.1, 0.3), (0.2, 0.2), (0.3, 0.0)])
def test_ccs_leaves_out_the_same_share_of_each_class(fraction, beta):
    """However the part of a class is rounded: 51 of 506 are more than a tenth, 50 of 501 are less."""
    labels = np.repeat([0, 1, 2], [506, 501, 15])
    scores = np.random.default_rng(0).random(len(labels))
    chosen = coresets.select(
        "ccs", fraction=fraction, scores=scores.tolist(), labels=labels, balanced=True, strata=1
    )
    for number in range(3):
        inside = scores[labels == number]
        hardest_chosen = scores[chosen.indices[labels[chosen.indices] == number]].max()
        left_out = round(beta * len(inside))
        assert (inside > hardest_chosen).sum() >= left_out
    explicit = coresets.select(
        "ccs", fraction=fraction, scores=scores, labels=labels, balanced=True, strata=1, beta=beta
    )
    assert explicit.indices.tolist() == chosen.indices.tolist()


def test_ties_within_classes():
    labels = [1, 0, 1, 0, 1, 0]
    assert coresets.top_k([1.0] * 6, 4, labels).tolist() == [0, 1, 2, 3]
    assert coresets.top_k([0, 5, 0, 5, 9, 5], 3, labels).tolist() == [4, 1, 3]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "random"])
def test_a_nan_raises(name):
    inputs = given()
    for field in ("features", "logits"):
        getattr(inputs, field)[7, 2] = torch.nan
    inputs.history.label_probabilities[3, 7] = torch.nan
    if name == "forgetting":  # where NaN is a visit that was not made
        inputs = coresets.Inputs(history=coresets.History(correct=[[0.0, torch.inf]]))
    if name == "deepfool":
        with pytest.raises(
            ValueError, match=r"select\('deepfool'\) got scores of shape \(90,\) with 1 NaN"
        ):
            coresets.select(name, fraction=0.3, inputs=inputs)
        return
    with pytest.raises(ValueError, match=r"NaN|infinite|not visited"):
        coresets.select(name, fraction=0.3, inputs=inputs)


NEEDS = {
    "herding": "features",
    "k_center": "features",
    "dataset_quantization": "features",
    "contextual_diversity": "probabilities",
    "least_confidence": "probabilities",
    "entropy": "probabilities",
    "margin": "probabilities",
    "forgetting": "correct",
    "dyn_unc": "label_probabilities",
    "grand": "gradient_norms",
    "el2n": "error_norms",
    "deepfool": "model and data",
    "cal": "features and probabilities",
    "craig": "gradients or features",
    "graph_cut": "gradients or features",
    "facility_location": "gradients or features",
    "glister": "features and logits",
    "influence": "features and probabilities",
    "dp": "features and probabilities",
    "ccs": "scores",
}


@pytest.mark.parametrize("name", NEEDS)
def test_what_is_missing_is_named(name):
    with pytest.raises(ValueError, match=rf"select\('{name}'\) needs {NEEDS[name]}\. Pass "):
        coresets.select(name, fraction=0.3, labels=torch.zeros(5, dtype=torch.int64))


def test_random_needs_to_know_how_many():
    with pytest.raises(ValueError, match="cannot tell the number of samples"):
        coresets.select("random", fraction=0.3)
    assert len(coresets.select("random", fraction=0.3, labels=[0] * 10)) == 3


def test_random_is_uniform():
    """A z-test of how often each sample is drawn, in 4,000 draws of 3 out of 10."""
    counts = np.zeros(10)
    for seed in range(4000):
        counts[coresets.random(10, 3, seed=seed)] += 1
    z = (counts - 1200) / np.sqrt(4000 * 0.3 * 0.7)
    assert np.abs(z).max() < 3.5
    assert (z**2).sum() * 0.9 < 27.9  # chi-squared of 9 degrees, 0.1%


def test_seeds_differ():
    for name in ("random", "ccs", "dataset_quantization"):
        first, second = (
            coresets.select(name, fraction=0.3, inputs=given(), seed=seed) for seed in (0, 1)
        )
        assert set(first.indices.tolist()) != set(second.indices.tolist())


def test_outputs_of_an_ensemble():
    inputs = given()
    p, q = (inputs.logits * scale for scale in (1, -1))
    outputs = torch.stack([p, q]).softmax(2)
    mean = coresets.select("entropy", fraction=0.3, probabilities=outputs)
    plain = coresets.select("entropy", fraction=0.3, probabilities=outputs.mean(0))
    assert mean.indices.tolist() == plain.indices.tolist()
    both = coresets.select("el2n", fraction=0.3, probabilities=outputs, labels=inputs.labels)
    norms = torch.stack([coresets.error_norms(output, inputs.labels) for output in outputs])
    assert both.scores == pytest.approx(norms.mean(0).numpy())
    given_norms = coresets.select("el2n", fraction=0.3, error_norms=norms)
    assert given_norms.indices.tolist() == both.indices.tolist()


def test_a_validation_set():
    inputs, held = given(), given(seed=1)
    for name in ("glister", "influence"):
        with_held = coresets.select(name, fraction=0.2, inputs=inputs, validation=held)
        without = coresets.select(name, fraction=0.2, inputs=inputs)
        assert set(with_held.indices.tolist()) != set(without.indices.tolist())
    with pytest.raises(ValueError, match=r"validation=Inputs\(…\)\) needs logits"):
        coresets.select(
            "glister",
            fraction=0.2,
            inputs=inputs,
            validation=coresets.Inputs(features=[[1.0]], labels=[0]),
        )


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, 30, "0.3", None, True, float("nan")])
def test_a_fraction_is_above_0_and_up_to_1(fraction):
    with pytest.raises(
        ValueError, match=re.escape(f"got fraction={fraction!r}, expected the share")
    ):
        coresets.select("random", fraction=fraction, labels=[0] * 10)


@pytest.mark.parametrize("k", [0, -1, 91, 2.0, None, True])
def test_k_is_one_to_all(k):
    inputs = given()
    p = inputs.logits.softmax(1)
    calls = [
        lambda: coresets.random(N, k),
        lambda: coresets.herding(inputs.features, k),
        lambda: coresets.k_center(inputs.features, k),
        lambda: coresets.contextual_diversity(p, k),
        lambda: coresets.facility_location(inputs.features, k),
        lambda: coresets.graph_cut(inputs.features, k),
        lambda: coresets.craig(inputs.features, k),
        lambda: coresets.glister(inputs.features, inputs.logits, inputs.labels, k),
        lambda: coresets.dp(inputs.features, p, inputs.labels, k),
        lambda: coresets.ccs(p[:, 0], k),
        lambda: coresets.dataset_quantization(inputs.features, k),
        lambda: coresets.top_k(p[:, 0], k),
    ]
    for call in calls:
        with pytest.raises(
            ValueError, match=re.escape(f"got k={k!r}, expected how many of the 90")
        ):
            call()


def test_other_errors():
    inputs = given()
    select = coresets.select
    with pytest.raises(ValueError, match=r"got the method 'kcenter', expected one of random, "):
        select("kcenter", fraction=0.3)
    with pytest.raises(
        TypeError,
        match=r"got the option 'bta', which it does not have. Expected some of beta, strata",
    ):
        select("ccs", fraction=0.3, inputs=inputs, bta=0.1)
    with pytest.raises(
        TypeError, match=r"got the option 'window', which it does not have. It has none"
    ):
        select("entropy", fraction=0.3, inputs=inputs, window=3)
    with pytest.raises(ValueError, match=r"balanced=True\) needs labels"):
        select("k_center", fraction=0.3, features=inputs.features, balanced=True)
    with pytest.raises(ValueError, match="different numbers of samples: features 90, labels 3"):
        select("k_center", fraction=0.3, features=inputs.features, labels=[0, 1, 2])
    with pytest.raises(ValueError, match=r"Are they logits\? Pass them as logits"):
        select("entropy", fraction=0.3, probabilities=inputs.logits)
    with pytest.raises(ValueError, match=r"features of shape \(90,\), expected a 2-D array"):
        select("k_center", fraction=0.3, features=inputs.features[:, 0])
    with pytest.raises(ValueError, match=r"the label 5 where the outputs have 3 classes"):
        select("el2n", fraction=0.3, logits=inputs.logits, labels=[5] * 90)
    with pytest.raises(ValueError, match="one class number"):
        select("el2n", fraction=0.3, logits=inputs.logits, labels=[0.5] * 90)
    with pytest.raises(TypeError, match="got features as str"):
        select("k_center", fraction=0.3, features="abc")
    with pytest.raises(ValueError, match="at least k samples must remain"):
        select("ccs", fraction=0.8, inputs=inputs, beta=0.5)
    with pytest.raises(ValueError, match=r"window=20 and a history of 12 epochs"):
        select("dyn_unc", fraction=0.3, inputs=inputs, window=20)
    with pytest.raises(ValueError, match="expected 1 to 89: a sample is not its own neighbour"):
        select("cal", fraction=0.3, inputs=inputs, neighbours=90)
    with pytest.raises(ValueError, match="Are they probabilities"):
        coresets.forgetting([[0.5, 0.2]])
    with pytest.raises(ValueError, match=r"top_k\(\) got scores of shape \(2,\) with 1 NaN"):
        coresets.top_k([0.5, float("nan")], 1)
    with pytest.raises(ValueError, match=r"picks_per_step got 0, expected an integer >= 1"):
        select("glister", fraction=0.3, inputs=inputs, picks_per_step=0)


def test_class_quotas():
    labels = np.repeat([0, 1, 2, 7], [97, 1, 1, 1])
    for k in range(1, 101):
        quotas = class_quotas(labels, k)
        assert sum(quotas.values()) == k
        assert all(quota <= (labels == number).sum() for number, quota in quotas.items())
        if k >= 4:
            assert min(quotas.values()) >= 1


def test_the_passes_of_deepfool_are_counted():
    """A linear model: each sample is at the border after one step, which a second look confirms."""
    inputs = given()
    chosen = coresets.select("deepfool", fraction=0.3, inputs=inputs)
    passes_per_step = 1 + inputs.logits.shape[1]  # forward, and back to the input from each class
    assert chosen.cost.samples_forwarded == 2 * N * passes_per_step
    assert chosen.cost.samples_backpropagated == 0
    assert chosen.cost.passes == round(2 * N * passes_per_step / 3)
    assert not inputs.model._forward_hooks


def test_cost_is_counted():
    inputs = dataclasses.replace(given(), cost=coresets.Cost(10.0, 500, 400, 20.0))
    chosen = coresets.select("k_center", fraction=0.3, inputs=inputs)
    assert chosen.cost.seconds > 10
    assert chosen.cost.cpu_seconds >= 20
    assert (chosen.cost.samples_forwarded, chosen.cost.samples_backpropagated) == (500, 400)


@pytest.mark.parametrize("ending", [".npz", ".csv", ".parquet"])
def test_files(ending, tmp_path):
    chosen = coresets.select("craig", fraction=0.3, inputs=given())
    path = tmp_path / f"chosen{ending}"
    chosen.save(path)
    indices, weights = coresets.load_indices(path)
    assert indices.tolist() == chosen.indices.tolist()
    assert weights.tolist() == chosen.weights.tolist()
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_are_none(tmp_path):
    chosen = coresets.select("random", fraction=0.3, inputs=given())
    with pytest.raises(
        ValueError, match=r"save\(\) got .*chosen.txt', expected a file name that ends in"
    ):
        chosen.save(tmp_path / "chosen.txt")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(
        ValueError, match=r"with the columns \['a'\], expected 'index' and 'weight'"
    ):
        coresets.load_indices(tmp_path / "other.npz")


def test_subset():
    inputs = given()
    chosen = coresets.select("margin", fraction=0.3, inputs=inputs)
    subset = chosen.subset(inputs.data)
    assert len(subset) == 27
    assert torch.equal(subset[0][0], inputs.features[chosen.indices[0]])
    with pytest.raises(ValueError, match=r"was chosen from 90. Pass the same data set"):
        chosen.subset(TensorDataset(torch.zeros(5)))
