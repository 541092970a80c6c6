"""Draw the figures of the studies again, from what their runs measured: `make docs`.

The runs take minutes to half an hour (`make studies`). docs/results has the checkpoints of those
that the pages report. With one of them, `python -m studies.NAME --resume` has nothing left to
train; it writes the same tables and figures.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

HERE = Path(__file__).parent


class Study(NamedTuple):
    """How a study was run, and which of its files are figures of the documentation."""

    command: str
    figures: dict[str, str]


def methods(names: str) -> str:
    return " ".join(f"--method {name}" for name in names.split())


STUDIES = {
    "router": Study("studies.router", {"curves.png": "nn_router_study.png"}),
    "balance": Study("studies.balance --seeds 1", {}),  # only a table
    "attention": Study("studies.attention --steps 700", {"curves.png": "nn_attention_study.png"}),
    "choice": Study("studies.choice", {"curves.png": "choice.png"}),
    "losses": Study(
        "studies.losses --dataset digits --dataset mnist", {"curves.png": "losses.png"}
    ),
    "replay": Study("studies.replay", {"curves.png": "replay.png"}),
    "prune_mlp": Study("studies.prune --model mlp", {"curves.png": "nn_pruning.png"}),
    "prune_cnn": Study("studies.prune --model cnn", {"curves.png": "nn_pruning_cnn.png"}),
    "prune_units": Study(
        "studies.prune --model mlp --model cnn "
        + methods("single blocks channels channels-k")
        + " --removed 0.5 --removed 0.8 --removed 0.95 --steps 300 --seeds 5",
        {},  # only a table
    ),
    "sae": Study(
        "studies.sae "
        + methods("kofn-token kofn-batch topk topk-auxk batchtopk batchtopk-auxk jumprelu gated"),
        {
            "recovery.png": "nn_autoencoders_recovery.png",
            "features.png": "nn_autoencoders_features.png",
        },
    ),
    "sae_others": Study(
        "studies.sae "
        + methods(
            "kofn-token-all kofn-batch-annealed kofn-batch-learned kofn-batch-bf16 batchtopk-bf16"
        ),
        {},  # only a table
    ),
    "sae_signed": Study(
        "studies.sae " + methods("kofn-token-signed kofn-batch-signed abstopk"),
        {},  # only a table
    ),
    "sae_means": Study(
        "studies.sae --task mean-0 --task mean-3 --task mean-10 "
        + methods("topk topk-auxk kofn-token topk-initialized kofn-token-initialized")
        + " --steps 500 --seeds 5",
        {},  # only a table
    ),
}


def draw(name: str, images: Path) -> None:
    """Write the figures of a study."""
    study = STUDIES[name]
    with TemporaryDirectory() as folder:
        out = Path(folder)
        shutil.copy(HERE / "results" / f"{name}.pt", out / "checkpoint.pt")
        command = [sys.executable, "-m", *study.command.split(), "--resume", "--out", folder]
        subprocess.run(command, cwd=HERE.parent, check=True)
        for written, figure in study.figures.items():
            shutil.copy(out / written, images / figure)
            print(f"wrote {images / figure}")


def main() -> None:
    for name in STUDIES:
        draw(name, HERE / "images")


if __name__ == "__main__":
    main()
