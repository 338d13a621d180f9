"""The arm ``proxy``: a small network chooses from each batch, of the same augmented samples; counted, resumable."""

from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from torch import nn

from infobatch import StreamPruner
from infobatch.experimental.hardest import Hardest
from infobatch.lab.run import training
from infobatch.lab.run.arms import Arm, parse_arms
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import TaskError, load_task

TINY = Path(__file__).parents[2] / "support/tiny_task.py"
QUIET = lambda standing: None  # noqa: E731
WIDTH = 16


def task_with_proxy(**changes):
    def network():
        return nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))

    return replace(load_task(str(TINY)), model=network, proxy=lambda: nn.Linear(4, 2), **changes)


def run_of(folder, arm, task=None, **more):
    task = task or task_with_proxy()
    return Run(task, settings_of(task, arm=arm, seed=0, **more), folder)


# The arm.


def test_what_chooses():
    biased = Arm("proxy:hardest=0.4:every=2").chooser(seed=3, ramp=9)
    assert isinstance(biased, Hardest)
    assert biased.keep == 0.4
    assert Arm("proxy:hardest=0.4:every=2").every == 2
    unbiased = Arm("proxy:keep=0.3:max_noise=0.1").chooser(seed=3, ramp=9)
    assert isinstance(unbiased, StreamPruner)
    assert (unbiased.keep, unbiased.max_noise, unbiased.seed) == (0.3, 0.1, 3)
    assert Arm("proxy").every == 4, "as published"
    assert not Arm("proxy").can_be_followed


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ("proxy:hardest=1.5", "Hardest(keep=…) got 1.5, expected the share of each batch"),
        (
            "proxy:hardest=0.5:keep=0.5:floor=0.1",
            "hardest=0.5 was combined with keep, floor, expected it alone",
        ),
        ("proxy:every=0", "every"),
        ("proxy:delta=0.5", "proxy has no option 'delta'. Expected some of keep, max_noise"),
        ("stream:hardest=0.5", "stream has no option 'hardest'"),
        ("stream:every=2", "stream has no option 'every'"),
    ],
)
def test_options_that_raise(arm, words):
    with pytest.raises(ValueError, match="--arms got '") as error:
        parse_arms(f"full,{arm}")
    assert words in str(error.value)


def test_a_task_without_a_proxy_raises(tmp_path):
    with pytest.raises(TaskError) as error:
        run_of(tmp_path, "proxy:keep=0.5", load_task(str(TINY)))
    assert str(error.value) == (
        "tiny_task does not define proxy(), which the arm proxy:keep=0.5 needs: a smaller model that losses() also "
        "accepts."
    )


# The training.


@pytest.mark.parametrize("arm", ["proxy:hardest=0.25", "proxy:keep=0.3"])
def test_costs_have_the_proxy_in_them(tmp_path, arm):
    whole = run_of(tmp_path / "full", "full").train(QUIET)
    run = run_of(tmp_path / "proxy", arm)
    result = run.train(QUIET)
    scored, trained = whole.costs.samples_forwarded, result.costs.samples_backpropagated
    steps = result.costs.optimizer_steps
    assert steps == whole.costs.optimizer_steps == 32
    share = (4 * 2) / (4 * WIDTH + WIDTH * 2)  # of the operations
    learned = sum(7 + (number % 2) for number in range(8)) * 4 / 4  # about one batch in four
    proxy = share * (scored / 3 + learned * 2 / 3)
    assert result.costs.samples_forwarded == pytest.approx(trained + proxy, abs=2)
    assert trained == pytest.approx(0.3 * scored, abs=0.1 * scored)
    assert run.steps.visits.sum() == trained
    assert result.history[-1].samples_saved == scored - result.costs.samples_forwarded
    assert result.saved_fraction > 0.5


def test_the_same_augmented_samples_for_the_proxy_and_the_model(tmp_path):
    seen = {"proxy": [], "model": []}

    class Noting(nn.Linear):
        def __init__(self, name):
            super().__init__(4, 2)
            self.name = name

        def forward(self, x):
            if torch.is_grad_enabled() and self.training:
                seen[self.name].append(x.detach())
            return super().forward(x)

    tiny = load_task(str(TINY))

    def losses(model, batch):
        x, y = batch
        return tiny.losses(model, (x + torch.randn_like(x), y))

    task = replace(
        tiny, losses=losses, model=lambda: Noting("model"), proxy=lambda: Noting("proxy")
    )
    run_of(tmp_path, "proxy:hardest=0.5:every=1", task).train(QUIET)
    assert len(seen["proxy"]) == len(seen["model"]) == 32
    for whole, part in zip(seen["proxy"], seen["model"], strict=True):
        assert len(part) == (len(whole) + 1) // 2
        assert all((row == whole).all(1).any() for row in part)


def test_other_arms_have_the_same_initial_model(tmp_path):
    whole, proxied = run_of(tmp_path / "a", "full"), run_of(tmp_path / "b", "proxy:keep=0.5")
    for ours, theirs in zip(whole.model.parameters(), proxied.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


class StopError(Exception):
    pass


@pytest.mark.parametrize("arm", ["proxy:hardest=0.5:every=3", "proxy:keep=0.4:window=32:every=3"])
@pytest.mark.parametrize("stop_after", [3, 20])
def test_a_killed_run_resumes_bit_for_bit(tmp_path, monkeypatch, stop_after, arm):
    straight = run_of(tmp_path / "straight", arm)
    expected = straight.train(QUIET)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)  # a checkpoint after every step
    reports = 0

    def stop(standing):
        nonlocal reports
        reports += 1
        if reports == stop_after:
            raise StopError

    with pytest.raises(StopError):
        run_of(tmp_path / "killed", arm).train(stop)
    torch.manual_seed(12345)  # whatever happens in between
    resumed = run_of(tmp_path / "killed", arm)
    result = resumed.train(QUIET)
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, straight.model.state_dict()[name])
    measured = attrgetter("samples_forwarded", "samples_backpropagated", "optimizer_steps")
    assert measured(result.costs) == measured(expected.costs)
    columns = attrgetter("train_loss", "kept_fraction", "samples", "samples_saved", "metric")
    assert list(map(columns, result.history)) == list(map(columns, expected.history))


@pytest.mark.parametrize(
    ("recipe", "options"),
    [("fashion", {}), ("fashion", {"network": "small_resnet"})],
)
def test_proxies_of_recipes_cost_a_small_share(tmp_path, recipe, options):
    task = load_task(recipe, smoke=True, options=options)
    run = run_of(tmp_path, "proxy:hardest=0.5", task, smoke=True)
    assert run.steps._chooser.cost == pytest.approx(1 / 15, rel=0.1)
