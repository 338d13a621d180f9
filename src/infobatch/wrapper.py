"""A data set in front of another one, which stays reachable through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset


class Wrapper(Dataset[Any]):
    """A data set whose attributes are those of the inner ``dataset``, except for its own.

    Reading and setting an attribute work alike: ``loader.dataset.transform = f`` changes the inner
    data set if that is where ``transform`` is.
    """

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        # Only called for missing attributes. Special and private names are never the inner data
        # set's, and "dataset" is missing while pickle or copy builds the object.
        if hasattr(type(self), name):  # a property that itself raised an AttributeError
            return object.__getattribute__(self, name)
        if name.startswith("__") or "dataset" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        try:
            return getattr(self.dataset, name)
        except AttributeError:
            inner = type(self.dataset).__name__
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}, and neither has the {inner} that "
                "it wraps."
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        attributes = vars(self)
        is_own = name in attributes or name.startswith("_") or hasattr(type(self), name)
        if not is_own and "dataset" in attributes and hasattr(attributes["dataset"], name):
            setattr(attributes["dataset"], name, value)
        else:
            object.__setattr__(self, name, value)


def fetch(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Read several samples, all at once if the data set supports it."""
    if callable(getattr(dataset, "__getitems__", None)):
        return list(dataset.__getitems__(indices))
    return [dataset[index] for index in indices]
