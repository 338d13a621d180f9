"""Print the README's table from the stored results of `infobatch demo --seeds 5`.

python benchmarks/demo_summary.py
"""

from __future__ import annotations

from pathlib import Path

from infobatch.lab.results import read_results
from infobatch.lab.summary import summarise

RESULTS = Path(__file__).parent / "results" / "demo"
NAMES = {
    "full": "all data, 30 epochs",
    "short": "all data, fewer epochs: as many sample passes as `infobatch`",
    "random": "random pruning, as much as `infobatch`",
    "infobatch": "`infobatch` (the paper's mean rule)",
    "quantile": "`quantile` (the paper's two-band rule)",
}


def summary() -> str:
    results = read_results(RESULTS)
    verdicts = {verdict["arm"]: verdict["text"] for verdict in results["verdicts"]}
    lines = [
        "| training | test accuracy | sample passes saved | against all data |",
        "|---|---|---|---|",
    ]
    for arm in summarise(results["runs"], arms=results["arms"]):
        accuracy = f"{arm.metric.mean:.1f} ± {arm.metric.sd:.1f}"
        verdict = verdicts.get(arm.arm, "–")
        lines.append(f"| {NAMES[arm.arm]} | {accuracy} | {arm.saved_fraction:.1%} | {verdict} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary())
