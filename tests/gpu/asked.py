"""Which device the tests run on, by the environment."""

import os

WANTED = os.environ.get("KOFN_GPU", "cuda")
REHEARSED = WANTED == "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
