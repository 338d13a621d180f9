"""What an epoch's boundary costs with each rule, beside the mean rule's in the same run.

    python benchmarks/rules.py [--size 14197122] [--repeats 3] [--rules ucb …] [--out FILE] [--check]

A boundary is the last update of an epoch and the first index of the next one, as in overhead.py: the
losses are folded into what is remembered, the rule decides, the plan is drawn. A rule and the mean rule are
measured in turn, in epochs that they prune, in time of the processor (one thread), so that other processes
do not count; the figure is the ratio of the medians. ``auto:order=stratified`` is a rule whose samples are drawn
class by class, of a thousand classes. ``remembered`` are the bytes per sample that stay
between epochs. ``shadows`` are rules that are only followed, in a training on all data: what the boundary takes
longer than without them, beside a boundary of the rule itself. ``--check`` exits with 1 where a ratio is above 3, or
above 2 for a shadow.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from overhead import almost_an_epoch, boundary, train_one_epoch

import infobatch
from infobatch.files import write_atomically
from infobatch.lab.run.machine import versions
from infobatch.policies import POLICIES, BiasedPolicyWarning

MOST = 3.0  # times the mean rule's boundary
MOST_OF_A_SHADOW = 2.0  # times the rule's own boundary
SHADOWS = ("auto", "mean", "quantile")
STRATIFIED = ":order=stratified"  # of a rule's name: its samples are drawn class by class
CLASSES = 1000


def pruner_that_prunes(size: int, name: str) -> infobatch.Pruner:
    """A pruner after as many epochs as the rule needs to leave something out."""
    labels = np.random.default_rng(0).integers(0, CLASSES, size).astype(np.int32)
    policy, stratified, _ = name.partition(STRATIFIED)
    order = "stratified" if stratified else "random"
    pruner = infobatch.Pruner(size, 1000, policy=policy, delta=1.0, labels=labels, order=order)
    for epoch in range(max(1, pruner.policy.first_epoch)):
        train_one_epoch(pruner, np.random.default_rng(epoch))
    return pruner


def measure(mean_rule: infobatch.Pruner, name: str, repeats: int) -> dict[str, float]:
    pruner = pruner_that_prunes(mean_rule.num_samples, name)
    times: dict[str, list[float]] = {"mean": [], name: []}
    rng = np.random.default_rng(1)
    for _ in range(repeats):
        for rule, rule_pruner in (("mean", mean_rule), (name, pruner)):
            last = almost_an_epoch(rule_pruner, rng)
            began = time.process_time()
            boundary(rule_pruner, last)
            times[rule].append(1000 * (time.process_time() - began))
    mean_ms, ms = (statistics.median(times[rule]) for rule in ("mean", name))
    return {
        "mean_ms": mean_ms,
        "ms": ms,
        "ratio": ms / mean_ms,
        "kept": len(pruner.plan) / pruner.num_samples,
        "remembered": remembered(pruner),
    }


def measure_shadow(size: int, name: str, repeats: int) -> dict[str, float]:
    """The boundary of a training on all data with a rule followed, without, and of the rule itself."""
    pruners = {
        "all data": infobatch.Pruner(size, 1000, policy="none"),
        "followed": infobatch.Pruner(size, 1000, policy="none", shadow=name, delta=1.0),
        "pruned": infobatch.Pruner(size, 1000, policy=name, delta=1.0),
    }
    for pruner in pruners.values():
        train_one_epoch(pruner, np.random.default_rng(0))
    times: dict[str, list[float]] = {kind: [] for kind in pruners}
    rng = np.random.default_rng(1)
    for _ in range(repeats):
        for kind, pruner in pruners.items():
            last = almost_an_epoch(pruner, rng)
            began = time.process_time()
            boundary(pruner, last)
            times[kind].append(1000 * (time.process_time() - began))
    ms = {kind: statistics.median(values) for kind, values in times.items()}
    return {"ms": ms["followed"] - ms["all data"], "pruned_ms": ms["pruned"],
            "ratio": (ms["followed"] - ms["all data"]) / ms["pruned"]}  # fmt: skip


def remembered(pruner: infobatch.Pruner) -> float:
    """Bytes per sample that stay between epochs."""
    columns = pruner._course.current_memory().columns.values()
    return sum(column.nbytes for column in columns) / pruner.num_samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=14_197_122)
    parser.add_argument("--repeats", type=int, default=3)
    rules = [name for name in POLICIES if name != "mean"]
    rules += [f"{name}{STRATIFIED}" for name in ("mean", "auto")]
    parser.add_argument("--rules", nargs="+", default=rules)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", BiasedPolicyWarning)
    warnings.filterwarnings("ignore", r"refresh\(\) was not called")  # it is not part of a boundary
    results = {
        "command": f"python benchmarks/rules.py {' '.join(sys.argv[1:])}".rstrip(),
        "versions": versions(),
        "threads": 1,
        "seeds": [0, 1],
        "size": arguments.size,
        "repeats": arguments.repeats,
        "rules": {},
    }
    mean_rule = pruner_that_prunes(arguments.size, "mean")
    results["mean_remembered"] = remembered(mean_rule)
    for name in arguments.rules:
        row = results["rules"][name] = measure(mean_rule, name, arguments.repeats)
        print(
            f"{name:21} {row['ms']:8.1f} ms, {row['ratio']:.2f} × the mean rule's; keeps "
            f"{row['kept']:.0%}; remembers {row['remembered']:.0f} bytes per sample",
            flush=True,
        )
    results["shadows"] = {}
    for name in SHADOWS:
        row = results["shadows"][name] = measure_shadow(arguments.size, name, arguments.repeats)
        print(
            f"{name:21} {row['ms']:8.1f} ms, {row['ratio']:.2f} × the rule's own, if it is followed",
            flush=True,
        )
    if arguments.out:
        text = json.dumps(results, indent=1) + "\n"
        write_atomically(arguments.out, lambda path: path.write_text(text))
    slow = {name: row["ratio"] for name, row in results["rules"].items() if row["ratio"] > MOST}
    shadows = results["shadows"].items()
    slow |= {f"{n}, followed": r["ratio"] for n, r in shadows if r["ratio"] > MOST_OF_A_SHADOW}
    if slow and arguments.check:
        sys.exit(
            f"Above {MOST} times the mean rule's boundary, or {MOST_OF_A_SHADOW} of its own: {slow}"
        )


if __name__ == "__main__":
    main()
