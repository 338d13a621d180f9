"""Pruning rules, which decide what an epoch leaves out: one per file, with one method.

Ours and the paper's are in this folder; those of other papers, to be compared with, in ``baselines/``.

The public names are in ``policies/public.py``, which is imported on first use: rules need torch, which
takes seconds to import, and a list of their names does not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infobatch.policies.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Return a submodule or a public name."""
    if name == "__all__" or not name.startswith("_"):
        public = importlib.import_module("infobatch.policies.public")
        names = {public_name: getattr(public, public_name) for public_name in public.__all__}
        globals().update(names, __all__=public.__all__)
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module 'infobatch.policies' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *importlib.import_module("infobatch.policies.public").__all__})
