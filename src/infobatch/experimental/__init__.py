"""Experimental: pruning within the batch by scores that cost less than a forward pass.

Not shown to save anything at equal quality, and not part of the public interface: names and behaviour may
change or disappear in any release.
"""
