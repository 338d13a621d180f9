"""Ranks that are threads of this process: everything of a distributed job but the processes."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

import infobatch
from infobatch.distributed import Communicator, Ranks


class Exchange:
    """What a process group is to processes, for threads."""

    def __init__(self, world_size):
        self.rows = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=60)

    def gather(self, rank, row):
        self.rows[rank] = row.clone()
        self.barrier.wait()
        rows = torch.stack(self.rows)
        self.barrier.wait()
        return rows


@dataclasses.dataclass(frozen=True)
class Threads(Communicator):
    rank: int = 0
    exchange: Exchange | None = None
    connected = True

    def _all_gather(self, row, rows=None):
        return self.exchange.gather(self.rank, row)

    def _device(self, known):
        return torch.device("cpu")

    def _all_to_all(self, rows):
        return self._all_gather(rows)[:, self.rank]

    def maximum(self, values):
        return self._all_gather(values).amax(0)

    def broadcast(self, values, source):
        return self._all_gather(values)[source]

    def meet(self, call, remedy=""):
        self.exchange.barrier.wait()


def on_ranks(world_size, work, *args, sharded=False, **options):
    """Run ``work(pruner, rank)`` on every rank; return the results in order of rank."""
    exchange = Exchange(world_size)

    def one(rank):
        pruner = infobatch.Pruner(
            *args, **options, sharded=sharded, rank=rank, world_size=world_size
        )
        threads = Threads(world_size, rank=rank, exchange=exchange)
        ranks = Ranks(rank, world_size, sharded, False, threads)
        pruner._course.find_ranks = pruner._ranks = lambda: ranks
        try:
            return work(pruner, rank)
        except BaseException:
            exchange.barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(one, range(world_size)))
