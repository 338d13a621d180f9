"""skorch's page, with the real package."""

import pytest
import torch
from skorch.helper import predefined_split
from torch.utils.data import TensorDataset

from document_examples import examples, surroundings

FIT, RESUME = examples("docs/skorch.md")
BUILD = FIT.partition("net.fit(")[0]


def page(tmp_path):
    return surroundings(tmp_path) | {"num_epochs": 8}


def execute(source, names):
    exec(compile(source, "skorch.md", "exec"), names)
    return names


def test_page(tmp_path, capsys):
    names = execute(FIT, page(tmp_path))
    net, savings = names["net"], names["train_data"].savings
    batches = [-(-epoch.made // 64) for epoch in savings.epochs]
    assert [len(epoch["batches"]) for epoch in net.history] == batches
    assert [len(savings.epochs), savings.epochs[0].made, savings.epochs[7].made] == [8, 400, 400]
    assert savings.saved > 300
    assert names["train_data"].scores.isfinite().all()
    x, y = names["data"].tensors
    assert (net.predict(x.numpy()) == y.numpy()).mean() > 0.9
    assert capsys.readouterr().out.endswith(f"{savings}\n")


def test_the_forecast(tmp_path):
    followed = FIT.replace("num_epochs)", 'num_epochs, policy="none", shadow=("mean", "auto"))', 1)
    train_data = execute(followed, page(tmp_path))["train_data"]
    assert train_data.savings.saved == 0
    rules = train_data.forecast().rules
    assert [len(rule.epochs) for rule in rules.values()] == [8, 8]
    assert rules["mean"].left_out > 0.1
    assert "infobatch/forecast/auto/realised_noise" in train_data.savings.as_dict()


def test_the_page_s_resume_gives_the_same_bits(tmp_path):
    straight = execute(FIT, page(tmp_path))
    first = execute(BUILD, page(tmp_path))
    first["net"].set_params(max_epochs=3).fit(first["train_data"], y=None)
    files = {"f_params": tmp_path / "net.pt", "f_optimizer": tmp_path / "optimizer.pt"}
    first["net"].save_params(**files)
    second = execute(BUILD, page(tmp_path) | {"state": first["train_data"].state_dict()})
    second["net"].initialize().load_params(**files)
    execute(RESUME, second)
    assert second["train_data"].savings == straight["train_data"].savings
    weights = [names["net"].module_.weight for names in (straight, second)]
    assert torch.equal(*weights)


def test_a_fixed_split(tmp_path):
    names = page(tmp_path)
    x, y = names["data"].tensors
    names |= {"predefined_split": predefined_split, "valid_data": TensorDataset(x[:40], y[:40])}
    split = BUILD.replace("split=None", "split=predefined_split(valid_data),\n    classes=[0, 1]")
    execute(split, names)["net"].fit(names["train_data"], y=None)
    assert len(names["net"].history[:, "valid_loss"]) == 8
    assert names["net"].history[-1, "valid_acc"] > 0.9
    assert [epoch.made for epoch in names["train_data"].savings.epochs][::7] == [400, 400]


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (False, ValueError, "passing a suitable y"),  # skorch's own
        (True, RuntimeError, r"reads 320 samples \(Subset\), but its sampler was built for 400"),
    ],
)
def test_skorch_s_own_split_raises(y, error, message, tmp_path):
    """It trains on a part of the data, whose indices are not the sampler's."""
    names = execute(BUILD.replace("    train_split=None,\n", ""), page(tmp_path))
    with pytest.raises(error, match=message):
        names["net"].fit(names["train_data"], y=names["targets"] if y else None)
