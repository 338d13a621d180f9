"""From scores to an epoch's plan: the policy is asked, and what it cannot judge is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from infobatch.distributed import Ranks
from infobatch.plan import FloatArray, Plan, draw_plan, whole_plan
from infobatch.policies import Policy


def plan_epoch(
    scores: FloatArray, policy: Policy | None, ranks: Ranks, *, seed: int, epoch: int
) -> Plan:
    """Draw an epoch by what the policy says of the scores; without a policy, a whole one."""
    # A mask of them costs a pass and a byte a sample, and most often there are none.
    unseen = np.isnan(scores) if np.isnan(scores.min(initial=np.inf)) else None
    nothing_seen = unseen is not None and bool(unseen.all())
    # A share without scores must not leave the others' sums waiting for it.
    if policy is None or (nothing_seen and not ranks.sharded):
        return whole_plan(len(scores), seed=seed, epoch=epoch, share=ranks.share)
    readable = scores.view()
    readable.flags.writeable = False
    options = {"reduce": ranks.sum} if ranks.sharded else {}
    strata = policy.strata(readable, **options)
    if len(strata.labels) != len(scores):
        raise ValueError(
            f"{policy!r}.strata() gave {len(strata.labels)} labels, expected one for each "
            f"of the {len(scores)} samples."
        )
    if unseen is not None:
        strata = replace(strata, labels=strata.labels * ~unseen)
        del unseen  # a byte a sample, which the draw can use
    return draw_plan(strata, seed=seed, epoch=epoch, share=ranks.share)
