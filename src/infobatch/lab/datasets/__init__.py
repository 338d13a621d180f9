"""Data sets: the embedded one, and readers for those in the folder that a user names."""
