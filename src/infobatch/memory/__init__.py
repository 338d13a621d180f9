"""The memory of each sample's scores, and the checkpoint format."""
