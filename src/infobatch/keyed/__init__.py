"""Pruning of streamed data by key: no index and no length are needed."""
