"""Data sets: the embedded one, and readers for those in the user's data folder."""
