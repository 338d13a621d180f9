"""Per-sample losses and scores by task.

Each function returns ``PerSample(losses, scores)``, which ``update`` accepts like a tensor. The plain
mean of the losses is the batch loss that you train with anyway; the scores rank the samples, and do
not depend on the rest of the batch unless the function says so. Where 1 − exp(−score) is not the size
of a sample's gradient, ``extras["gradient"]`` is: the norm of the gradient of the sample's part of the
loss with respect to what the model returns, up to a factor that all samples share.
"""

from infobatch.per_sample import PerSample
from infobatch.scoring.classification import binary_cross_entropy, cross_entropy, focal
from infobatch.scoring.contrastive import contrastive
from infobatch.scoring.detection import detection
from infobatch.scoring.diffusion import diffusion, diffusion_target, min_snr_weights
from infobatch.scoring.language import causal_lm, per_sequence, sequence_boundaries, token_losses
from infobatch.scoring.masked_autoencoding import masked_autoencoding
from infobatch.scoring.mixing import mixed_cross_entropy
from infobatch.scoring.regression import huber, mse, quantile
from infobatch.scoring.scalar import scalar
from infobatch.scoring.segmentation import segmentation
from infobatch.scoring.timestep_means import TimestepMeans

__all__ = [
    "PerSample",
    "TimestepMeans",
    "binary_cross_entropy",
    "causal_lm",
    "contrastive",
    "cross_entropy",
    "detection",
    "diffusion",
    "diffusion_target",
    "focal",
    "huber",
    "masked_autoencoding",
    "min_snr_weights",
    "mixed_cross_entropy",
    "mse",
    "per_sequence",
    "quantile",
    "scalar",
    "segmentation",
    "sequence_boundaries",
    "token_losses",
]
