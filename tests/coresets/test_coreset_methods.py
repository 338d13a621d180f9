"""Each method against a slow version of its formula, and against a case whose answer is known."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coreset_reference as slow
from infobatch import coresets
from infobatch.coresets import bilevel, facility
from infobatch.coresets.vectors import last_layer_gradients

N, D, C = 60, 5, 3


@pytest.fixture(params=range(3))
def made(request):
    """Features, logits, probabilities and labels, in double precision."""
    rng = np.random.default_rng(request.param)
    h, z = rng.normal(size=(N, D)), 2 * rng.normal(size=(N, C))
    return h, z, slow.softmax(z), rng.integers(C, size=N)


# Against the slow versions.


def test_herding(made):
    h, *_ = made
    assert coresets.herding(h, 25).tolist() == slow.herding(h, 25)


def test_k_center(made):
    h, *_ = made
    assert coresets.k_center(h, 25).tolist() == slow.k_center(h, 25)


def test_contextual_diversity(made):
    _, _, p, _ = made
    assert coresets.contextual_diversity(p, 25).tolist() == slow.contextual_diversity(p, 25)


def test_facility_location(made):
    h, *_ = made
    assert coresets.facility_location(h, 25).tolist() == slow.facility_location(slow.cosines(h), 25)


def test_facility_location_of_gradients_that_are_never_written_out(made):
    h, _, p, y = made
    chosen = coresets.facility_location(last_layer_gradients(h, p, y), 25)
    expected = slow.facility_location(slow.cosines(slow.gradients(h, p, y)), 25)
    assert chosen.tolist() == expected


@pytest.mark.parametrize("kept_bytes", [1, 3_000, 100_000])
def test_facility_location_with_few_rows_in_memory(made, kept_bytes, monkeypatch):
    """The rows that do not fit are computed again; the choice stays the same."""
    h = np.concatenate([made[0], made[0] + np.random.default_rng(9).normal(size=(N, D))])
    expected = coresets.facility_location(h, 50).tolist()
    monkeypatch.setattr(facility, "KEPT_BYTES", kept_bytes)
    monkeypatch.setattr(facility, "LARGEST_BATCH", 8)
    assert coresets.facility_location(h, 50).tolist() == expected


def test_facility_location_seldom_computes_a_row_again(monkeypatch):
    """A fifth of the matrix fits, yet all that still matters does after a few choices."""
    count = 500
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unit = nn.functional.normalize(x)
    computed = []

    def similarity(rows):
        computed.extend(rows.tolist())
        return unit[rows] @ unit.T

    monkeypatch.setattr(facility, "KEPT_BYTES", 8 * count**2 // 5)
    chosen = facility.greedy_facility_location(similarity, count, 150)
    assert chosen.tolist() == coresets.facility_location(x, 150).tolist()
    # Once to begin with, and once or twice after the first choices.
    assert len(computed) < 4 * count


@pytest.mark.parametrize("trade_off", [1.0, 0.3, 4.0])
def test_graph_cut(made, trade_off):
    h, *_ = made
    chosen = coresets.graph_cut(h, 25, trade_off=trade_off).tolist()
    assert chosen == slow.graph_cut(h, 25, trade_off)


def test_graph_cut_of_gradients(made):
    h, _, p, y = made
    chosen = coresets.graph_cut(last_layer_gradients(h, p, y), 25).tolist()
    assert chosen == slow.graph_cut(slow.gradients(h, p, y), 25)


def test_craig(made):
    h, _, p, y = made
    chosen, weights = coresets.craig(last_layer_gradients(h, p, y), 25)
    expected, sizes = slow.craig(slow.gradients(h, p, y), 25)
    assert chosen.tolist() == expected
    assert weights.tolist() == sizes


@pytest.mark.parametrize("step_size", [0.0, 0.1, 2.0])
def test_glister(made, step_size):
    h, z, _, y = made
    rng = np.random.default_rng(5)
    validation = (rng.normal(size=(20, D)), rng.normal(size=(20, C)), rng.integers(C, size=20))
    chosen = coresets.glister(h, z, y, 20, validation=validation, step_size=step_size)
    assert chosen.tolist() == slow.glister(h, z, y, 20, validation=validation, step_size=step_size)


@pytest.mark.parametrize("picks_per_step", [1, 3])
def test_glister_computes_few_gains_and_chooses_as_if_it_computed_all(
    made, picks_per_step, monkeypatch
):
    h, z, _, y = made
    monkeypatch.setattr(bilevel, "LIKELY", N)
    settings = {"step_size": 0.02, "picks_per_step": picks_per_step}
    expected = coresets.glister(h, z, y, 45, **settings).tolist()
    computed = []
    of_some = bilevel._Gains._computed

    def counted(gains, rows):
        computed.append(len(rows))
        return of_some(gains, rows)

    monkeypatch.setattr(bilevel, "LIKELY", 1)
    monkeypatch.setattr(bilevel._Gains, "_computed", counted)
    assert coresets.glister(h, z, y, 45, **settings).tolist() == expected
    assert sum(computed) < N * 45 / picks_per_step / 2


def test_glister_on_the_training_set_itself(made):
    h, z, _, y = made
    chosen = coresets.glister(h, z, y, 20, step_size=0.5).tolist()
    assert chosen == slow.glister(h, z, y, 20, validation=(h, z, y), step_size=0.5)


def test_influence(made):
    h, _, p, y = made
    rng = np.random.default_rng(5)
    validation = (
        rng.normal(size=(20, D)),
        slow.softmax(rng.normal(size=(20, C))),
        rng.integers(C, size=20),
    )
    scores = coresets.influence(h, p, y, validation=validation, damping=0.02)
    expected = slow.influence(h, p, y, validation, 0.02)
    assert scores.numpy() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_dp(made):
    h, _, p, y = made
    chosen = coresets.dp(h, p, y, 25, damping=0.05)
    assert sorted(chosen.tolist()) == slow.dp(h, p, y, 25, 0.05)


def test_cal(made):
    h, _, p, _ = made
    scores = coresets.cal(h, p, neighbours=7)
    assert scores.numpy() == pytest.approx(slow.cal(h, p, 7), rel=1e-6)


def test_uncertainty(made):
    _, _, p, _ = made
    assert coresets.least_confidence(p).numpy() == pytest.approx([1 - max(row) for row in p])
    entropies = [-sum(q * np.log(q) for q in row) for row in p]
    assert coresets.entropy(p).numpy() == pytest.approx(entropies)
    gaps = [sorted(row)[-1] - sorted(row)[-2] for row in p]
    assert coresets.margin(p).numpy() == pytest.approx([-gap for gap in gaps])


def test_el2n_and_grand_of_an_ensemble(made):
    h, _, p, y = made
    q = np.roll(p, 1, axis=1)
    errors = [
        [np.linalg.norm(row - np.eye(C)[label]) for row, label in zip(part, y, strict=True)]
        for part in (p, q)
    ]
    norms = coresets.error_norms(np.stack([p, q]), y)
    assert coresets.el2n(norms).numpy() == pytest.approx(np.mean(errors, axis=0))
    lengths = [np.linalg.norm(slow.gradients(h, part, y), axis=1) for part in (p, q)]
    result = torch.stack(
        [last_layer_gradients(h, part, y).squared_norms().sqrt() for part in (p, q)]
    )
    assert coresets.grand(result).numpy() == pytest.approx(np.mean(lengths, axis=0))


def test_forgetting():
    rng = np.random.default_rng(0)
    correct = rng.integers(2, size=(12, 200)).astype(float)
    correct[:, :20] = 0  # never right
    correct[rng.random(correct.shape) < 0.3] = np.nan
    plain = [[None if np.isnan(visit) else visit for visit in row] for row in correct]
    assert coresets.forgetting(correct).tolist() == slow.forgetting(plain)


@pytest.mark.parametrize("window", [2, 5, 12])
def test_dyn_unc(window):
    p = np.random.default_rng(0).random((12, 50)).astype(np.float32)
    expected = slow.dyn_unc(p, window)
    assert coresets.dyn_unc(p, window=window).numpy() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("k", [1, 7, 40, 180])
def test_ccs_takes_evenly_from_strata(k):
    scores = np.random.default_rng(0).gamma(1.5, size=200)
    chosen = coresets.ccs(scores, k, beta=0.1, strata=8)
    remaining = np.sort(scores)[:180]
    edges = np.linspace(remaining[0], remaining[-1], 9)
    inside = np.minimum(np.searchsorted(edges, scores, side="right") - 1, 7)
    kept = scores <= remaining[-1]
    sizes = {int(s): int((inside[kept] == s).sum()) for s in set(inside[kept])}
    counts = slow.ccs_counts(sizes, k)
    assert {s: int((inside[chosen] == s).sum()) for s in sizes} == counts
    assert kept[chosen].all()
    assert len(set(chosen.tolist())) == k


def test_dataset_quantization_draws_from_the_bins_of_graph_cut(made):
    h, *_ = made
    rest, bins = list(range(N)), []
    for _ in range(4):
        inside = slow.graph_cut(h[rest], 15) if len(rest) > 15 else range(15)
        bins.append({rest[i] for i in inside})
        rest = [i for i in rest if i not in bins[-1]]
    chosen = set(coresets.dataset_quantization(h, 20, bins=4, seed=3).tolist())
    assert [len(chosen & part) for part in bins] == [5, 5, 5, 5]
    assert chosen != set(coresets.dataset_quantization(h, 20, bins=4, seed=4).tolist())


# Full gradients and input space.


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def test_full_gradient_norms_are_those_of_autograd():
    model = network().train()
    x, y = torch.randn(11, 4), torch.randint(3, (11,))
    norms = coresets.full_gradient_norms(model, DataLoader(TensorDataset(x, y), 4))
    for i in range(11):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        expected = torch.cat([part.flatten() for part in parts]).norm()
        assert norms[i].item() == pytest.approx(expected.item(), rel=1e-5)
    assert model.training


def test_last_layer_gradients_are_those_of_autograd():
    model = network()
    x, y = torch.randn(7, 4), torch.randint(3, (7,))
    hidden = torch.tanh(model[0](x))
    result = last_layer_gradients(hidden, model(x).softmax(1), y).written_out()
    for i in range(7):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        weight, bias = torch.autograd.grad(loss, list(model[2].parameters()))
        expected = torch.cat([bias[:, None], weight], dim=1).flatten()
        assert result[i].numpy() == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-6)


def test_deepfool_of_a_linear_model_is_the_squared_distance_to_the_nearest_border():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x = torch.randn(50, 4)
    scores = coresets.deepfool(model, TensorDataset(x), batch_size=16)
    weights, logits = model.weight.detach(), model(x).detach()
    for i in range(50):
        predicted = int(logits[i].argmax())
        gaps = [
            float(
                (logits[i, predicted] - logits[i, c]) ** 2
                / (weights[predicted] - weights[c]).square().sum()
            )
            for c in range(3)
            if c != predicted
        ]
        assert -scores[i].item() == pytest.approx(min(gaps), rel=1e-3)


def test_deepfool_moves_a_sample_of_a_network_over_the_border():
    """The perturbation is no smaller than the true distance, which a fine search along all directions bounds."""
    model = network().double()
    x = torch.randn(8, 4, dtype=torch.float64)
    r = (-coresets.deepfool(model, TensorDataset(x))).sqrt()
    directions = nn.functional.normalize(
        torch.randn(2000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )
    for i in range(8):
        predicted = model(x[i : i + 1]).argmax()
        inside = model(x[i] + 0.5 * r[i] * directions).argmax(1) == predicted
        assert bool(inside.all())  # half as far, no direction changes the class
    assert bool((r > 0).all())


def test_deepfool_gives_up_where_the_output_does_not_depend_on_the_input():
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([1.0, 0.0]))
    scores = coresets.deepfool(model, TensorDataset(torch.randn(3, 2)))
    assert scores.tolist() == [-torch.inf] * 3


# Cases whose answer is known.


def clusters():
    """Two tight clusters of 30 and 10 samples."""
    rng = np.random.default_rng(0)
    big, small = rng.normal(0, 0.01, (30, 2)), rng.normal(0, 0.01, (10, 2))
    return np.concatenate([big + np.array([5, 1]), small + np.array([1, 5])])


def test_two_clusters():
    x = clusters()
    in_small = np.arange(40) >= 30
    for choose in (coresets.k_center, coresets.facility_location):
        assert in_small[choose(x, 2)].sum() == 1
    chosen, weights = coresets.craig(x, 2)
    assert dict(zip(in_small[chosen].tolist(), weights.tolist(), strict=True)) == {
        False: 30,
        True: 10,
    }
    # Herding keeps the mean, so it visits the clusters in proportion.
    assert in_small[coresets.herding(x, 20)].sum() == 5


def test_a_line_of_points():
    x = np.arange(9.0)[:, None]
    assert coresets.k_center(x, 5).tolist() == [4, 0, 8, 2, 6]
    assert coresets.k_center(x, 3, first=0).tolist() == [0, 8, 4]
    assert coresets.herding(x, 1).tolist() == [4]
    assert sorted(coresets.herding(x, 3).tolist()) == [3, 4, 5]


def test_glister_prefers_a_class_that_validation_has_and_the_network_does_not_know():
    h = np.eye(2)[[0, 0, 0, 1, 1, 1]]
    z = np.zeros((6, 2))
    y = np.array([0, 0, 0, 1, 1, 1])
    validation = (np.eye(2)[[1]], np.zeros((1, 2)), np.array([1]))
    assert set(coresets.glister(h, z, y, 3, validation=validation).tolist()) == {3, 4, 5}


def test_a_step_of_glister_makes_a_second_sample_of_the_kind_worth_less():
    """Without the step, which the usual code lacks, it is a plain ranking and takes the copies first."""
    h = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 1.9]])
    z, y = np.zeros((3, 2)), np.array([0, 0, 1])
    validation = (np.array([[1.0, 0.0], [0.0, 1.0]]), np.zeros((2, 2)), np.array([0, 1]))
    plain = coresets.glister(h, z, y, 2, validation=validation, step_size=0.0)
    stepped = coresets.glister(h, z, y, 2, validation=validation, step_size=2.0)
    assert plain.tolist() == [0, 1]
    assert stepped.tolist() == [0, 2]


def test_several_picks_between_two_steps(made):
    h, z, _, y = made
    ranking = coresets.glister(h, z, y, 20, step_size=0.0)
    assert coresets.glister(h, z, y, 20, picks_per_step=20).tolist() == ranking.tolist()


def test_influence_is_what_leaving_a_sample_out_does():
    """A linear model trained to its optimum, once with all samples and once without each."""
    rng = np.random.default_rng(1)
    h, y = rng.normal(size=(40, 2)), rng.integers(2, size=40)
    held, held_y = rng.normal(size=(30, 2)), rng.integers(2, size=30)
    damping = 0.1

    def trained(rows):
        weights = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
        x = torch.tensor(np.column_stack([np.ones(40), h])[rows])
        optimizer = torch.optim.LBFGS([weights], max_iter=200, tolerance_grad=1e-10)

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                x @ weights.T, torch.tensor(y[rows]), reduction="sum"
            )
            loss = loss / 40 + damping / 2 * weights.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return weights.detach()

    def held_loss(weights):
        x = torch.tensor(np.column_stack([np.ones(30), held]))
        return float(nn.functional.cross_entropy(x @ weights.T, torch.tensor(held_y)))

    weights = trained(list(range(40)))
    outputs = [
        (torch.tensor(np.column_stack([np.ones(len(x)), x])) @ weights.T).softmax(1)
        for x in (h, held)
    ]
    scores = coresets.influence(
        h, outputs[0], y, validation=(held, outputs[1], held_y), damping=damping
    )
    without = [
        held_loss(trained([j for j in range(40) if j != i])) - held_loss(weights) for i in range(40)
    ]
    assert np.corrcoef(scores.numpy() / 40, without)[0, 1] > 0.99
    assert scores.numpy() / 40 == pytest.approx(without, abs=6e-3)  # of first order


def test_dp_leaves_out_a_pair_whose_effects_cancel():
    h = np.array([[1.0], [1.0], [1.0], [1.0]])
    p = np.array([[0.5, 0.5], [0.5, 0.5], [0.1, 0.9], [0.2, 0.8]])
    assert sorted(coresets.dp(h, p, [0, 1, 0, 0], 2).tolist()) == [2, 3]


def test_ccs_leaves_out_the_hardest_where_much_is_pruned():
    scores = np.arange(100.0)
    assert coresets.ccs(scores, 10).max() < 70
    assert coresets.ccs(scores, 20).max() < 80
    assert sorted(coresets.ccs(scores, 100).tolist()) == list(range(100))


def test_forgetting_ranks_the_never_learned_first():
    correct = np.array([[1, 1, 0], [0, 1, 0], [1, 1, 0], [0, 1, 0]])
    assert coresets.forgetting(correct).tolist() == [2, 0, 4]
