"""Coresets from a file that a training exported."""

import re

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import infobatch
from infobatch import coresets
from infobatch.tracks import DynUnc, Forgetting, MeanError, Visits, Welford, Window

choose = coresets.select_from_scores


class Tracking(infobatch.MeanPrune):
    """The mean rule, with more columns than it needs."""

    tracks = (Visits(), Welford(), Window(3))


@pytest.fixture
def exported(tmp_path):
    """What a training of four epochs on 40 samples leaves, and its losses by epoch."""
    data = TensorDataset(torch.zeros(40, 1))
    train_data = infobatch.InfoBatch(data, 4, policy=Tracking(), delta=0.0)
    rng = np.random.default_rng(0)
    history = rng.exponential(size=(4, 40)).astype(np.float32)
    for epoch in range(4):
        order = list(train_data.sampler)
        train_data.update(torch.from_numpy(history[epoch][order]).requires_grad_())
    path = tmp_path / "scores.parquet"
    train_data.export_scores(path)
    return path, history


def test_columns_of_a_real_training(exported):
    path, history = exported
    by_loss = choose(path, "el2n", fraction=0.25, column="score")
    assert by_loss.indices.tolist() == np.argsort(-history[3], kind="stable")[:10].tolist()
    assert (by_loss.method, by_loss.num_samples) == ("el2n", 40)
    means = choose(path, "forgetting", fraction=0.25, column="mean")
    assert means.indices.tolist() == np.argsort(-history.mean(0), kind="stable")[:10].tolist()
    hardest_left_out = choose(path, "ccs", fraction=0.1, seed=1)
    assert not set(hardest_left_out.indices) & set(np.argsort(-history[3])[:12])


def test_dyn_unc_of_a_window_of_cross_entropies(exported):
    path, history = exported
    spread = np.exp(-history[1:]).std(0)
    chosen = choose(path, "dyn_unc", fraction=0.25)
    assert chosen.indices.tolist() == np.argsort(-spread, kind="stable")[:10].tolist()


def test_what_training_gathers_is_what_the_methods_compute(tmp_path):
    """Twelve epochs of real logits through the tracks, against the functions on the whole history."""
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.integers(3, size=40))
    logits = torch.from_numpy(rng.normal(size=(12, 40, 3)).astype(np.float32))
    logits[:, :3] = -9 * torch.nn.functional.one_hot(labels[:3], 3)  # never right
    tracks = [Forgetting(), MeanError(visits=5), DynUnc(window=4)]
    train_data = infobatch.InfoBatch(
        TensorDataset(torch.zeros(40, 1)), 12, policy="none", tracks=tracks
    )
    for epoch in range(12):
        order = list(train_data.sampler)
        batch = logits[epoch][order].requires_grad_()
        losses = torch.nn.functional.cross_entropy(batch, labels[order], reduction="none")
        train_data.update(losses, extras=coresets.observed(batch, labels[order]))
    path = tmp_path / "scores.npz"
    train_data.export_scores(path)
    outputs = logits.softmax(2)
    expected = {
        "forgetting": coresets.forgetting(outputs.argmax(2) == labels),
        "el2n": coresets.el2n(coresets.error_norms(outputs[:5], labels)),
        "dyn_unc": coresets.dyn_unc(outputs[:, torch.arange(40), labels], window=4),
    }
    with np.load(path) as stored:
        assert stored["el2n"] == pytest.approx(expected["el2n"].numpy(), rel=1e-5)
        assert stored["dyn_unc"] == pytest.approx(expected["dyn_unc"].numpy(), rel=1e-4)
        learned = stored["forgetting"] < 65_535
        assert stored["forgetting"][learned].tolist() == expected["forgetting"][learned].tolist()
        assert np.flatnonzero(~learned).tolist() == [0, 1, 2]
    for method, scores in expected.items():
        chosen = choose(path, method, fraction=0.25)
        assert chosen.indices.tolist() == coresets.top_k(scores, 10).tolist()


