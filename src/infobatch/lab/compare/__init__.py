"""Comparisons: which runs to make, as processes, and their results in one folder."""
