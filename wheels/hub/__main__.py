"""Write the kernel `kofn-router` for the Kernel Hub: `python -m wheels.hub FOLDER`.

The folder is one that kernel-builder takes (`build.toml`, `torch-ext`). It has already what that
would build, for no code here needs a compiler: `kernels.get_local_kernel(FOLDER)` loads it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wheels.hub.files import ROOT, closure, place_of, rewritten

NAME = "kofn-router"
BACKENDS = ("cpu", "cuda")
STARTS = ["wheels.hub.router", "wheels.hub.router.absent", "kofn.kernels.gpu.rows.launch"]
"""The first imports the maps and layers; the others are imported by name, or by rewritten files."""
WITHOUT = (
    # kernels of CPUs, which Numba or a library of machine code has
    *(f"kofn.kernels.cpu.{each}" for each in ("check", "compiler", "runtime")),
    "kofn.kernels.gpu.rows.answers",
    "kofn.kernels.gpu.rows.losses",
    "kofn.kernels.gpu.rows.margins",
    "kofn.rows.segments.choice",
    # rows in several processes, which a kernel's operators have no rules for
    "kofn.adapters.shards",
    # other frameworks
    *(
        "kofn.formulas.tangents",
        "kofn.formulas.log_tangents",
        "kofn.adapters.jax",
        "kofn.arrays.jax",
        "kofn.rows.jax_compiled",
        "kofn.arrays.numpy_special",
    ),
)
"""Modules without which a kernel for tensors does."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(
        prog="python -m wheels.hub", description="Make a folder for the Kernel Hub."
    )
    parser.add_argument("folder", type=Path, help="a new folder, or one that this has made before")
    parser.add_argument("--owner", default="kofn", help="of the repository on the Hub; kofn")
    chosen = parser.parse_args(arguments)
    made = write(chosen.folder, chosen.owner)
    lines = sum(text.count("\n") for text in made.values())
    print(f"{chosen.folder}: {len(made)} files of Python with {lines:,} lines")


def write(folder: Path, owner: str = "kofn") -> dict[Path, str]:
    """Write the folder, and return the package's files by their places in it."""
    files = {place_of(each): rewritten(each) for each in closure(STARTS, WITHOUT)}
    python = NAME.replace("-", "_")
    settings = _settings(owner)
    general = tomllib.loads(settings)["general"]
    for old in ("build", "torch-ext"):
        shutil.rmtree(folder / old, ignore_errors=True)
    _put(folder / "torch-ext" / python, files)
    for backend in BACKENDS:
        there = folder / "build" / f"torch-{backend}"
        _put(there, files)
        metadata = _metadata(general, backend, files)
        (there / "metadata.json").write_text(
            json.dumps(metadata, indent=2) + "\n", encoding="utf-8"
        )
    (folder / "build.toml").write_text(settings, encoding="utf-8")
    for name, text in _OTHERS.items():
        (folder / name).write_text(text.format(owner=owner, **general), encoding="utf-8")
    shutil.copy(ROOT / "LICENSE", folder)
    return files


def _put(folder: Path, files: dict[Path, str]) -> None:
    for place, text in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8")


def _settings(owner: str) -> str:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    licence = tomllib.loads(text)["project"]["license"].lower()
    backends = ", ".join(f'"{each}"' for each in BACKENDS)
    return f"""\
[general]
name = "{NAME}"
version = 0
edition = 5
license = "{licence}"
backends = [{backends}]

[general.hub]
repo-id = "{owner}/{NAME}"

[torch-noarch]
"""


def _metadata(general: dict[str, Any], backend: str, files: dict[Path, str]) -> dict[str, Any]:
    """Return what says which kernel this is; its id, by what the files say, is its module's name.

    So two versions can be loaded side by side, and the operators of each have names of their own.
    """
    told = hashlib.sha256("".join(files.values()).encode()).hexdigest()[:10]
    return {
        "id": re.sub(r"\W", "_", f"_{NAME}_{backend}_{told}"),
        "name": NAME,
        "version": general["version"],
        "license": general["license"],
        "python-depends": [],
        "backend": {"type": backend},
    }


_OTHERS = {
    "flake.nix": """\
{{
  inputs.kernel-builder.url = "github:huggingface/kernels";
  outputs = {{ self, kernel-builder, ... }}:
    kernel-builder.lib.genKernelFlakeOutputs {{ inherit self; path = ./.; }};
}}
""",
    "CARD.md": """\
---
library_name: kernels
license: {license}
---

Gates of routers for mixtures of experts: each token's k largest scores, with a gradient for every
score, chosen or not. Made of [kofn](https://pypi.org/project/kofn) by `python -m wheels.hub`.

```python
from kernels import get_kernel

router = get_kernel("{owner}/{name}", version=0)
gates, indices = router.topk_gates(scores, 2)
```

Functions: `topk_gates`, `soft_topk`, `hard_topk`; kofn's documentation describes them. Layers:
`TopKRouter`, `SharesTopKRouter`, for routers that have `weight` and `top_k`. Rows in the memory of
an NVIDIA GPU (float32 and less) are computed by Triton's kernels, others by array code, slower than
the compiled code of the Python package. It needs Python 3.11 or later, and PyTorch.
""",
}


if __name__ == "__main__":
    main()
