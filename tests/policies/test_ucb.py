import numpy as np
import pytest

from infobatch.policies import UcbPrune
from remembered import kept_by, losses_by_epoch, samples_after

SIZE = 120


def bounds(epochs, alpha, confidence):
    """Raju et al.'s μ + c v, sample by sample."""
    results = []
    for sample in range(epochs.shape[1]):
        mean = variance = None
        for x in epochs[:, sample].astype(float):
            if np.isnan(x):
                continue
            if mean is None:
                mean, variance = x, 0.0
            else:
                variance = (1 - alpha) * variance + alpha * (x - mean) ** 2
                mean = (1 - alpha) * mean + alpha * x
        results.append(mean + confidence * variance)
    return results


@pytest.mark.parametrize("confidence", [0.0, 1.0, 3.0])
def test_against_the_paper(confidence):
    epochs = losses_by_epoch(5, SIZE)
    epochs[3, ::4] = np.nan
    policy = UcbPrune(0.45, confidence=confidence, smoothing=0.7)
    s = bounds(epochs, 0.3, confidence)
    kept, weights = kept_by(policy.strata(samples_after(policy, epochs)))
    assert kept == sorted(sorted(range(SIZE), key=lambda sample: s[sample])[54:])
    assert set(weights) == {1.0}


def test_a_loss_that_varies_is_kept_rather_than_a_steady_one():
    varied, steady = [2.0, 0.0, 2.0, 0.0], [1.0, 1.0, 1.0, 1.0]
    policy = UcbPrune(0.5, confidence=2.0)
    kept, _ = kept_by(policy.strata(samples_after(policy, np.array([steady, varied]).T)))
    assert kept == [1]


def test_ties_and_samples_without_a_score():
    epochs = np.full((1, SIZE), 0.5, np.float32)
    epochs[0, :20] = np.nan
    policy = UcbPrune(0.5)
    kept, _ = kept_by(policy.strata(samples_after(policy, epochs)))
    assert len(kept) == 60
    assert set(range(20)) <= set(kept)


def test_errors():
    with pytest.raises(
        ValueError, match=r"UcbPrune\(confidence=…\) got -1, expected a number >= 0"
    ):
        UcbPrune(confidence=-1)
    with pytest.raises(ValueError, match=r"UcbPrune\(smoothing=…\) got 1"):
        UcbPrune(smoothing=1)
