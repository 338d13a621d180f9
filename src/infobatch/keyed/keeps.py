"""What a loader's workers call: is a sample kept in this epoch?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infobatch.keyed.chance import Key, hash_key
from infobatch.keyed.table import DECODED, NUMBER, Table, open_current


class Keeps:
    """Whether the running epoch keeps a sample; see :attr:`infobatch.KeyedPruner.keeps`.

    Light to pickle: only where the tables are.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = folder
        self._key = key
        try:
            self._current = open_current(folder)
        except FileNotFoundError:
            raise _missing_folder(folder) from None
        self._table: Table | None = None
        self._number = 0  # of the table; those that are published count from 1

    def __call__(self, sample: Mapping[str, Any] | Key) -> bool:
        """Whether to keep a sample: a dictionary that has its key, or the key itself."""
        table = self._table
        if table is None or self._current[NUMBER] != self._number:
            table = self._open(sample)
        try:  # a dictionary is recognised much faster than other mappings
            key_hash = hash_key(sample[self._key] if isinstance(sample, dict) else sample)  # type: ignore[arg-type]
        except (KeyError, TypeError):
            key_hash = self._hash_or_raise(sample)
        return table.keeps(key_hash)

    def _open(self, sample: object) -> Table:
        current, table = self._current, None
        while table is None:
            number = self._number = current[NUMBER]
            try:
                table = self._table = Table(self._folder, number)
            except FileNotFoundError:
                if current[NUMBER] == number:  # otherwise it was replaced just now
                    raise _missing_folder(self._folder) from None
        if isinstance(sample, Mapping) and any(map(_is_decoded, sample.values())):
            current[DECODED] = 1
        return table

    def _hash_or_raise(self, sample: Mapping[str, Any] | Key) -> int:
        if isinstance(sample, Mapping) and self._key not in sample:
            raise KeyError(
                f"KeyedPruner.keeps() got a sample without {self._key!r}; it has {sorted(sample)}. "
                "Expected the key of the sample there: pass KeyedPruner(key=…), the name under which "
                "samples have it, or call keeps() with the key itself."
            )
        key = sample[self._key] if isinstance(sample, Mapping) else sample
        try:
            return hash_key(key)
        except TypeError:
            raise TypeError(
                f"KeyedPruner.keeps() got a key of type {type(key).__name__}, expected a string, bytes "
                "or an integer, the same for a sample in every epoch."
            ) from None

    def __getstate__(self) -> tuple[Path, str]:
        return self._folder, self._key

    def __setstate__(self, state: tuple[Path, str]) -> None:
        self.__init__(*state)  # type: ignore[misc]


def _missing_folder(folder: Path) -> RuntimeError:
    return RuntimeError(
        f"KeyedPruner.keeps() found no table in {folder}: the pruner was deleted, its process has ended, "
        "the worker is on another machine, or something cleans that folder up. Keep the pruner as long "
        "as the loader is used; TMPDIR sets another folder."
    )


def _is_decoded(value: object) -> bool:
    """Whether a value is an image or another array, and no longer the bytes of a file."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.ndim > 1
    return type(value).__module__.startswith("PIL.")
