"""torchvision beside any build of PyTorch: `from torchvision_peer import torchvision`.

Importing it looks up operators that its wheel compiles for one build of PyTorch; the tests use none of them.
"""

import peers  # noqa: F401

import torch

try:
    import torchvision
except RuntimeError:
    _library = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision
import torchvision.transforms.v2  # noqa: E402
