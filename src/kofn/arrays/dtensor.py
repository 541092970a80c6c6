"""The test whether an array is a DTensor, which does not import PyTorch."""


def is_dtensor(x: object) -> bool:
    """Return whether `x` lies on the devices of a mesh of PyTorch, such as fully_shard makes."""
    return hasattr(x, "device_mesh")
