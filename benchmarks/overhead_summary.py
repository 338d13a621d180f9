"""Print the table of docs/performance.md from the stored figures of the benchmarks.

python benchmarks/overhead_summary.py
"""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def read(name: str) -> dict:
    return json.loads((RESULTS / name).read_text())


def summary() -> str:
    files = sorted(RESULTS.glob("overhead*.json"))  # the largest sizes are measured on their own
    rows = [row for file in files for row in read(file.name)["measurements"]]
    lines = ["| | " + " | ".join(f"N = {row['size']:,}" for row in rows) + " |"]
    lines.append("|---" * (len(rows) + 1) + "|")

    def line(name, cell):
        lines.append(f"| {name} | " + " | ".join(cell(row) for row in rows) + " |")

    for policy in ("mean", "quantile"):
        line(
            f"epoch boundary, {policy} rule",
            lambda row, p=policy: (
                f"{row['boundary_ms'][p]:.1f} ms ({row['boundary_ratio'][p]:.2f})"
            ),
        )
    for name, label in (("update", "`update`"), ("update_index", "`update(index=…)`")):
        for batch in (128, 1024):
            line(
                f"{label}, batch {batch}",
                lambda row, k=f"{name}_{batch}": (
                    f"{row['update_us'][k + '_us']:.0f} µs ({row['update_ratio'][k]:.1f})"
                ),
            )
    line(
        "issuing indices, per sample",
        lambda row: f"{row['hand_out_ns']['mean']:.0f} ns ({row['hand_out_ratio']:.2f})",
    )
    line(
        "whole epoch through a loader, `sampler` / `batch_sampler`",
        lambda row: (
            f"({row['loader_ratio']['sampler']:.2f} / {row['loader_ratio']['batch_sampler']:.2f})"
        ),
    )
    line(
        "checkpoint in mid-epoch, per sample",
        lambda row: (
            f"{row['checkpoint']['bytes_per_sample']:.1f} bytes ({row['checkpoint']['ratio']:.2f})"
        ),
    )
    line(
        "bytes per sample, peak / between (mean rule)",
        lambda row: (
            "–"
            if row["size"] < 10_000_000  # a process's noise is larger than the arrays
            else f"{row['bytes_per_sample']['mean']['peak']:.1f} / "
            f"{row['bytes_per_sample']['mean']['after']:.1f}"
        ),
    )
    for row in read("exchange.json")["measurements"]:
        ratio = f"({row['ratio']:.2f})"
        cells = [ratio if r["size"] == 1_281_167 else "–" for r in rows]
        lines.append(
            f"| boundary with the exchange of {row['ranks']} ranks | {' | '.join(cells)} |"
        )
    lines.append("")
    run = read("cifar10.json")
    full, pruned = run["accuracy"]
    lines.append(
        f"End to end, a small ResNet on {run['passes'][0] // 8:,} images of CIFAR-10 for 8 epochs: "
        f"{run['share_of_passes_saved']:.1%} of the sample passes saved, "
        f"{run['share_of_seconds_saved']:.1%} of the seconds; test accuracy {full:.1f} on all data, "
        f"{pruned:.1f} pruned."
    )
    lines.append("")
    shares = sorted(read("profile.json")["shares"].items(), key=lambda pair: -pair[1])
    lines.append(
        "Where a pruned epoch of that training goes, by torch's profiler (`benchmarks/profile_epoch.py`): "
        + ", ".join(f"{part} {share:.2%}" for part, share in shares)
        + "."
    )
    lines.append("")
    lines += [
        "A billion samples (`benchmarks/billion.py`, once each). Of 1,024 ranks this is the first, in a process group "
        "that only stands for the others: what it receives is counted, and takes no time.",
        "",
        "| | boundary, processor time | memory at the peak | received per epoch |",
        "|---|---|---|---|",
        *(billion_row(row) for row in read("billion.json")["measurements"]),
    ]
    return "\n".join(lines)


def billion_row(row: dict) -> str:
    seconds = row.get("boundary_cpu_seconds", row["boundary_seconds"])
    received = sum(row.get("received_bytes", {}).values())
    return (
        f"| {row['name']} | {seconds:.{0 if seconds > 10 else 2}f} s | {row['peak_gigabytes']:.1f} GB | "
        f"{received / 1e6:,.{0 if received > 1e8 else 1}f} MB |"
    )


if __name__ == "__main__":
    print(summary())
