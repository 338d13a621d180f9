"""Ranks of a KeyedPruner that are threads of this process."""

from concurrent.futures import ThreadPoolExecutor

import infobatch
from infobatch.distributed import Ranks
from rank_threads import Exchange, Threads


def on_ranks(world_size, work, *, sharded=False, **options):
    """Run ``work(pruner, rank)`` on every rank; return the results in order of rank."""
    exchange = Exchange(world_size)

    def one(rank):
        pruner = infobatch.KeyedPruner(**options, sharded=sharded, rank=rank, world_size=world_size)
        ranks = Ranks(
            rank, world_size, sharded, False, Threads(world_size, rank=rank, exchange=exchange)
        )
        pruner._ranks = lambda: ranks
        try:
            return work(pruner, rank)
        except BaseException:
            exchange.barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(one, range(world_size)))
