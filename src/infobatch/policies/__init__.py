"""Pruning rules, which decide what an epoch leaves out: one per file, with one method.

Ours and the paper's are in this folder; those of other papers, to be compared with, in ``baselines/``.

The public names are in ``policies/public.py``, which is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infobatch.lazy import lazy_names

if TYPE_CHECKING:
    from infobatch.policies.public import *  # noqa: F403

__getattr__, __dir__ = lazy_names("infobatch.policies")
