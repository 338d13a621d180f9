"""What is remembered about each sample, and the checkpoint's format."""
