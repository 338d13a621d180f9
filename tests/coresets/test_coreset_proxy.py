"""The proxy: what it returns, what it costs, and that it can be stopped at any epoch."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from infobatch import PerSample, coresets
from infobatch.coresets.registry import METHODS

N, D, C = 97, 4, 3  # the last batch of 32 has one sample


def task():
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(0))
    y = x[:, :C].argmax(1)
    return TensorDataset(x, y)


def network():
    return nn.Sequential(
        nn.Linear(D, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, C)
    )


def trained(**options):
    settings = {"epochs": 4, "batch_size": 32, "progress": False, **options}
    return coresets.proxy(settings.pop("model", network), settings.pop("data", task()), **settings)


def test_what_it_returns():
    data = task()
    made = trained(data=data)
    x, y = data.tensors
    made.model.eval()
    hidden = made.model[:-1](x)
    assert torch.allclose(made.features, hidden)
    assert torch.allclose(made.logits, made.model(x))
    assert torch.equal(made.labels, y)
    assert made.error_norms.shape == made.gradient_norms.shape == (1, N)
    assert made.history.correct.shape == made.history.label_probabilities.shape == (4, N)
    accuracy = (made.logits.argmax(1) == y).float().mean()
    assert accuracy > 0.6
    assert made.history.correct[-1].float().mean() > 0.5
    # Four epochs with gradients, and two looks at all samples.
    assert made.cost.samples_backpropagated == 4 * N
    assert made.cost.samples_forwarded == 6 * N
    assert made.cost.seconds > 0


def test_every_method_can_choose_by_it():
    made = trained()
    for name in METHODS:
        chosen = coresets.select(name, inputs=made, fraction=0.2, balanced=True)
        assert len(chosen) == 19
        assert chosen.cost.samples_backpropagated == 4 * N


def test_the_history_is_that_of_the_training():
    """The probability of the label is exp(−loss) of the batch that the sample was in."""
    seen = []

    def losses(model, batch):
        x, y = batch
        result = nn.functional.cross_entropy(model(x), y, reduction="none")
        seen.append((x, result.detach()))
        return PerSample(result, result.detach())

    data = task()
    made = trained(data=data, losses=losses, epochs=2)
    x = torch.cat([rows for rows, _ in seen[:3]])
    result = torch.cat([losses for _, losses in seen[:3]])
    assert [len(rows) for rows, _ in seen[:3]] == [32, 32, 33]  # none of one sample
    order = torch.cdist(data.tensors[0], x).argmin(1)
    assert torch.allclose(made.history.label_probabilities[0], (-result[order]).exp(), atol=1e-6)
    assert sorted(order.tolist()) == list(range(N))


def test_an_ensemble_stops_early_but_for_one():
    made = trained(networks=3, early_epochs=2)
    assert made.error_norms.shape == (3, N)
    assert made.history.correct.shape == (4, N)
    assert made.cost.samples_backpropagated == (2 + 2 + 4) * N
    assert made.cost.samples_forwarded == (8 + 3 + 1) * N
    assert not torch.equal(made.error_norms[0], made.error_norms[1])
    mean = coresets.select("el2n", inputs=made, fraction=0.2).scores
    assert mean == pytest.approx(made.error_norms.mean(0).numpy())


class StoppedError(Exception):
    """The process ended."""


@pytest.mark.parametrize("stop", [1, 2, 3, 5, 6])
def test_a_stopped_proxy_continues(stop, tmp_path):
    """After any epoch of any network: the same bits as without a stop."""
    whole = trained(networks=2, early_epochs=2)
    epochs = []

    def progress(share, text):
        epochs.append(share)
        if len(epochs) == stop:
            raise StoppedError

    path = tmp_path / "proxy.pt"
    with pytest.raises(StoppedError):
        trained(networks=2, early_epochs=2, checkpoint=path, progress=progress)
    resumed = trained(networks=2, early_epochs=2, checkpoint=path, progress=progress)
    assert len(epochs) == 6
    for name in ("features", "logits", "error_norms", "gradient_norms"):
        assert torch.equal(getattr(whole, name), getattr(resumed, name)), name
    assert torch.equal(whole.history.label_probabilities, resumed.history.label_probabilities)
    assert whole.cost.samples_forwarded == resumed.cost.samples_forwarded
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_seed_gives_the_same_proxy_and_leaves_the_callers_stream_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    inputs = trained(seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    assert torch.equal(inputs.logits, trained(seed=3).logits)
    assert not torch.equal(inputs.logits, trained(seed=4).logits)


def test_a_network_is_copied():
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = trained(model=model)
    assert made.model is not model
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_validation_set_is_looked_at():
    held = TensorDataset(torch.randn(11, D), torch.randint(C, (11,)))
    made = trained(validation=held)
    assert made.validation.features.shape == (11, 8)
    assert torch.equal(made.validation.labels, held.tensors[1])
    assert made.cost.samples_forwarded == 6 * N + 11
    assert len(coresets.select("influence", inputs=made, fraction=0.2)) == 19


def test_a_bar_at_a_terminal(capsys, monkeypatch):
    trained(progress=True)
    assert capsys.readouterr().err == ""  # nobody looks
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    trained(progress=True)
    text = capsys.readouterr().err
    assert text.count("\r") == 4
    assert re.search(r"█{20} 100% proxy: epoch 4, \d+\.\d% of training samples correct\n$", text)


def test_data_that_is_not_input_and_label():
    x, y = task().tensors
    rows = list(range(N))

    def losses(model, batch):
        return nn.functional.cross_entropy(model(x[batch]), y[batch], reduction="none")

    made = trained(data=rows, labels=y, losses=losses, look=lambda model, data: model(x))
    assert np.isfinite(made.features.numpy()).all()


def test_errors(tmp_path):
    with pytest.raises(ValueError, match=r"proxy\(epochs=…\) got 0, expected an integer >= 1"):
        trained(epochs=0)
    with pytest.raises(
        TypeError, match=r"proxy\(networks=2\) got one network, expected a function"
    ):
        trained(networks=2, model=network())
    with pytest.raises(ValueError, match="a model without a linear layer"):
        trained(model=lambda: nn.Conv1d(1, 1, 1))
    with pytest.raises(
        ValueError,
        match=r"got 'fc', which the model does not have. Its linear layers are \['0', '4'\]",
    ):
        trained(head="fc")
    with pytest.raises(
        ValueError, match=r"saw values of shape \(194, 3\) at the last linear layer for 97"
    ):
        trained(
            losses=lambda model, batch: nn.functional.cross_entropy(
                model(torch.cat([batch[0], batch[0]])), torch.cat([batch[1], batch[1]])
            )
        )
    trained(checkpoint=tmp_path / "proxy.pt")
    with pytest.raises(
        ValueError, match=r"holds a proxy with different settings: .*Choose another path"
    ):
        trained(checkpoint=tmp_path / "proxy.pt", epochs=5)
    with pytest.raises(ValueError, match="got 5 labels for 97 samples"):
        trained(labels=[0] * 5)
