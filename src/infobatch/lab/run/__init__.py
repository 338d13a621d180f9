"""One training run: a task, an arm, a seed. ``python -m infobatch.lab.run TASK --arm ARM --out DIR``."""
