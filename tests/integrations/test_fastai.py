"""fastai's page, with the real package: run by `make test` with fastai's folder on the path."""

import pytest
import torch

from document_examples import examples, surroundings

# Of torch, pandas and numpy, it uses what is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
(SOURCE,) = examples("docs/fastai.md")
FIT = "learn.fit_one_cycle(num_epochs, 0.1)"
BUILD = SOURCE.partition(FIT)[0]


def execute(source, names):
    exec(compile(source, "fastai.md", "exec"), names)
    return names


def page(tmp_path):
    names = surroundings(tmp_path) | {"num_epochs": 8}
    return names | {"valid_data": names["data"]}


def test_page(tmp_path, capsys):
    names = execute(SOURCE, page(tmp_path))
    learn, savings = names["learn"], names["train_data"].savings
    assert len(savings.epochs) == 8
    assert savings.saved > 300
    assert learn.train_iter == sum(-(-epoch.made // 64) for epoch in savings.epochs)
    assert learn.pct_train == pytest.approx(1.0)
    rates = learn.recorder.lrs
    assert max(rates) == pytest.approx(0.1, rel=0.05)
    assert rates[-1] < 0.001
    losses = torch.tensor([row[:2] for row in learn.recorder.values])
    assert losses.isfinite().all()
    assert losses[-1, 1] < losses[0, 1]
    assert names["train_data"].scores.isfinite().all()
    assert capsys.readouterr().out.endswith(f"{savings}\n")


def test_the_forecast(tmp_path):
    followed = SOURCE.replace(
        "num_epochs)", 'num_epochs, policy="none", shadow=("mean", "auto"))', 1
    )
    train_data = execute(followed, page(tmp_path))["train_data"]
    assert train_data.savings.saved == 0
    rules = train_data.forecast().rules
    assert [len(rule.epochs) for rule in rules.values()] == [8, 8]
    assert rules["mean"].left_out > 0.1
    assert "infobatch/forecast/auto/realised_noise" in train_data.savings.as_dict()


def test_resuming_gives_the_same_bits(tmp_path):
    straight = execute(SOURCE, page(tmp_path))
    first = execute(BUILD, page(tmp_path))
    after_three = """
from fastai.callback.core import CancelFitException

class Stop(Callback):
    def before_epoch(self):
        if self.epoch == 3:
            raise CancelFitException

learn.fit_one_cycle(num_epochs, 0.1, cbs=Stop())
"""
    execute(after_three, first)
    path = first["learn"].save(tmp_path / "model")
    state = first["train_data"].state_dict()
    assert len(first["train_data"].savings.epochs) == 3
    second = execute(BUILD, page(tmp_path))
    second["learn"].load(path.with_suffix(""))
    second["train_data"].load_state_dict(state)
    execute("learn.fit_one_cycle(num_epochs, 0.1, start_epoch=train_data.epoch)", second)
    assert second["train_data"].savings == straight["train_data"].savings
    assert torch.equal(second["model"].weight, straight["model"].weight)
