"""Gates of routers whose every score gets a gradient: kofn's top-k maps, for PyTorch alone.

The files below are kofn's, with relative imports. Rows in a GPU's memory are computed by Triton's
kernels, others by array code.
"""

from kofn.maps.gates import topk_gates
from kofn.maps.topk import hard_topk, soft_topk
from wheels.hub.router import layers

__all__ = ["hard_topk", "layers", "soft_topk", "topk_gates"]
