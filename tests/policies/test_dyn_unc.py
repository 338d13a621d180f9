import numpy as np
import pytest

import infobatch
from infobatch.policies import DynUncPrune
from infobatch.tracks import DynUnc
from remembered import kept_by, losses_by_epoch, samples_after

SIZE = 80


def uncertainty(probabilities, length):
    """He et al.'s: over all windows, the mean of the standard deviation within."""
    windows = [probabilities[k : k + length] for k in range(len(probabilities) - length + 1)]
    return np.mean([np.std(window, ddof=1) for window in windows]) if windows else np.nan


@pytest.mark.parametrize(("length", "number"), [(2, 3), (4, 9), (10, 10), (10, 17)])
def test_against_the_paper(length, number):
    epochs = losses_by_epoch(number, SIZE)
    policy = DynUncPrune(0.25, window=length)
    samples = samples_after(policy, epochs)
    expected = [uncertainty(np.exp(-epochs[:, i].astype(float)), length) for i in range(SIZE)]
    assert samples["dyn_unc"] == pytest.approx(expected, rel=1e-4)
    kept, weights = kept_by(policy.strata(samples))
    assert kept == sorted(np.argsort(expected)[SIZE // 4 :].tolist())
    assert set(weights) == {1.0}


def test_visits_without_a_loss_are_passed_over_and_too_few_are_kept():
    epochs = losses_by_epoch(5, SIZE)
    epochs[2, :10] = np.nan
    epochs[1:, 10:20] = np.nan
    policy = DynUncPrune(0.5, window=4)
    samples = samples_after(policy, epochs)
    known = [np.exp(-row[np.isfinite(row)].astype(float)) for row in epochs.T]
    expected = [uncertainty(row, 4) for row in known]
    assert samples["dyn_unc"] == pytest.approx(expected, rel=1e-4, nan_ok=True)
    assert set(range(10, 20)) <= set(kept_by(policy.strata(samples))[0])


def test_extras_are_the_probabilities():
    reported = np.random.default_rng(0).random((6, SIZE)).astype(np.float32)
    policy = DynUncPrune(0.25, window=3, extras=True)
    extras = [{"label_probability": row} for row in reported]
    samples = samples_after(policy, losses_by_epoch(6, SIZE), extras)
    expected = [uncertainty(reported[:, i].astype(float), 3) for i in range(SIZE)]
    assert samples["dyn_unc"] == pytest.approx(expected, rel=1e-4)


def test_losses_that_never_change_have_no_uncertainty():
    policy = DynUncPrune(0.25, window=3)
    samples = samples_after(policy, np.full((5, SIZE), 0.3))
    assert samples["dyn_unc"] == pytest.approx(np.zeros(SIZE), abs=1e-6)
    assert len(kept_by(policy.strata(samples))[0]) == 60


@pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning")
def test_a_budget_counts_with_the_epochs_before_the_first_window():
    with pytest.raises(ValueError, match=r"of 12 epochs only 2 can leave samples out"):
        infobatch.Pruner(10, 12, policy="dyn_unc", save=0.4)


def test_errors():
    with pytest.raises(
        ValueError, match=r"DynUncPrune\(window=…\) got 1, expected an integer >= 2"
    ):
        DynUncPrune(window=1)


@pytest.mark.parametrize("loss", [0.0, 200.0])  # p(label) = 1 and, in float32, 0
def test_samples_that_never_change_stay_tied(loss):
    scores = np.full(1_003, loss, np.float32)
    track = DynUnc(10, channel=None)
    columns = track.begin(scores)
    for epoch in range(12):
        columns = track.fold(columns, scores, epoch)
    assert (columns["dyn_unc"] == 0).all()
