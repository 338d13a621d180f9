"""The paper's equations as slow plain loops: the oracle for the fast path.

Written from the paper, not from the library: Eq. 3/10 (who may be pruned), Eq. 4 (scores), Eq. 8 (the
counts are forced). The one thing it takes from outside is which samples a draw happened to keep.
"""

import math

import numpy as np


class ReferenceInfoBatch:
    """Keeps the scores and says, before each epoch, what a correct draw must look like."""

    def __init__(self, num_samples, num_epochs, ratio, delta):
        self.scores = [None] * num_samples
        self.num_epochs, self.ratio, self.delta = num_epochs, ratio, delta

    def threshold(self):
        seen = [score for score in self.scores if score is not None]
        return float(np.float32(math.fsum(seen) / len(seen)))

    def eligible(self, epoch):
        """The samples that may be pruned: t < δ·C and H(z) < mean(H)."""
        if epoch >= self.delta * self.num_epochs or all(s is None for s in self.scores):
            return set()
        threshold = self.threshold()
        return {i for i, s in enumerate(self.scores) if s is not None and s < threshold}

    def weights(self, epoch):
        """What each sample weighs if it is kept, and how many of the eligible stay."""
        eligible = self.eligible(epoch)
        kept = max(1, round((1 - self.ratio) * len(eligible))) if eligible else 0
        return {
            i: len(eligible) / kept if i in eligible else 1.0 for i in range(len(self.scores))
        }, kept

    def visit(self, sample, loss):
        self.scores[sample] = float(np.float32(loss))
