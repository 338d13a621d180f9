"""InfoBatch: cheaper training over many epochs, by unbiased pruning of the data.

Each epoch leaves out, at random, some of the samples that the network has learned, and scales up the
loss of those that stay, so that the expected gradient is that of the full data.

The public names are in ``infobatch/public.py``, which is imported on first use: torch takes seconds
to import, and ``infobatch --help`` does not need it.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infobatch.public import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Return a submodule or a public name."""
    if not name.startswith("_") and find_spec(f"infobatch.{name}") is not None:
        return importlib.import_module(f"infobatch.{name}")
    if name == "__all__" or not name.startswith("_"):
        public = importlib.import_module("infobatch.public")
        names = {each: getattr(public, each) for each in public.__all__}
        globals().update(names, __all__=public.__all__)
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module 'infobatch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *importlib.import_module("infobatch.public").__all__})
