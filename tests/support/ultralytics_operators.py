"""Lets Ultralytics train and validate here: offline, and where torchvision's build does not match torch's.

Its validator imports torchvision, and then takes torchvision's compiled non-maximum suppression, which is
not there: see torchvision_operators. Ultralytics has the same in torch, for machines without torchvision.
Import this module before ultralytics.
"""

import os
import tempfile

import torchvision_operators  # noqa: F401 - before torchvision

os.environ.setdefault("YOLO_OFFLINE", "1")
os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp(prefix="ultralytics-"))

import torchvision
from ultralytics.utils.nms import TorchNMS

if not torchvision.extension._has_ops():
    torchvision.ops.nms = TorchNMS.nms
