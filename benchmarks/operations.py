# python benchmarks/operations.py
"""The paper's Table 11: sorting the scores, a percentile and their mean, beside what a rule here takes.

Medians of interleaved repeats in one process, on one thread. ``mean rule`` and ``two bands`` are the library's
rules from scores to strata, which is what decides who is left out; they never sort.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from infobatch.files import write_atomically
from infobatch.lab.run.machine import hardware, versions
from infobatch.policies import MeanPrune, QuantilePrune
from infobatch.policies.base import Samples

SIZES = (1_281_167, 14_197_122)  # ImageNet-1K and ImageNet-22K
OUT = Path(__file__).parent / "results" / "operations.json"


OPERATIONS = {
    "sort": np.sort,
    "percentile": lambda scores: np.percentile(scores, 85),
    "mean": lambda scores: scores.mean(dtype=np.float64),
    "mean rule": lambda scores: MeanPrune().strata(Samples(scores)),
    "two bands": lambda scores: QuantilePrune().strata(Samples(scores)),
}


def measure(size: int, repeats: int) -> dict[str, float]:
    """Milliseconds by operation."""
    scores = np.random.default_rng(0).gamma(1.2, 0.5, size).astype(np.float32)
    times: dict[str, list[float]] = {name: [] for name in OPERATIONS}
    for _ in range(repeats):
        for name, operation in OPERATIONS.items():
            began = time.perf_counter()
            operation(scores)
            times[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record = {
        "command": f"python benchmarks/operations.py {' '.join(sys.argv[1:])}".strip(),
        "versions": versions(),
        "hardware": hardware(torch.device("cpu")),
        "seeds": [0],
        "milliseconds": {str(size): measure(size, arguments.repeats) for size in SIZES},
    }
    text = json.dumps(record, indent=1) + "\n"
    write_atomically(OUT, lambda path: path.write_text(text))


if __name__ == "__main__":
    main()
