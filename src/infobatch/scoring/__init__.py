"""Per-sample losses and scores by task."""

from infobatch.per_sample import PerSample

__all__ = ["PerSample"]
