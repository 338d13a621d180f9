"""A training run on the simulated device gives the bits of the same run on the CPU."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.policies import POLICIES, IesPrune, KakurenboPrune, resolve_policy
from simulated_device import DEVICE, on_host

SIZE, BATCH, WIDTH, CLASSES = 61, 8, 6, 4

pytestmark = [
    pytest.mark.filterwarnings("ignore::infobatch.policies.BiasedPolicyWarning"),
    pytest.mark.filterwarnings(r"ignore:refresh\(\) was not called"),
]


def train(device, form, policy, *, dtype=torch.float32, index_on="cpu", **options):
    """Train a small network; return everything that could differ, on the host."""
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(SIZE, WIDTH), torch.randint(CLASSES, (SIZE,)))
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES)).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    looser = {"ies": IesPrune(1.0), "kakurenbo": KakurenboPrune(confidence=0.5)}
    rule = looser.get(policy, policy)  # or they prune nothing
    epochs = 4 + resolve_policy(policy).first_epoch
    shrink = options.pop("shrink", "epoch")
    train_data = infobatch.InfoBatch(
        data, epochs, delta=0.8, policy=rule, labels=data.tensors[1].numpy(), **options
    )
    batches = train_data.batch_sampler(BATCH, shrink=shrink)
    source = infobatch.Indexed(data) if form == "index" else train_data
    found = []
    for _ in range(epochs):
        for batch in DataLoader(source, batch_sampler=batches):
            index, (x, y) = batch if form == "index" else (None, batch)
            outputs = model(x.to(device, dtype))
            losses = nn.functional.cross_entropy(outputs, y.to(device), reduction="none")
            if index is not None and index_on == "device":
                index = index.to(device)
            loss = train_data.update(losses, index=index)
            found.append(on_host(loss.detach()))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        found += [train_data.plan.order, train_data.plan.weights, train_data.scores]
    assert train_data.savings.fraction > 0 or policy == "none"
    return found + [on_host(parameter.detach()) for parameter in model.parameters()]


def same(one, other):
    assert len(one) == len(other)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("form", ["three lines", "index"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_rule(policy, form):
    assert same(train("cpu", form, policy), train(DEVICE, form, policy))


@pytest.mark.parametrize(
    "options",
    [
        {"shrink": "batch"},
        {"dtype": torch.bfloat16},
        {"form": "index", "shrink": "batch"},
        {"form": "index", "dtype": torch.bfloat16, "index_on": "device"},
    ],
    ids=str,
)
def test_shrinking_batches_and_half_precision(options):
    options = {"form": "three lines", **options}
    assert same(*(train(device, policy="mean", **options) for device in ("cpu", DEVICE)))
