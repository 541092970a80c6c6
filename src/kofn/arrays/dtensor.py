"""Whether an array is a DTensor, known without importing PyTorch."""


def is_dtensor(x: object) -> bool:
    """Return whether `x` lies on the devices of a mesh of PyTorch, such as fully_shard makes."""
    return hasattr(x, "device_mesh")
