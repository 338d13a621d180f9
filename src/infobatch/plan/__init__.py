"""Plans as pure functions: strata, the draw, the shuffle."""

from infobatch.plan.draw import draw_plan, keep_counts, whole_plan
from infobatch.plan.plan import ALL, Plan, Shard, fingerprint
from infobatch.plan.strata import FloatArray, LabelArray, Strata

__all__ = [
    "ALL",
    "FloatArray",
    "LabelArray",
    "Plan",
    "Shard",
    "Strata",
    "draw_plan",
    "fingerprint",
    "keep_counts",
    "whole_plan",
]
