"""The probe against gradients that torch computes sample by sample."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import infobatch
from infobatch import Probe
from infobatch.probe import _kept, _ranks

COUNT, CLASSES = 16, 4


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Network(nn.Module):
    """Features of shape (B, 8) at ``middle``; ``how`` its first half is computed."""

    def __init__(self, how="plain"):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.how = how

    def features(self, x):
        return self.middle(self.first(x).relu())

    def rest(self, features):
        return self.last(features.relu_())  # in place, as many networks have it

    def forward(self, x):
        if self.how == "plain":
            return self.rest(self.features(x))
        return self.rest(checkpoint(self.features, x, use_reentrant=self.how == "reentrant"))


def batch(count=COUNT):
    return torch.randn(count, 6), torch.randint(CLASSES, (count,))


def losses_of(model, x, y):
    return functional.cross_entropy(model(x), y, reduction="none")


def true_sizes(model, x, y):
    """The norm of each sample's own gradient with respect to the features, one at a time."""
    sizes = []
    for sample in range(len(x)):
        with torch.no_grad():
            features = model.features(x[sample : sample + 1])
        offset = torch.zeros_like(features, requires_grad=True)
        loss = functional.cross_entropy(model.rest(features + offset), y[sample : sample + 1])
        (gradient,) = torch.autograd.grad(loss, offset)
        sizes.append(gradient.norm())
    return torch.stack(sizes)


@pytest.mark.parametrize("factor", [1.0, 1e-3, 65536.0])
def test_weights_means_and_scales_are_divided_out(factor):
    model = Network()
    probe = Probe(model.middle)
    x, y = batch()
    expected = true_sizes(model, x, y)
    weights = torch.rand(COUNT) + 0.5
    losses = probe.watch(losses_of(model, x, y))
    (factor * weights * losses).mean().backward()
    assert torch.allclose(probe.sizes, expected, rtol=1e-4)
    assert not probe.sizes.requires_grad


def test_the_weights_of_pruning_are_divided_out():
    """The losses go through update(), and come back from it weighted."""
    model = Network()
    probe = Probe(model.middle)
    x, y = batch(64)
    pruner = infobatch.Pruner(64, 4)
    largest = 1.0
    for _ in range(3):
        for index in pruner.batch_sampler(16):
            losses = probe.watch(losses_of(model, x[index], y[index]))
            pruner.update(losses).backward()
            assert torch.allclose(probe.sizes, true_sizes(model, x[index], y[index]), rtol=1e-4)
            largest = max(largest, pruner.plan.weights.max().item())
    assert largest > 1.5


def test_accumulated_batches_are_measured_each_by_itself():
    model = Network()
    probe = Probe(model.middle)
    for _ in range(3):
        x, y = batch()
        (probe.watch(losses_of(model, x, y)).mean() / 3).backward()
        assert torch.allclose(probe.sizes, true_sizes(model, x, y), rtol=1e-4)


def test_two_forward_passes_before_a_backward_pass_keep_apart():
    model = Network()
    probe = Probe(model.middle)
    first, second = batch(), batch(7)
    one = probe.watch(losses_of(model, *first)).mean()
    two = probe.watch(losses_of(model, *second)).mean()
    (one + 3 * two).backward()
    assert torch.allclose(probe.sizes, true_sizes(model, *second), rtol=1e-4)


def test_a_per_sample_result_is_watched_as_it_is():
    model = Network()
    probe = Probe(model.middle)
    x, y = batch()
    result = infobatch.scoring.cross_entropy(model(x), y)
    assert probe.watch(result) is result
    result.losses.mean().backward()
    assert torch.allclose(probe.sizes, true_sizes(model, x, y), rtol=1e-4)


def test_a_sample_without_weight_is_not_known():
    model = Network()
    probe = Probe(model.middle)
    x, y = batch()
    weights = torch.ones(COUNT)
    weights[3] = 0
    (weights * probe.watch(losses_of(model, x, y))).mean().backward()
    assert probe.sizes.isnan().nonzero().flatten().tolist() == [3]
    assert probe.numbers["probe/samples"] == COUNT - 1


@pytest.mark.parametrize("how", ["reentrant", "recomputed"])
def test_gradient_checkpointing(how):
    model = Network(how)
    probe = Probe(model.middle)
    for _ in range(3):
        x, y = batch()
        x.requires_grad_()  # or a reentrant checkpoint has no gradient
        probe.watch(losses_of(model, x, y)).mean().backward()
        assert torch.allclose(probe.sizes, true_sizes(model, x.detach(), y), rtol=1e-4)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, where it splits the graph