def test_what_was_gathered_is_in_the_checkpoint():
    def made():
        tracks = [Forgetting(), MeanError(), DynUnc(window=2)]
        return infobatch.InfoBatch(
            TensorDataset(torch.zeros(9, 1)), 6, policy="none", tracks=tracks
        )

    def epoch(train_data, number):
        order = list(train_data.sampler)
        logits = torch.randn(9, 3, generator=torch.Generator().manual_seed(number))[order]
        train_data.update(torch.ones(9), extras=coresets.observed(logits, torch.tensor(order) % 3))

    whole, part, resumed = made(), made(), made()
    for number in range(4):
        epoch(whole, number)
    for number in range(2):
        epoch(part, number)
    resumed.load_state_dict(part.state_dict())
    for number in range(2, 4):
        epoch(resumed, number)
    for name, column in whole.state_dict()["columns"].items():
        assert torch.equal(column, resumed.state_dict()["columns"][name]), name


def test_a_forgetting_count_stays_within_its_column():
    track = Forgetting()
    old = {
        "forgetting": np.array([65_534, 65_535, 0], np.uint16),
        "was_right": np.array([True, False, True]),
    }
    new = track.fold(old, np.zeros(3, np.float32), 0)
    assert new["forgetting"].tolist() == [65_534, 65_535, 1]


def test_dyn_unc_is_nan_until_the_window_is_full(tmp_path):
    track = DynUnc(window=3)
    columns = track.begin(np.zeros(2, np.float32))
    for epoch in range(2):
        columns = track.fold(columns, np.zeros(2, np.float32), epoch)
    assert np.isnan(columns["dyn_unc"]).all()
    assert track.fold(columns, np.ones(2, np.float32), 2)["dyn_unc"].tolist() == pytest.approx(
        [np.std([0, 0, 1], ddof=1)] * 2
    )


@pytest.mark.parametrize("ending", [".npz", ".csv", ".parquet"])
def test_a_column_of_the_methods_name_and_classes_from_the_file(ending, tmp_path):
    path = tmp_path / f"scores{ending}"
    infobatch.memory.export.write_table(
        "test",
        path,
        {
            "index": np.array([3, 2, 1, 0]),
            "score": np.zeros(4),
            "forgetting": np.array([0.0, 5.0, 2.0, 1.0]),
            "label": np.array([1, 0, 1, 0]),
        },
    )
    assert choose(path, "forgetting", fraction=0.5).indices.tolist() == [2, 1]
    assert choose(path, "forgetting", fraction=0.5, balanced=True).indices.tolist() == [2, 1]
    drawn = choose(path, "random", fraction=0.5, balanced=True)
    assert sorted((drawn.indices % 2).tolist()) == [0, 1]
    assert len(choose(path, "random", fraction=0.75)) == 3


def test_errors(exported, tmp_path):
    path, _ = exported
    columns = "'age'|'count'"
    with pytest.raises(ValueError, match=f"no column 'forgetting', it has .*{columns}"):
        choose(path, "forgetting", fraction=0.3)
    with pytest.raises(ValueError, match=r"balanced=True\) needs labels"):
        choose(path, "random", fraction=0.3, balanced=True)
    with pytest.raises(
        ValueError, match="k_center chooses by features, which a file of scores lacks"
    ):
        choose(path, "k_center", fraction=0.3)
    np.savez(tmp_path / "part.npz", index=[0, 2], score=[1.0, 2.0])
    with pytest.raises(
        ValueError, match=re.escape("has 2 rows for the samples 0 to 2, expected one for")
    ):
        choose(tmp_path / "part.npz", "el2n", fraction=0.5, column="score")
    np.savez(tmp_path / "unseen.npz", index=[0, 1], score=[1.0, np.nan])
    with pytest.raises(ValueError, match="1 of 2 samples have no score, the first is sample 1"):
        choose(tmp_path / "unseen.npz", "el2n", fraction=0.5, column="score")
    np.savez(tmp_path / "other.npz", score=[1.0])
    with pytest.raises(ValueError, match=r"the columns \['score'\], expected 'index'"):
        choose(tmp_path / "other.npz", "el2n", fraction=0.5)
