"""What ranks that share batches do; started by test_model_parallel.py through torchrun.

    torchrun … model_parallel_cases.py CASE OUT

Two ranks share each batch; with four ranks there are two such pairs, among which the data is divided.
Each rank leaves what it saw in OUT/rank-K.pt.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from document_examples import examples
from infobatch.distributed import Checkpointable

EPOCHS, BATCH, MICROBATCHES, RATE = 4, 16, 2, 0.05
SAVED = (2, 1)  # the epoch and the step after which the pipeline is saved


def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 6, generator=generator)
    y = x.sum(1) + torch.randn(150, generator=generator) ** 3
    return TensorDataset(x, y)


def stages():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh()), nn.Linear(16, 1)


def losses_of(outputs, y):
    return (outputs.squeeze(1) - y) ** 2


def grid():
    ranks = dist.get_world_size()
    return init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "model"))


def prepare(mesh, **options):
    """The data of a rank, as docs/distributed.md has it."""
    return infobatch.InfoBatch(
        problem(),
        EPOCHS,
        delta=1.0,
        process_group=mesh["data"].get_group(),
        model_group=mesh["model"].get_group(),
        meeting_timeout=20,
        **options,
    )


def average(model, group):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)


def build(model, mesh, microbatch):
    """A stage that knows its shapes: otherwise torch would call loss_fn once to learn them."""
    number, inputs = mesh["model"].get_local_rank(), (6, 16)
    example = torch.zeros(microbatch, inputs[number]).requires_grad_(number > 0)
    return PipelineStage(
        model,
        number,
        2,
        torch.device("cpu"),
        input_args=example,
        output_args=model(example),
        group=mesh["model"].get_group(),
    )


class Stage:
    """One stage of a pipeline of two, its optimizer and its schedule."""

    def __init__(self, mesh, train_data):
        self.data_group = mesh["data"].get_group()
        self.number, self.train_data = mesh["model"].get_local_rank(), train_data
        self.model = stages()[self.number]
        stage = build(self.model, mesh, BATCH // mesh["data"].size() // MICROBATCHES)
        # update() is called within the step, between a forward and a backward pass.
        self.schedule = Schedule1F1B(
            stage, MICROBATCHES, loss_fn=lambda outputs, y: train_data.update(losses_of(outputs, y))
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        decay = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1, 0.1, 10 * EPOCHS)
        self.scheduler = infobatch.paced(decay, train_data, steps_per_epoch=10)

    def step(self, x, y):
        if self.number == 0:
            self.schedule.step(x)
        else:
            self.schedule.step(target=y)
        average(self.model, self.data_group)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()


def pipeline(out):
    """Two stages: only the second has losses, and calls update() while the first waits for it."""
    mesh = grid()
    train_data = prepare(mesh)
    stage = Stage(mesh, train_data)
    loader = DataLoader(
        train_data,
        BATCH // mesh["data"].size(),
        sampler=train_data.sampler,
        drop_last=True,
        num_workers=stage.number,  # the loaders of the stages may differ
    )
    missing = error_of(lambda: next(iter(loader)))
    plans, rates, state = [], [], None
    for epoch in range(EPOCHS):
        train_data.set_epoch(epoch)
        if epoch == 0 and dist.get_rank() == 0:
            next(iter(loader))  # a look at the data, on one rank alone
        for step, (x, y) in enumerate(loader):
            stage.step(x, y)
            rates.append(stage.optimizer.param_groups[0]["lr"])
            if (epoch, step) == SAVED:
                state = train_data.state_dict()
                dcp.save({"data": Checkpointable(train_data)}, checkpoint_id=out / "checkpoint")
        plans.append(train_data.plan.order)
    train_data.set_epoch(EPOCHS)
    return {
        "missing": missing,
        "plans": plans,
        "rates": rates,
        "scores": train_data.scores,
        "savings": str(train_data.savings),
        "state": state,
        "resumed": resumed(mesh, out),
        "documented": documented(mesh),
    }


def documented(mesh):
    """The loop of docs/distributed.md, as it stands but for the mesh and the device."""
    _, groups, loop, *_ = examples("docs/distributed.md")
    groups = groups.replace('"cuda", (4, 2)', f'"cpu", ({mesh["data"].size()}, 2)')
    model = stages()[mesh["model"].get_local_rank()]
    namespace = {
        "infobatch": infobatch,
        "DataLoader": DataLoader,
        "data": problem(),
        "num_epochs": 2,
        "per_rank": BATCH // mesh["data"].size(),
        "criterion": losses_of,
        "stage": build(model, mesh, BATCH // mesh["data"].size() // 4),
        "optimizer": torch.optim.SGD(model.parameters(), lr=RATE),
    }
    exec(compile(groups + loop, "distributed.md", "exec"), namespace)
    return str(namespace["train_data"].savings)


def resumed(mesh, out):
    """Which samples a run visits that continues from the pipeline's checkpoint."""
    train_data = prepare(mesh)
    dcp.load({"data": Checkpointable(train_data)}, checkpoint_id=out / "checkpoint")
    train_data.set_epoch(SAVED[0])
    return list(train_data.sampler)