def test_torch_compile():
    model = Network()
    probe = Probe(model.middle)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(3):
        x, y = batch()
        probe.watch(losses_of(compiled, x, y)).mean().backward()
        assert torch.allclose(probe.sizes, true_sizes(model, x, y), rtol=1e-4)
    torch._dynamo.reset()
    whole_graph = torch.compile(model, backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="_after_forward"):
        losses_of(whole_graph, x, y)
    torch._dynamo.reset()


def test_autocast_and_a_scaler():
    model = Network()
    probe = Probe(model.middle)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    x, y = batch()
    with torch.autocast("cpu", torch.bfloat16):
        losses = probe.watch(losses_of(model, x, y))
    scaler.scale(losses.mean()).backward()
    assert probe.sizes.dtype is torch.float32
    assert torch.allclose(probe.sizes, true_sizes(model, x, y), rtol=0.05)


def test_what_half_precision_cannot_hold_is_not_known():
    """An overflow of one sample's gradient, and of the factor itself."""
    layer = nn.Linear(2, 2).half()
    probe = Probe(layer)
    features = layer(torch.ones(3, 2).half()).float()
    losses = probe.watch((features * torch.tensor([[1.0], [1e6], [2.0]])).sum(1))
    losses.sum().backward()
    assert probe.sizes[1].isnan()
    assert torch.allclose(probe.sizes[[0, 2]], torch.tensor([2**0.5, 8**0.5]), rtol=1e-3)
    losses = probe.watch(layer(torch.ones(3, 2).half()).sum(1))
    (losses.float() * torch.tensor([1e6, 1.0, 1.0])).sum().backward()
    assert probe.sizes.isnan().tolist() == [True, False, False]
    assert math.isfinite(probe.numbers["probe/batch"])


@pytest.mark.parametrize("layout", ["sequence", "batch second", "images", "channels last", "tuple"])
def test_layouts(layout):
    """A layer that returns its input times a factor, in every shape that activations have."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return (x * self.factor, None) if layout == "tuple" else x * self.factor

    shape = (COUNT, 5, 3) if layout in ("sequence", "tuple") else (COUNT, 3, 4, 4)
    x, slopes = torch.randn(shape), torch.randn(shape)
    if layout == "batch second":
        x, slopes = x[:, 0].transpose(0, 1).contiguous(), slopes[:, 0].transpose(0, 1)
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    layer = Layer()
    dim = 1 if layout == "batch second" else 0
    probe = Probe(layer, batch_dim=dim)
    output = layer(x)[0] if layout == "tuple" else layer(x)
    losses = (output * slopes).movedim(dim, 0).flatten(1).sum(1)
    probe.watch(losses).mean().backward()
    assert torch.allclose(probe.sizes, slopes.movedim(dim, 0).flatten(1).norm(dim=1), rtol=1e-5)


DDP = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import infobatch
from test_probe import Network, batch, losses_of, true_sizes

dist.init_process_group("gloo")
torch.manual_seed(0)
model = Network()
probe = infobatch.Probe(model.middle)
ranks = DistributedDataParallel(model)
torch.manual_seed(1 + dist.get_rank())
for step in range(3):
    x, y = batch(8 + dist.get_rank())
    expected = true_sizes(model, x, y)
    (5.0 * probe.watch(losses_of(ranks, x, y))).mean().backward()
    assert torch.allclose(probe.sizes, expected, rtol=1e-4), (probe.sizes, expected)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
assert probe.numbers["probe/samples"] == 3 * (8 + dist.get_rank())
dist.destroy_process_group()
"""


