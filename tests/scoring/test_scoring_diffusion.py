"""Diffusion, beside diffusers' scheduler: the loss as it was, the score without the timestep."""

import pytest
import torch
from diffusers import DDPMScheduler
from diffusers.training_utils import compute_snr
from torch.nn import functional

from infobatch import scoring
from scoring_checks import assert_mean_is

TYPES = ("epsilon", "v_prediction", "sample")


def batch(size=6):
    clean, noise = torch.randn(size, 3, 4, 4), torch.randn(size, 3, 4, 4)
    return clean, noise, torch.randint(1000, (size,))


@pytest.mark.parametrize("prediction_type", TYPES)
def test_targets(prediction_type):
    scheduler = DDPMScheduler(prediction_type=prediction_type)
    clean, noise, timesteps = batch()
    expected = {
        "epsilon": noise,
        "sample": clean,
        "v_prediction": scheduler.get_velocity(clean, noise, timesteps),
    }[scheduler.config.prediction_type]
    target = scoring.diffusion_target(
        prediction_type, clean, noise, timesteps, scheduler.alphas_cumprod
    )
    torch.testing.assert_close(target, expected)


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("schedule", ["linear", "squaredcos_cap_v2"])
def test_min_snr_weights(prediction_type, schedule):
    """As diffusers' train_text_to_image.py computes them from its compute_snr."""
    scheduler = DDPMScheduler(beta_schedule=schedule)
    timesteps = torch.arange(1000)
    snr = compute_snr(scheduler, timesteps)
    capped = torch.stack([snr, 5.0 * torch.ones_like(timesteps)], dim=1).min(dim=1)[0]
    expected = capped / (snr if prediction_type == "epsilon" else snr + 1)
    weights = scoring.min_snr_weights(
        scheduler.alphas_cumprod, timesteps, prediction_type=prediction_type
    )
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=1e-4)


def test_the_three_min_snr_losses_are_one():
    """The same denoiser, read as noise, velocity or clean sample, has the same weighted loss."""
    scheduler = DDPMScheduler()
    clean, noise, timesteps = batch()
    timesteps = timesteps.clamp(50, 800)
    noisy = scheduler.add_noise(clean, noise, timesteps).double()
    alpha = scheduler.alphas_cumprod[timesteps].reshape(-1, 1, 1, 1).double()
    guess = torch.randn(clean.shape, dtype=torch.double)  # of the clean sample
    guessed_noise = (noisy - alpha.sqrt() * guess) / (1 - alpha).sqrt()
    guesses = {
        "sample": guess,
        "epsilon": guessed_noise,
        "v_prediction": alpha.sqrt() * guessed_noise - (1 - alpha).sqrt() * guess,
    }
    losses = []
    for name in TYPES:
        target = scoring.diffusion_target(name, clean, noise, timesteps, scheduler.alphas_cumprod)
        weights = scoring.min_snr_weights(scheduler.alphas_cumprod, timesteps, prediction_type=name)
        result = scoring.diffusion(guesses[name], target.double(), timesteps, weights=weights)
        losses.append(result.losses)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(losses[0], losses[2], rtol=1e-3, atol=1e-5)


def test_no_signal_and_no_noise():
    """Zero terminal SNR: 0 / 0 in the scripts, a number here."""
    scheduler = DDPMScheduler(rescale_betas_zero_snr=True)
    assert scheduler.alphas_cumprod[-1] < 1e-6
    ends = torch.tensor([0.0, 1.0])
    for name in TYPES:
        weights = scoring.min_snr_weights(ends, torch.tensor([0, 1]), prediction_type=name)
        assert weights.isfinite().all()
    assert scoring.min_snr_weights(ends, torch.tensor([0])).tolist() == [1.0]


@pytest.mark.parametrize("with_means", [False, True])
def test_the_loss_is_untouched(with_means):
    _, noise, timesteps = batch()
    means = None
    if with_means:
        means = scoring.TimestepMeans(1000)
        means.update(torch.rand(500), torch.randint(1000, (500,)))
    prediction = torch.randn_like(noise)
    assert_mean_is(
        lambda x: scoring.diffusion(x, noise, timesteps, timestep_means=means),
        lambda x: functional.mse_loss(x, noise),
        prediction,
    )
    weights = torch.rand(6)

    def weighted(x):
        loss = functional.mse_loss(x, noise, reduction="none")
        return (loss.mean(dim=list(range(1, loss.dim()))) * weights).mean()

    assert_mean_is(
        lambda x: scoring.diffusion(x, noise, timesteps, weights=weights, timestep_means=means),
        weighted,
        prediction,
    )


def test_the_score_is_the_error_over_what_is_usual_at_its_timestep():
    means = scoring.TimestepMeans(1000, bins=10)
    means.update(torch.tensor([1.0, 3.0, 8.0]), torch.tensor([0, 99, 100]))
    prediction = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0], [1.0, 1.0]])
    timesteps = torch.tensor([50, 50, 150, 999])
    result = scoring.diffusion(
        prediction,
        torch.zeros(4, 2),
        timesteps,
        weights=torch.tensor([9.0, 8.0, 7.0, 6.0]),
        timestep_means=means,
    )
    torch.testing.assert_close(
        result.scores, torch.tensor([1 / 2, 4 / 2, 16 / 8, float("nan")]), equal_nan=True
    )
    # The batch has been taken in only afterwards, and without its weights.
    assert means.relative(torch.tensor([1.0]), torch.tensor([999])) == 1


