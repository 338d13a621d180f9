"""Things that have a name, such as policies and recipes: where each is, and one line about it.

Nothing is imported before it is asked for, because torch takes seconds to import and the command line
lists policies and recipes without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar


@dataclass(frozen=True)
class Entry:
    """What is known about a registered object without importing it.

    Args:
        target: where it is, ``"module:attribute"``.
        summary: one line about it.
    """

    target: str
    summary: str

    def load(self) -> Any:
        """Import the object.

        Returns:
            The object itself.
        """
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module), attribute)


Loaded = TypeVar("Loaded")
Described = TypeVar("Described", bound=Entry)


class Registry(Mapping[str, Loaded], Generic[Loaded, Described]):
    """Objects by name, each imported when it is asked for.

    Args:
        entries: what is known about each without importing it, by name.

    >>> registry = Registry({"square root": Entry("math:sqrt", "The root of a number.")})
    >>> registry["square root"](9.0)
    3.0
    >>> registry.entries["square root"].summary
    'The root of a number.'
    """

    def __init__(self, entries: Mapping[str, Described]) -> None:
        self.entries = dict(entries)

    def __getitem__(self, name: str) -> Loaded:
        loaded: Loaded = self.entries[name].load()
        return loaded

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)
