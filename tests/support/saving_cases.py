"""A rank that saves alone, in a real process group; started by test_saving_alone.py.

    RANK=… WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… python saving_cases.py CASE OUT

Each rank leaves what it saw in OUT/rank-K.pt.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import infobatch
from numbered import Numbered, loss_of

SIZE, EPOCHS, BATCH = 103, 4, 4


def parts(**options):
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0, **options)
    return train_data, DataLoader(train_data, BATCH, sampler=train_data.sampler)


def between_epochs(out):
    """Rank 0 saves after each epoch's loop while rank 1 does nothing of the kind."""
    train_data, loader = parts()
    states = []
    for epoch in range(EPOCHS):
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
        if dist.get_rank() == 0:
            states.append(train_data.state_dict())
    return {"states": states, "scores": train_data.scores, "savings": str(train_data.savings)}


def in_mid_epoch(out):
    """Rank 0 asks alone in the middle of an epoch, is told so, and later all save together."""
    train_data, loader = parts(meeting_timeout=1)
    errors, states = [], []
    for epoch in range(2):
        for step, (x, _) in enumerate(loader):
            train_data.update(loss_of(x, epoch))
            if step == 2:
                if dist.get_rank() == 0:
                    errors += [error_of(train_data.state_dict) for _ in range(2)]
                dist.barrier()  # the group is as usable as before
            if step in (2, 4):
                states.append(train_data.state_dict())
            if step == 5 and dist.get_rank() == 1:
                alone = train_data.state_dict(gather=False)
    return {
        "errors": errors,
        "together": states,
        "alone": alone if dist.get_rank() == 1 else None,
        "scores": train_data.scores,
        "savings": str(train_data.savings),
    }


def error_of(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    # A rank that waits for the other in a collective call fails instead of hanging.
    dist.init_process_group("gloo", timeout=timedelta(seconds=40))
    folder = Path(sys.argv[2])
    result = globals()[sys.argv[1]](folder)
    torch.save(result, folder / f"rank-{os.environ['RANK']}.pt")
    dist.barrier()
    dist.destroy_process_group()
