"""Reading and writing score files, from which a later run can start."""

from __future__ import annotations

import csv
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infobatch.files import write_atomically
from infobatch.memory.memory import SCORE, Memory
from infobatch.plan import FloatArray, Shard

INDEX = "index"
COST = "cost"  # of a score that was computed separately, in training steps
Table = dict[str, npt.NDArray[Any]]


def write_scores(path: str | PathLike[str], memory: Memory, shard: Shard) -> None:
    """Write one row per sample, atomically.

    As in ``Samples.age``, an age of 1 means a visit in the latest epoch; -1 means no visit yet.

    Args:
        path: ends in ``.parquet``, ``.csv`` or ``.npz``.
        memory: its columns; one with several numbers per sample becomes several.
        shard: which samples the rows are.

    Raises:
        ValueError: if the file's extension is none of the three.
        ImportError: if the file is a ``.parquet`` file and pyarrow is not installed.
    """
    table: Table = {INDEX: shard.first + shard.step * np.arange(len(memory))}
    for name, column in memory.columns.items():
        if name == "last_visit":
            table["age"] = np.where(column < 0, -1, column.max(initial=-1) + 1 - column)
        elif column.ndim == 1:
            table[name] = column
        else:
            table.update({f"{name}_{k}": column[:, k] for k in range(column.shape[1])})
    write_table("export_scores()", Path(path), table)


def write_table(call: str, path: Path, table: Table) -> None:
    """Write columns of equal length atomically, in the format given by the file extension."""
    _, write = _format(call, path)
    write_atomically(path, lambda part: write(part, table))


def read_table(call: str, path: Path) -> Table:
    """Read the columns from a file."""
    read, _ = _format(call, path)
    return read(path)


def read_scores(
    source: torch.Tensor | np.ndarray[Any, Any] | str | PathLike[str] | None, num_samples: int
) -> FloatArray | None:
    """Read one score per sample from a tensor, an array or a file.

    Args:
        source: the argument ``initial_scores``; a file has the columns ``index`` and ``score``.
        num_samples: the number of samples in the data set.

    Returns:
        One score per sample, NaN where there is none or it is not finite; None for None.

    Raises:
        ValueError: if there is not one number per sample, or a file names samples that the data set
            does not have, or one of them twice.
    """
    if source is None:
        return None
    if isinstance(source, str | PathLike):
        return _from_file(Path(source), num_samples)
    scores = source.detach().cpu() if isinstance(source, torch.Tensor) else np.asarray(source)
    if tuple(scores.shape) != (num_samples,) or scores.dtype in (torch.bool, np.bool_):
        raise ValueError(
            f"initial_scores got {scores.dtype} of shape {tuple(scores.shape)}, expected one number "
            f"per sample ({num_samples}), NaN where there is none."
        )
    if isinstance(scores, torch.Tensor):
        scores = scores.float().numpy()
    return _finite(np.array(scores, np.float32))


def _from_file(path: Path, num_samples: int) -> FloatArray:
    table = read_table("initial_scores", path)
    if INDEX not in table or SCORE not in table:
        raise ValueError(
            f"initial_scores={str(path)!r} has the columns {sorted(table)}, expected {INDEX!r} and "
            f"{SCORE!r}, as export_scores() writes them."
        )
    index, known = (_numbers(path, name, table[name]) for name in (INDEX, SCORE))
    if (index != np.floor(index)).any() or len(np.unique(index)) < len(index):
        raise ValueError(
            f"initial_scores={str(path)!r} has indices that are not integers, or one index "
            f"twice, in its column {INDEX!r}. Expected one row for each sample that has a score."
        )
    if len(index) and not (int(index.min()) >= 0 and int(index.max()) < num_samples):
        raise ValueError(
            f"initial_scores={str(path)!r} has scores for the samples {int(index.min())} to "
            f"{int(index.max())}, expected 0 to {num_samples - 1}. Scores belong to samples: use a "
            "file from the same data."
        )
    scores = np.full(num_samples, np.nan, np.float32)
    scores[index.astype(np.int64)] = known
    return _finite(scores)


def read_cost(path: str | PathLike[str]) -> float:
    """Read the cost of a file's scores, in one-sample training steps; 0 if training gave them."""
    read, _ = _format("initial_scores", Path(path))
    return float(np.sum(read(Path(path)).get(COST, 0.0)))


def _numbers(path: Path, name: str, column: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"initial_scores={str(path)!r} has values that are not numbers in its column {name!r} "
            f"({error}). Expected what export_scores() writes; a score may be missing."
        ) from None


def _finite(scores: FloatArray) -> FloatArray:
    scores[~np.isfinite(scores)] = np.nan  # counts as never seen
    return scores


def _format(call: str, path: Path) -> tuple[Callable[[Path], Table], Callable[[Path, Table], None]]:
    if path.suffix not in _FORMATS:
        raise ValueError(
            f"{call} got {str(path)!r}, expected a file name that ends in {', '.join(_FORMATS)}."
        )
    return _FORMATS[path.suffix]


def _read_npz(path: Path) -> Table:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def _write_npz(path: Path, table: Table) -> None:
    with path.open("wb") as file:  # given a path, savez would append .npz to other extensions
        np.savez(file, **table)  # type: ignore[arg-type]


def _read_csv(path: Path) -> Table:
    with path.open(newline="", encoding="utf-8") as file:
        names, *rows = [row for row in csv.reader(file) if row] or [[]]
    cells = ([row[at] if at < len(row) else "" for row in rows] for at in range(len(names)))
    return dict(zip(names, map(_column, cells), strict=True))


def _column(cells: list[str]) -> npt.NDArray[Any]:
    """Parse cells as numbers, with NaN for empty cells as other tools write them, or as text."""
    column = np.array([cell or "nan" for cell in cells], np.str_)
    try:
        return column.astype(np.float64)
    except ValueError:
        return column


def _write_csv(path: Path, table: Table) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))


def _parquet() -> Any:
    try:
        import pyarrow.parquet  # noqa: PLC0415 - optional, only for this format
    except ImportError:
        raise ImportError(
            "A .parquet file of scores needs the package pyarrow: pip install pyarrow. Or use .csv "
            "or .npz."
        ) from None
    return pyarrow


def _read_parquet(path: Path) -> Table:
    table = _parquet().parquet.read_table(path)
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _write_parquet(path: Path, table: Table) -> None:
    pyarrow = _parquet()
    pyarrow.parquet.write_table(pyarrow.table(table), path)


_FORMATS: dict[str, tuple[Callable[[Path], Table], Callable[[Path, Table], None]]] = {
    ".parquet": (_read_parquet, _write_parquet),
    ".csv": (_read_csv, _write_csv),
    ".npz": (_read_npz, _write_npz),
}
