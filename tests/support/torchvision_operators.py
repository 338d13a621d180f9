"""Lets torchvision be imported where its build does not match torch's.

The registry's torchvision is made for CUDA and finds no compiled operators beside a torch for CPUs; on
import it then asks for the signatures of two of them. Nothing here runs them: declaring them is enough.
Import this module before timm or torchvision.
"""

import torch

library = torch.library.Library("torchvision", "DEF")  # gone with its last reference
for name in ("nms", "qnms"):
    try:
        getattr(torch.ops.torchvision, name)
    except AttributeError:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
