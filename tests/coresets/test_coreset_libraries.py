"""The same choices as well-kept libraries make, where one has the method or a part of it."""

import warnings

import numpy as np
import pytest
import torch

from infobatch import coresets
from infobatch.coresets.boundary import cal

faiss = pytest.importorskip("faiss")
neighbors = pytest.importorskip("sklearn.neighbors")
stats = pytest.importorskip("scipy.stats")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    submodlib = pytest.importorskip("submodlib")

# submodlib still uses names that scipy will remove.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
N, K = 200, 60


def points(seed, n=N):
    return np.random.default_rng(seed).normal(size=(n, 12)).astype(np.float32)


def maximised(function):
    greedy = function.maximize(budget=K, optimizer="NaiveGreedy", show_progress=False)
    return [index for index, _ in greedy]


def value_of_facility_location(similarity, chosen):
    return similarity[chosen].max(0).sum()


@pytest.mark.parametrize("seed", range(3))
def test_facility_location_and_submodlib(seed):
    """Equal gains are broken in another order, so the values of the sets are compared, step by step."""
    x = points(seed)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    similarity = (1 + unit @ unit.T) / 2
    theirs = maximised(
        submodlib.FacilityLocationFunction(n=N, mode="dense", sijs=similarity, separate_rep=False)
    )
    ours = coresets.facility_location(x, K).tolist()
    assert len(set(ours) & set(theirs)) > 0.9 * K
    for size in (1, 5, 20, K):
        assert value_of_facility_location(similarity, ours[:size]) == pytest.approx(
            value_of_facility_location(similarity, theirs[:size]), rel=1e-5
        )


@pytest.mark.parametrize("seed", range(3))
def test_craig_and_submodlib(seed):
    """A different choice among equals leads to other sets later, of almost the same value."""
    x = points(seed)
    apart = np.linalg.norm(x[:, None] - x, axis=2)
    similarity = apart.max() - apart
    theirs = maximised(
        submodlib.FacilityLocationFunction(n=N, mode="dense", sijs=similarity, separate_rep=False)
    )
    ours, weights = coresets.craig(x, K)
    assert value_of_facility_location(similarity, ours) == pytest.approx(
        value_of_facility_location(similarity, theirs), rel=1e-4
    )
    nearest = neighbors.NearestNeighbors(n_neighbors=1).fit(x[ours]).kneighbors(x)[1][:, 0]
    assert weights.tolist() == np.bincount(nearest, minlength=K).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_graph_cut_and_submodlib(seed):
    """submodlib also subtracts a sample's similarity to itself, which is 1 for all."""
    x = points(seed)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    theirs = maximised(
        submodlib.GraphCutFunction(
            n=N, mode="dense", lambdaVal=1.0, ggsijs=(1 + unit @ unit.T) / 2, separate_rep=False
        )
    )
    # Its greedy search stops where gains fall below zero; ours chooses as many as asked for.
    assert coresets.graph_cut(x, K).tolist()[: len(theirs)] == theirs


@pytest.mark.parametrize("library", ["faiss", "scikit-learn"])
def test_cal_has_the_neighbours_of(library):
    x = points(0)
    p = torch.randn(N, 4, generator=torch.Generator().manual_seed(0)).softmax(1)
    if library == "faiss":
        index = faiss.IndexFlatL2(12)
        index.add(x)
        nearest = index.search(x, 11)[1][:, 1:]
    else:
        nearest = neighbors.NearestNeighbors(n_neighbors=10).fit(x).kneighbors()[1]
    logs = p.log()
    expected = ((p[:, None] - p[nearest]) * (logs[:, None] - logs[nearest])).sum(2).mean(1)
    assert cal(x, p).numpy() == pytest.approx(expected.numpy(), rel=1e-5)


def test_entropy_and_divergence_of_scipy():
    p = torch.randn(50, 5, generator=torch.Generator().manual_seed(0)).softmax(1).numpy()
    assert coresets.entropy(p).numpy() == pytest.approx(stats.entropy(p, axis=1), rel=1e-5)
    # The farthest from the first, by Kullback and Leibler both ways.
    both = [stats.entropy(p[0], q) + stats.entropy(q, p[0]) for q in p]
    assert coresets.contextual_diversity(p, 2, first=0)[1] == int(np.argmax(both))
