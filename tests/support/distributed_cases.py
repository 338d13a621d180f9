"""What the ranks of a real process group do; started by test_processes.py through torchrun.

    torchrun … distributed_cases.py CASE OUT

Each rank leaves what it saw in OUT/rank-K.pt.
"""

import os
import signal
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.distributed import Checkpointable
from numbered import Numbered, loss_of

SIZE, EPOCHS = 103, 4


def drive(out):
    """Losses that depend on sample and epoch alone; a progress bar asks for len on rank 0 only.

    Before, a look at a batch while there is no process group yet, and one on rank 0 alone.
    """
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0)
    loader = DataLoader(train_data, 4, sampler=train_data.sampler, num_workers=1)
    next(iter(train_data.sampler))
    init()
    if dist.get_rank() == 0:
        next(iter(train_data.sampler))
    assert len(train_data.state_dict()["losses"]) == 0
    plans, visits = [], []
    for epoch in range(EPOCHS):
        if dist.get_rank() == 0:
            len(loader)
        visited = []
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
            visited += x.long().tolist()
        plans.append(train_data.plan.order)
        visits.append(visited)
    train_data.set_epoch(EPOCHS)
    return {
        "plans": plans,
        "visits": visits,
        "scores": train_data.scores,
        "savings": str(train_data.savings),
    }


BATCH, MIDDLE = 8, (2, 3)  # of a rank; the epoch and the steps in it after which a state is taken


def in_order_of_classes():
    """900 samples of three classes, of 60, 30 and 10%."""
    labels = torch.tensor([0, 1, 0, 1, 0, 2, 0, 1, 0, 0]).repeat(90)
    return infobatch.Pruner(900, EPOCHS, delta=1.0, order="stratified", labels=labels), labels


def stratified(out):
    """Epochs in which every class has its share of every batch; a state from the middle of one."""
    init()
    pruner, _ = in_order_of_classes()
    seen = train_by_class(pruner)
    pruner.set_epoch(EPOCHS)
    return {**seen, "scores": pruner.scores, "savings": str(pruner.savings)}


def train_by_class(pruner):
    """The plans and batches of all epochs from here on, and a state on the way."""
    plans, weights, visits, state = [], [], [], None
    batches = pruner.batch_sampler(BATCH)
    for epoch in range(pruner.epoch, EPOCHS):
        visits.append([])
        for step, batch in enumerate(batches):
            if (epoch, step) == MIDDLE:
                state = pruner.state_dict()
            pruner.update(loss_of(torch.tensor(batch, dtype=torch.float32), epoch))
            visits[-1].append(batch)
        plans.append(pruner.plan.order)
        weights.append(pruner.plan.weights)
    return {"plans": plans, "weights": weights, "visits": visits, "state": state}


def mesh(out):
    """Tensor-parallel neighbours share a batch: they count as one rank."""
    init()
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    pruner = infobatch.Pruner(SIZE, EPOCHS, delta=1.0, process_group=grid["data"].get_group())
    shares = []
    for epoch in range(2):
        share = []
        for index in pruner.sampler:
            pruner.update(loss_of(torch.tensor([float(index)]), epoch))
            share.append(index)
        shares.append(share)
    pruner.set_epoch(2)
    return {"shares": shares, "scores": pruner.scores, "place": grid.get_coordinate()}


def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 6, generator=generator)
    y = x.sum(1) + torch.randn(96, generator=generator) ** 3
    return TensorDataset(x, y)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def gradients(wrap, *, world_size, accumulate=1, bf16=False, sharded=False):
    """Gradients of every step of the first pruned epoch, after a first epoch of training."""
    train_data = infobatch.InfoBatch(problem(), 3, delta=1.0, sharded=sharded)
    loader = DataLoader(train_data, 16 // world_size, sampler=train_data.sampler, num_workers=1)
    model = wrap(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    for epoch in range(2):
        for step, (x, y) in enumerate(loader, 1):
            last = step % accumulate == 0
            with (
                model.no_sync() if accumulate > 1 and world_size > 1 and not last else nullcontext()
            ):
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    losses = (model(x).squeeze(1) - y) ** 2
                (train_data.update(losses) / accumulate).backward()
            if last:
                if epoch == 1:
                    grads = [parameter.grad for parameter in model.parameters()]
                    full = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in grads]
                    seen.append(torch.cat([g.flatten() for g in full]).clone())
                optimizer.step()
                optimizer.zero_grad()
    return {"gradients": torch.stack(seen), "made": train_data.savings.epochs[1].made}


# torch 2.6's FSDP2 records events, which its streams of a CPU do not have.
HAS_FSDP2 = hasattr(torch.cpu.Stream, "record_event")


def models(out):
    """DDP and FSDP2, plain, accumulating under no_sync, in bfloat16, with sharded scores."""
    init()
    world_size = dist.get_world_size()
    return {
        "ddp": gradients(DistributedDataParallel, world_size=world_size),
        "fsdp2": gradients(fsdp2, world_size=world_size) if HAS_FSDP2 else None,
        "accumulate": gradients(DistributedDataParallel, world_size=world_size, accumulate=2),
        "bf16": gradients(DistributedDataParallel, world_size=world_size, bf16=True),
        "sharded": gradients(DistributedDataParallel, world_size=world_size, sharded=True),
    }


def stream(out):
    """A StreamPruner per rank under DDP: gradients of many draws, and one rank's state."""
    init()
    rank = dist.get_rank()
    x, y = (part[rank * 24 :][:24] for part in problem()[:48])
    model = DistributedDataParallel(network())
    sizes, seen, draws = [], [], []
    for seed in range(150):
        pruner = infobatch.StreamPruner(0.3, seed=seed)
        for _ in range(2):
            with torch.no_grad():
                scores = (model.module(x).squeeze(1) - y) ** 2
            kept = pruner.select(scores)
            model.zero_grad()
            kept.mean((model(x[kept.index]).squeeze(1) - y[kept.index]) ** 2).backward()
            seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
            sizes.append(len(kept))
        draws.append(kept.index)
    return {
        "gradients": torch.stack(seen),
        "sizes": sizes,
        "draws": draws,
        "losses": scores,
        "state": pruner.state_dict(),
    }


def fsdp2(model):
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def save(out):
    """Stop in the middle of the second epoch; write through torch.distributed.checkpoint."""
    init()
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0)
    loader = DataLoader(train_data, 4, sampler=train_data.sampler)
    visited = []
    for epoch in range(2):
        for step, (x, _) in enumerate(loader):
            if epoch == 1 and step == 3:
                break
            train_data.update(loss_of(x, epoch))
            if epoch == 1:
                visited += x.long().tolist()
    dcp.save({"data": Checkpointable(train_data)}, checkpoint_id=out / "checkpoint")
    return {"visited": visited, "plan": train_data.plan.order}