FSDP = """
import copy
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import infobatch
from test_probe import Network, batch, losses_of, true_sizes

dist.init_process_group("gloo")
torch.manual_seed(0)
model = Network()
whole = copy.deepcopy(model)
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
probe = infobatch.Probe(model.middle)
torch.manual_seed(1 + dist.get_rank())
for step in range(3):
    x, y = batch(8 + dist.get_rank())
    expected = true_sizes(whole, x, y)
    (5.0 * probe.watch(losses_of(model, x, y))).mean().backward()
    assert torch.allclose(probe.sizes, expected, rtol=1e-4), (probe.sizes, expected)
    model.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="torchrun's store needs libuv")
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(DDP, id="DDP"),
        pytest.param(
            FSDP,
            id="FSDP2",
            marks=pytest.mark.skipif(  # torch 2.6's records events
                not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 needs a GPU here"
            ),
        ),
    ],
)
def test_two_processes(source, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n{source}")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    run = subprocess.run(
        [*command, str(script)], capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]


def test_nothing_waits_for_the_device(monkeypatch):
    model = Network()
    probe = Probe(model.middle)

    def waits(*args, **options):
        raise AssertionError("a step waited for the device")

    x, y = batch()
    for _ in range(3):
        loss = losses_of(model, x, y)
        with monkeypatch.context() as patched:
            for name in ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__"):
                patched.setattr(torch.Tensor, name, waits)
            probe.watch(loss).mean().backward()
            _ = probe.sizes


# What it says.


def test_the_noise_scale_is_that_of_an_offset_of_the_layers_output():
    """For a linear layer with one output per feature that is its bias: all its single gradients are known."""
    model = Network()
    x, y = torch.randn(2000, 6), torch.zeros(2000, dtype=torch.int64)
    offsets = torch.zeros(len(x), 8, requires_grad=True)
    with torch.no_grad():
        features = model.features(x)
    total = functional.cross_entropy(model.rest(features + offsets), y, reduction="sum")
    (gradients,) = torch.autograd.grad(total, offsets)
    mean = gradients.mean(0)
    expected = (gradients - mean).square().sum(1).mean() / mean.square().sum()
    probe = Probe(model.middle, window=100_000)
    for rows in torch.randint(len(x), (1000, 50)):
        probe.watch(losses_of(model, x[rows], y[rows])).mean().backward()
    assert expected > 0.2
    assert probe.numbers["probe/noise_scale"] == pytest.approx(expected.item(), rel=0.03)
    assert probe.numbers["probe/batch"] == pytest.approx(50, rel=1e-4)


def test_the_report_says_whether_the_loss_shows_the_gradient():
    """Sizes that follow the loss, and sizes that have nothing to do with it."""

    def numbers(slopes_of):
        layer = nn.Identity()
        probe = Probe(layer)
        for _ in range(8):
            base = torch.rand(256, 1)
            values = layer(base.requires_grad_())
            slopes = slopes_of(base.detach())
            losses = (slopes * (values - base.detach()) + base.detach()).squeeze(1)
            probe.watch(losses).mean().backward()
        return probe.numbers, probe.report()

    same, text = numbers(lambda loss: -torch.expm1(-loss))
    assert same["probe/rank_correlation"] == pytest.approx(1.0)
    assert same["probe/kept_by_loss"] == pytest.approx(same["probe/kept_by_size"], abs=1e-6)
    assert "rank correlation with the loss                    1.00" in text
    assert "Gradients at Identity, 2,048 samples:" in text
    other, _ = numbers(lambda loss: torch.rand(len(loss), 1) ** 3)
    assert abs(other["probe/rank_correlation"]) < 0.1
    assert abs(other["probe/log_correlation"]) < 0.1
    assert other["probe/kept_by_size"] < 0.75 < other["probe/kept_by_loss"]
    assert other["probe/spread"] == pytest.approx(9 / 7**0.5 / 3, rel=0.1)


def test_the_report_compares_the_sizes_that_scoring_reports():
    """At the logits the gradient of a smoothed cross-entropy is what the scoring function reports."""
    logits = nn.Identity()
    probe = Probe(logits)
    for _ in range(9):
        labels = torch.randint(CLASSES, (COUNT,))
        learned = 12 * torch.rand(COUNT, 1) * functional.one_hot(labels, CLASSES)
        output = logits(learned.requires_grad_())
        losses = infobatch.scoring.cross_entropy(output, labels, label_smoothing=0.2)
        probe.watch(losses).losses.mean().backward()
        ratios = probe.sizes / losses.extras["gradient"]
        assert ratios == pytest.approx(ratios[0].expand(COUNT), rel=1e-4)
    numbers = probe.numbers
    assert numbers["probe/samples"] == 9 * COUNT
    assert numbers["probe/kept_by_reported_size"] == pytest.approx(
        numbers["probe/kept_by_size"], abs=0.1
    ), "of two batches in nine"
    assert numbers["probe/kept_by_loss"] > numbers["probe/kept_by_reported_size"] + 0.1
    report = probe.report()
    kept = numbers["probe/kept_by_reported_size"]
    assert f"by the size that the scoring function reports       {kept:.0%}\n" in report
    others = Probe(logits)
    plain = functional.cross_entropy(logits(learned), labels, reduction="none")
    others.watch(plain).mean().backward()
    assert "scoring function" not in others.report()


def test_the_window_has_the_latest_samples():
    layer = nn.Identity()
    probe = Probe(layer, window=10)
    for value in range(5):
        values = layer(torch.ones(4, 1, requires_grad=True))
        probe.watch((values * (value + 1)).squeeze(1)).sum().backward()
    sizes = probe._window._columns[0]
    assert sorted(sizes.tolist()) == [3.0, 3.0] + [4.0] * 4 + [5.0] * 4
    assert probe.numbers["probe/samples"] == 10
    assert Probe(layer).numbers == {}
    assert Probe(layer).report() == "No gradients measured yet."


def test_kept_share_and_ranks():
    sizes = np.ones(1000)
    assert _kept(sizes, sizes) == pytest.approx(1 / 1.2)
    assert _kept(np.zeros(1000), sizes) == pytest.approx(1 / 1.2)
    assert _ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_pruning_by_what_it_measures():
    """The sizes reach the rule with the losses of the same step."""
    model = Network()
    x, y = batch(400)
    train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(x, y), 6, policy="auto")
    loader = torch.utils.data.DataLoader(train_data, 50, sampler=train_data.sampler)
    with Probe(model.middle) as probe:
        for _ in range(4):
            for inputs, labels in loader:
                weights = train_data.batch_weights(device=inputs.device)
                losses = probe.watch(losses_of(model, inputs, labels))
                (weights * losses).mean().backward()
                train_data.record(losses, extras={"gradient": probe.sizes})
    assert train_data.savings.saved
    known = train_data.state_dict()["columns"]["gradient"]
    assert torch.allclose(known, true_sizes(model, x, y), rtol=1e-3), (
        "the model does not change here"
    )
    losses_of(model, *batch())  # the hook is gone
    probe.watch(losses_of(model, *batch())).mean().backward()
    with pytest.raises(RuntimeError, match="no gradient"):
        _ = probe.sizes


# What it raises.


def test_a_layer_that_runs_twice_raises():
    model = Network()
    probe = Probe(model.middle)
    x, y = batch()
    model(x)
    with pytest.raises(
        RuntimeError,
        match=r"^watch\(\) got .* Linear ran 2 times, expected once.*torch\.no_grad\(\)",
    ):
        probe.watch(losses_of(model, x, y))
    with torch.no_grad():
        model(x)  # evaluation does not count
    probe.watch(losses_of(model, x, y)).mean().backward()
    assert len(probe.sizes) == COUNT


def test_sizes_before_there_are_any_raise():
    model = Network()
    probe = Probe(model.middle)
    text = r"^Probe\.sizes was asked for, but no gradient has arrived at the probed Linear since the last watch"
    with pytest.raises(RuntimeError, match=text):
        _ = probe.sizes
    x, y = batch()
    losses_of(model, x, y).mean().backward()  # not watched
    with pytest.raises(RuntimeError, match=text):
        _ = probe.sizes
    fresh = Network()
    probe = Probe(fresh.middle)
    losses = probe.watch(losses_of(fresh, x, y))
    with pytest.raises(RuntimeError, match=text):
        _ = probe.sizes
    losses.mean().backward()
    assert len(probe.sizes) == COUNT


def test_losses_that_cannot_be_watched_raise():
    model = Network()
    probe = Probe(model.middle)
    x, y = batch()
    with pytest.raises(
        ValueError, match=r'watch\(\) got losses of torch\.Size\(\[\]\), .*reduction="none"'
    ):
        probe.watch(losses_of(model, x, y).mean())
    with (
        torch.no_grad(),
        pytest.raises(RuntimeError, match=r"watch\(\) got losses without a gradient"),
    ):
        probe.watch(losses_of(model, x, y))


def test_an_output_that_does_not_keep_samples_apart_raises():
    model = Network()
    probe = Probe(model.middle)
    x, y = batch()
    halves = losses_of(model, x, y)[:5]
    with pytest.raises(
        ValueError,
        match=r"^Probe\(batch_dim=0\) found 16 entries .* expected 5, one per loss\. .*batch_dim=1",
    ):
        probe.watch(halves)
    Probe(model.middle, batch_dim=2)
    with pytest.raises(ValueError, match=r"Probe\(batch_dim=2\) got an output of shape \(16, 8\)"):
        model(x)


def test_what_is_no_layer_raises():
    with pytest.raises(TypeError, match=r"^Probe\(\) got str, expected a module of the model"):
        Probe("layer3")
    with pytest.raises(ValueError, match=r"^Probe\(\): window got 1, expected an integer >= 2"):
        Probe(nn.Identity(), window=1)

    class Numbers(nn.Module):
        def forward(self, x):
            return 5

    layer = Numbers()
    Probe(layer)
    with pytest.raises(
        TypeError, match=r"^Probe got int from the probed Numbers, expected a tensor"
    ):
        layer(torch.ones(2))
