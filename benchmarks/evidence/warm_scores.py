"""Make the scores that a study of few epochs starts from: those of an earlier run on all data.

    python benchmarks/evidence/warm_scores.py few-epochs-alpaca --data DIR

The run has the task's own learning rate and a seed that no comparison uses.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from studies import SCORES, study_of

from infobatch.lab.options import parse_options
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import load_task

ROOT = Path(__file__).parents[2]
SEED = 987_654


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--data", type=Path)
    arguments = parser.parse_args()
    study = study_of(arguments.name)
    options = parse_options(list(study.options))
    task = load_task(study.task, data=arguments.data, options=options)
    out = ROOT / SCORES.format(study.name)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(task, settings_of(task, arm="full", seed=SEED, options=options), Path(folder))
        run.train(lambda standing: None)
        run.train_data.export_scores(out)
    print(f"Wrote {out.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
