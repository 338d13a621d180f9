"""The statistics of a comparison: pure functions on typed records, without torch and without files."""