def tensor(out):
    """Both ranks compute the losses, which differ a little; and what errors they get."""
    mesh = grid()
    results = {
        form: disagreeing(mesh, by_index=form == "index", sharded=form == "sharded")
        for form in ("position", "index", "sharded")
    }
    return {**results, "errors": mistakes(mesh), "gradients": context(mesh)}


def context(mesh):
    """Half of each sequence on each rank, as docs/distributed.md has it; and all of it, for comparison."""
    pruner = prepare(mesh)
    pruner.set_epoch(0)
    x, _ = pruner.dataset[next(iter(pruner.batch_sampler(8)))]
    tokens = x.unsqueeze(1) * torch.linspace(0.5, 2, 10).view(1, -1, 1)  # 10 per sequence
    group, number = mesh["model"].get_group(), mesh["model"].get_local_rank()
    weight = torch.linspace(-1, 1, 6).requires_grad_()
    part = ((tokens[:, 5 * number :][:, :5] @ weight) ** 2).sum(1) / 10
    whole = part.detach().clone()
    dist.all_reduce(whole, group=group)
    loss = pruner.update(part + (whole - part.detach()))
    (gradient,) = torch.autograd.grad(loss, weight)
    dist.all_reduce(gradient, group=group)
    expected = ((tokens @ weight) ** 2).mean(1)
    assert torch.allclose(pruner._last_losses, expected)
    return gradient, torch.autograd.grad(expected.mean(), weight)[0]


def disagreeing(mesh, *, by_index, sharded):
    train_data = prepare(mesh, sharded=sharded)
    number = mesh["model"].get_local_rank()
    model, noise = nn.Sequential(*stages()), torch.Generator().manual_seed(number)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    plans, recorded = [], {}
    for epoch in range(EPOCHS):
        train_data.set_epoch(epoch)
        visits = {}
        for samples in train_data.batch_sampler(BATCH // mesh["data"].size()):
            x, y = train_data.dataset[samples]
            losses = losses_of(model(x), y)
            losses = losses + 1e-3 * torch.randn(losses.shape, generator=noise)
            for sample, value in zip(samples, losses.tolist(), strict=True):
                visits.setdefault(sample, value)  # repeats at the end of the epoch do not count
            loss = train_data.update(losses, index=samples if by_index else None)
            loss.backward()
            average(model, mesh["data"].get_group())
            optimizer.step()
            optimizer.zero_grad()
        plans.append(train_data.plan.order)
        recorded.update(visits)
        if epoch == 1:  # between epochs, on every rank
            state = train_data.state_dict()
    train_data.set_epoch(EPOCHS)
    return {
        "plans": plans,
        "scores": train_data.scores,
        "savings": str(train_data.savings),
        "recorded": recorded,
        "state": state,
    }


def mistakes(mesh):
    """What goes wrong is said on every rank."""
    data, model = (mesh[name].get_group() for name in ("data", "model"))

    def train(epochs=(0, 1), **options):
        pruner = infobatch.Pruner(40, EPOCHS, **options)
        for epoch in epochs:
            pruner.set_epoch(epoch)
            for samples in pruner.batch_sampler(4):
                pruner.update(torch.rand(len(samples)))
                if epochs == (0, 0):
                    break
        pruner.refresh(torch.rand(2), torch.arange(2))

    both = {"process_group": data, "model_group": model}
    return {
        "same group": error_of(lambda: train(process_group=model, model_group=model)),
        "other plan": error_of(lambda: train(**both, seed=mesh["model"].get_local_rank())),
        "again": error_of(lambda: train((0, 0), **both)),
        "refresh": error_of(lambda: train(**both)),
    }


def error_of(call):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    # A rank that waits for another in a collective call fails instead of hanging.
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    folder = Path(sys.argv[2])
    result = globals()[sys.argv[1]](folder)
    torch.save(result, folder / f"rank-{os.environ['RANK']}.pt")
    dist.barrier()
    time.sleep(0.2)  # as in distributed_cases
    dist.destroy_process_group()