def test_scores_do_not_depend_on_the_batch():
    _, noise, timesteps = batch(40)
    prediction = torch.randn_like(noise)
    seen = (torch.rand(300), torch.randint(1000, (300,)))

    def score(samples):
        means = scoring.TimestepMeans(1000, bins=20)
        means.update(*seen)
        return scoring.diffusion(
            prediction[samples], noise[samples], timesteps[samples], timestep_means=means
        ).scores

    of_batch = score(slice(None))
    alone = torch.cat([score(slice(i, i + 1)) for i in range(40)])
    torch.testing.assert_close(of_batch, alone)


def test_scores_tell_samples_apart_where_losses_tell_timesteps():
    """Sample i is 1 + i/100 times as hard; the timestep changes the loss a hundredfold."""
    generator = torch.Generator().manual_seed(0)
    means = scoring.TimestepMeans(1000, bins=50)
    hardness = 1 + torch.arange(64) / 100
    results = {"scores": [], "losses": []}
    for _ in range(60):
        timesteps = torch.randint(1000, (64,), generator=generator)
        errors = (hardness * 10 ** (-timesteps / 500)).sqrt().unsqueeze(1)
        result = scoring.diffusion(errors, torch.zeros(64, 1), timesteps, timestep_means=means)
        results["scores"].append(result.scores)
        results["losses"].append(result.losses)
    rank = {
        name: torch.corrcoef(torch.stack([values[-1], hardness]))[0, 1]
        for name, values in results.items()
    }
    assert rank["scores"] > 0.9
    assert abs(rank["losses"]) < 0.3


@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
def test_the_running_mean(momentum):
    """Beside the plain loop: one loss after the other, faded and divided by the faded count."""
    means = scoring.TimestepMeans(10, bins=1, momentum=momentum)
    total = weight = 0.0
    for _ in range(20):
        loss = torch.rand(1)
        means.update(loss, torch.tensor([3]))
        new = 1 - momentum if momentum < 1 else 1.0
        total, weight = total * momentum + new * loss.item(), weight * momentum + new
        mean = 1 / means.relative(torch.ones(1), torch.tensor([7]))
        assert mean.item() == pytest.approx(total / weight, rel=1e-4)


def test_a_loss_that_is_not_finite_leaves_the_means_alone():
    means = scoring.TimestepMeans(10, bins=2)
    means.update(torch.tensor([2.0, float("nan"), float("inf")]), torch.tensor([0, 0, 9]))
    scores = means.relative(torch.tensor([4.0, 4.0]), torch.tensor([0, 9]))
    assert scores[0] == 2
    assert scores[1].isnan()


def test_continuous_time():
    means = scoring.TimestepMeans(1, bins=4)
    means.update(torch.tensor([1.0, 2.0]), torch.tensor([0.1, 1.0]))
    scores = means.relative(torch.full((4,), 2.0), torch.tensor([0.2, 0.3, 0.8, 1.0]))
    torch.testing.assert_close(scores, torch.tensor([2.0, float("nan"), 1.0, 1.0]), equal_nan=True)


def test_state(tmp_path):
    means = scoring.TimestepMeans(1000)
    means.update(torch.rand(300), torch.randint(1000, (300,)))
    torch.save(means.state_dict(), tmp_path / "means.pt")
    other = scoring.TimestepMeans(1000)
    other.load_state_dict(torch.load(tmp_path / "means.pt", weights_only=True))
    for _ in range(3):
        losses, timesteps = torch.rand(20), torch.randint(1000, (20,))
        ours, theirs = (instance.relative(losses, timesteps) for instance in (means, other))
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())
        means.update(losses, timesteps)
        other.update(losses, timesteps)
    with pytest.raises(
        ValueError, match=r"load_state_dict\(\) got \(50,\) as 'totals', expected .* \(10,\)"
    ):
        scoring.TimestepMeans(1000, bins=10).load_state_dict(means.state_dict())
    with pytest.raises(ValueError, match=r"got NoneType as 'totals'"):
        means.load_state_dict({})


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: scoring.diffusion(torch.zeros(4), torch.zeros(4), torch.zeros(4)),
            r"diffusion\(\) got prediction of shape \(4,\)",
        ),
        (
            lambda: scoring.diffusion(torch.zeros(2, 6, 4), torch.zeros(2, 3, 4), torch.zeros(2)),
            r"target of shape \(2, 3, 4\), expected \(2, 6, 4\). .* learned variance",
        ),
        (
            lambda: scoring.diffusion(torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor(5)),
            r"timesteps of shape \(\), expected \(2,\)",
        ),
        (
            lambda: scoring.diffusion(
                torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2), weights=torch.ones(2, 1)
            ),
            r"weights of shape \(2, 1\), expected \(2,\)",
        ),
        (
            lambda: scoring.min_snr_weights(torch.ones(3), torch.zeros(1).long(), 5.0, "x0"),
            r"min_snr_weights\(\) got prediction_type='x0', expected one of 'epsilon', 'v_pred",
        ),
        (
            lambda: scoring.diffusion_target("v", *[torch.ones(1)] * 4),
            r"diffusion_target\(\) got prediction_type='v'",
        ),
        (
            lambda: scoring.TimestepMeans(0),
            r"TimestepMeans\(\): num_timesteps got 0, expected an integer >= 1",
        ),
        (
            lambda: scoring.TimestepMeans(9, bins=0),
            r"TimestepMeans\(\): bins got 0, expected an integer >= 1",
        ),
        (lambda: scoring.TimestepMeans(9, momentum=2), r"got momentum=2, expected a number"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()