def resume(out):
    """Go on from that with another number of ranks."""
    init()
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0)
    dcp.load({"data": Checkpointable(train_data)}, checkpoint_id=out / "checkpoint")
    assert train_data.epoch == 1
    loader = DataLoader(train_data, 4, sampler=train_data.sampler)
    visits = []
    for epoch in range(1, EPOCHS):
        visited = []
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
            visited += x.long().tolist()
        visits.append(visited)
    train_data.set_epoch(EPOCHS)
    return {
        "visits": visits,
        "scores": train_data.scores,
        "savings": str(train_data.savings),
    }


def sharded_parts():
    return infobatch.InfoBatch(
        Numbered(SIZE),
        EPOCHS,
        delta=1.0,
        sharded=True,
        tracks=(infobatch.tracks.Window(3), infobatch.tracks.Visits()),
    )


def save_sharded(out):
    """Checkpoints of sharded scores, between epochs and in the middle of one."""
    init()
    train_data = sharded_parts()
    visited = []
    for epoch in range(2):
        for step, samples in enumerate(train_data.batch_sampler(4)):
            if epoch == 1 and step == 3:
                break
            train_data.update(loss_of(torch.tensor(samples).float(), epoch))
            if epoch == 1:
                visited += samples
        if epoch == 0:
            between = train_data.scores
            dcp.save({"data": Checkpointable(train_data)}, checkpoint_id=out / "between")
            columns = train_data.state_dict()["columns"]
    dcp.save({"data": Checkpointable(train_data)}, checkpoint_id=out / "within")
    return {
        "visited": visited,
        "plan": train_data.plan.order,
        "between": between,
        "columns": columns,
    }


def load_sharded(out):
    """Load both: between epochs with any number of ranks, sharded or not."""
    init()
    sharded, whole = sharded_parts(), infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0)
    for train_data in (sharded, whole):
        dcp.load({"data": Checkpointable(train_data)}, checkpoint_id=out / "between")
    result = {
        "epoch": sharded.epoch,
        "between": sharded.scores,
        "columns": sharded.state_dict()["columns"],
        "whole": whole.scores,
        "error": "",
    }
    train_data = sharded_parts()
    try:
        dcp.load({"data": Checkpointable(train_data)}, checkpoint_id=out / "within")
    except Exception as error:
        return {**result, "error": str(error)}
    return {**result, "rest": list(train_data.sampler), "plan": train_data.plan.order}


def elastic(out):
    """Checkpoint after every step; the first time round, one rank is killed in mid-epoch."""
    init()
    rank = dist.get_rank()
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0)
    loader = DataLoader(train_data, 4, sampler=train_data.sampler)
    path = out / "checkpoint.pt"
    if path.exists():
        train_data.load_state_dict(torch.load(path, weights_only=True))
    steps = 0
    for epoch in range(train_data.epoch, EPOCHS):
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
            steps += 1
            state = train_data.state_dict()
            if rank == 0:
                torch.save(state, path.with_suffix(".tmp"))
                path.with_suffix(".tmp").replace(path)
            if steps == 13 and rank == 2 and not (out / "killed").exists():
                (out / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
    train_data.set_epoch(EPOCHS)
    return {
        "scores": train_data.scores,
        "savings": str(train_data.savings),
        "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        "steps": steps,
    }


def death(out):
    """One rank dies without a word in mid-epoch; what do the others see at the epoch's end?"""
    init(timeout=timedelta(seconds=5))
    dist.barrier()  # the group stands on every rank before one of them goes
    pruner = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
    began = time.monotonic()
    try:
        for position, index in enumerate(pruner.sampler):
            if dist.get_rank() == 1 and position == 5:
                time.sleep(1)
                os._exit(0)
            pruner.update(torch.tensor([loss_of(index, 0)]))
    except RuntimeError as error:
        return {"error": str(error), "seconds": time.monotonic() - began}
    return {"error": "", "seconds": time.monotonic() - began}


def init(**options):
    dist.init_process_group("gloo", **options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[2])
    result = globals()[sys.argv[1]](folder)
    torch.save(result, folder / f"rank-{os.environ['RANK']}.pt")
    if sys.argv[1] == "death":
        os._exit(0)  # a group with a dead member cannot be taken down in order
    # torch 2.6 deadlocks if the group's own thread still has to release a tensor, which needs the GIL.
    time.sleep(0.2)
    dist.destroy_process_group()
