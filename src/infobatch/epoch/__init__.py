"""The running epoch: which one it is, how it is issued, which losses were recorded."""
