"""Time and memory of every coreset method, beside a library's where one has it.

    python benchmarks/coresets.py [--sizes 5000 20000 50000] [--methods …] [--forms by_class whole]
                                  [--ours] [--seconds 600] [--out FILE]

512 features, 10 classes, 30% chosen, one thread, each cell in a process of its own. A cell is stored as soon
as it is measured: run the same command to resume. Cells that were measured on another processor are measured
again. ``--ours`` leaves the libraries out. ``by_class`` is ``balanced=True``. ``cpu_seconds`` is what the
process used, ``seconds`` what passed, which depends on what else the machine does. Memory is the process's
peak beyond what it had with the inputs in place. A cell that uses more than ``--seconds`` of the processor is
ended, and its figures are null.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import subprocess
import sys
import time
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import nn
from torch.utils.data import TensorDataset

from infobatch import coresets
from infobatch.files import write_atomically
from infobatch.lab.run.machine import hardware, versions

FEATURES, CLASSES, FRACTION, SEED = 512, 10, 0.3, 0
LIBRARIES = {
    "facility_location": ("submodlib-py",),
    "graph_cut": ("submodlib-py",),
    "cal": ("faiss-cpu", "scikit-learn"),
}
# Its graph cut took 1.6 GB for 5,000 samples.
LARGEST_WHOLE = {"submodlib-py": 5_000}
KEYS = ("method", "library", "form", "size")
OUT = Path(__file__).parent / "results" / "coresets.json"


def made_inputs(size: int) -> coresets.Inputs:
    """Clusters by class, a linear network on them, and a history of 20 epochs."""
    generator = torch.Generator().manual_seed(SEED)
    labels = torch.arange(size) % CLASSES
    centers = torch.randn(CLASSES, FEATURES, generator=generator)
    features = (centers[labels] + 2 * torch.randn(size, FEATURES, generator=generator)).relu_()
    torch.manual_seed(SEED)
    model = nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        model.weight.copy_(centers / FEATURES**0.5)
        logits = model(features)
    sure = logits.softmax(1)[torch.arange(size), labels]
    noise = torch.rand(20, size, generator=generator)
    history = coresets.History(correct=noise < sure, label_probabilities=sure * noise)
    return coresets.Inputs(
        features=features,
        logits=logits,
        labels=labels,
        history=history,
        model=model,
        data=TensorDataset(features),
    )


def ours(method: str, inputs: coresets.Inputs, form: str) -> None:
    coresets.select(
        method, inputs=inputs, fraction=FRACTION, balanced=form == "by_class", seed=SEED
    )


def theirs(library: str, method: str, inputs: coresets.Inputs, form: str) -> None:
    """The same work by a library: the choice, or for CAL the search of neighbours, which is most of it."""
    groups = [np.arange(len(inputs.labels))]
    if form == "by_class" and method != "cal":
        groups = [np.flatnonzero(inputs.labels.numpy() == number) for number in range(CLASSES)]
    for rows in groups:
        x = inputs.features.numpy()[rows]
        if library == "faiss-cpu":
            import faiss  # noqa: PLC0415 - only in the process that measures it

            faiss.omp_set_num_threads(1)
            index = faiss.IndexFlatL2(FEATURES)
            index.add(x)
            index.search(x, 11)
        elif library == "scikit-learn":
            from sklearn.neighbors import NearestNeighbors  # noqa: PLC0415

            NearestNeighbors(n_neighbors=10, algorithm="brute").fit(x).kneighbors()
        else:
            by_submodlib(method, x, int(FRACTION * len(rows)))


def by_submodlib(method: str, x: np.ndarray, k: int) -> None:
    import submodlib  # noqa: PLC0415

    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    similarity = (1 + unit @ unit.T) / 2
    if method == "graph_cut":
        function = submodlib.GraphCutFunction(
            n=len(x), mode="dense", lambdaVal=1.0, ggsijs=similarity, separate_rep=False
        )
    else:
        function = submodlib.FacilityLocationFunction(
            n=len(x), mode="dense", sijs=similarity, separate_rep=False
        )
    function.maximize(budget=k, optimizer="LazyGreedy", show_progress=False)


def measure_here(cell: dict[str, str | int], limit: float) -> None:
    """In the child: run one cell and print its seconds and memory."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    inputs = made_inputs(int(cell["size"]))
    method, form, library = str(cell["method"]), str(cell["form"]), str(cell["library"])
    before = psutil.Process().memory_info().rss
    began, cpu = time.perf_counter(), time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu + limit), int(cpu + limit) + 5))
    if library == "infobatch":
        ours(method, inputs, form)
    else:
        theirs(library, method, inputs, form)
    cell["seconds"] = round(time.perf_counter() - began, 3)
    cell["cpu_seconds"] = round(time.process_time() - cpu, 3)
    peak = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            peak = 1024 * int(line.split()[1])
    print(json.dumps({**cell, "peak_mb": round((peak - before) / 2**20)}))


def measured(cell: dict[str, str | int], limit: float) -> dict[str, object]:
    command = [sys.executable, __file__, "--cell", json.dumps(cell), "--seconds", str(limit)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode == -signal.SIGXCPU:
        return {**cell, "seconds": None, "cpu_seconds": None, "peak_mb": None, "limit": limit}
    if run.returncode:
        sys.exit(f"{cell} failed:\n{run.stderr[-2000:]}")
    return json.loads(run.stdout.splitlines()[-1])


def wanted_cells(arguments: argparse.Namespace) -> list[dict]:
    return [
        dict(zip(KEYS, (method, library, form, size), strict=True))
        for size in arguments.sizes
        for form in arguments.forms
        for method in arguments.methods
        for library in ("infobatch", *(() if arguments.ours else LIBRARIES.get(method, ())))
        if form == "by_class" or size <= LARGEST_WHOLE.get(library, size)
    ]


def package_versions() -> dict[str, str]:
    libraries = {}
    for library in ("scikit-learn", "faiss-cpu", "submodlib-py"):
        try:
            libraries[library] = version(library)
        except PackageNotFoundError:
            libraries[library] = "not installed"
    return {**versions(), **libraries}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[5_000, 20_000, 50_000])
    parser.add_argument("--methods", nargs="+", default=list(coresets.METHODS))
    parser.add_argument("--forms", nargs="+", default=["by_class", "whole"])
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--cell", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        measure_here(arguments.cell, arguments.seconds)
        return
    stored = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"cells": []}
    machine = hardware(torch.device("cpu"))
    cells = {tuple(cell[key] for key in KEYS): cell for cell in stored["cells"]}
    for cell in wanted_cells(arguments):
        key = tuple(cell.values())
        if key in cells and cells[key]["processor"] == machine["processor"]:
            continue
        cells[key] = {**measured(cell, arguments.seconds), "processor": machine["processor"]}
        stored |= {
            "cells": list(cells.values()),
            "command": "OMP_NUM_THREADS=1 python benchmarks/coresets.py",
            "features": FEATURES,
            "classes": CLASSES,
            "fraction": FRACTION,
            "seed": SEED,
            "threads": 1,
            "versions": package_versions(),
            "hardware": machine,
        }
        text = json.dumps(stored, indent=1)
        write_atomically(arguments.out, lambda path, text=text: path.write_text(text))
        print(json.dumps(cells[key]), flush=True)


if __name__ == "__main__":
    main()
