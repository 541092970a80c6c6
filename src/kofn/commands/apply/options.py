"""The options of `kofn apply`: which go together, and what they say to do with a row."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kofn.commands import files
from kofn.commands.files import InputError
from kofn.commands.options import check_softness, one_of
from kofn.commands.terminal import prepare_kernels

if TYPE_CHECKING:
    import numpy as np

    from kofn.commands.apply.by_blocks import Job

DTYPES = ("float16", "float32", "float64")
HARD_DTYPES = (*DTYPES, "bool", "uint8")


@dataclass(frozen=True)
class Options:
    """Options of a call. The temperature is the `value` of the `measure`, or follows from it."""

    k: float
    map: str
    alpha: float | None
    measure: str
    value: float
    hard: bool
    dtype: str | None
    threshold_only: bool
    out: Path | None
    force: bool
    resume: bool
    as_json: bool

    def check(self) -> None:
        """Raise InputError where options are wrong, or do not go together."""
        self._check_dtype()
        self._check_combination()
        if self.out is not None:  # --resume checks more about the file that is there
            _check_file(self.out, self.force or self.resume)
        if self.alpha is not None and not 1 <= self.alpha < math.inf:
            raise InputError(f"--alpha must be a finite number ≥ 1; got {self.alpha:g}")

    def _check_dtype(self) -> None:
        if self.dtype is None or self.dtype in DTYPES:
            return
        one_of("dtype", self.dtype, HARD_DTYPES if self.hard else DTYPES)
        if self.k % 1:
            raise InputError(f"--dtype {self.dtype} needs a whole k; got {self.k:g}")

    def _check_combination(self) -> None:
        if self.threshold_only:
            for name in ("out", "resume", "hard", "dtype"):
                if getattr(self, name):
                    raise InputError(
                        f"--threshold-only prints thresholds; it cannot be combined with --{name}"
                    )
        elif self.as_json and self.out is None:
            raise InputError(
                "--json describes a file or thresholds; add --out FILE or --threshold-only"
            )
        if self.resume and self.out is None:
            raise InputError("--resume needs --out, the file that was to be written")
        if self.resume and self.force:
            raise InputError(
                "--resume continues the interrupted run, --force starts anew; give only one of them"
            )

    def opened(
        self, source: str, beside: Sequence[str] = ()
    ) -> AbstractContextManager[files.Outputs]:
        """Return the file of --out, for weights of the scores that `source` names."""
        out = self.out
        assert out is not None
        may = self.force or self.resume
        return files.opened(out.parent, [out.name], may, option=out, source=source, beside=beside)

    def job(self, rows: np.ndarray | None) -> Job:
        """Return what to do with rows; those given tell the temperature, if it is not given."""
        import kofn
        from kofn.commands.apply.by_blocks import Job
        from kofn.commands.compare.maps import named

        if self.hard:
            return Job(self.k, 1.0, None, True, partial(kofn.hard_topk, k=self.k), no_thresholds)
        prepare_kernels()
        chosen, t = named(self.map, self.k, self.alpha), self.value
        if self.measure != "temperature":
            assert rows is not None
            check_softness(rows, self.k, self.measure, self.value)
            t = chosen.temperature(rows.astype("float64"), self.k, self.measure, self.value)
        link = chosen.link if self.alpha is None else kofn.links.entmax(self.alpha)
        if link is None:
            weigh = chosen.weights
            return Job(self.k, t, None, False, lambda x: weigh(x, self.k, t), no_thresholds)
        from kofn.links import table

        solve = partial(kofn.soft_topk_threshold, k=self.k, link=link, temperature=t)
        weights = partial(kofn.soft_topk, k=self.k, link=link, temperature=t)
        return Job(self.k, t, table.resolve(link), False, weights, solve)

    def about(self) -> dict[str, Any]:
        """Return the options, for JSON."""
        soft = {"map": self.map, "alpha": self.alpha, self.measure: self.value}
        return {"k": self.k, "hard": self.hard} | ({} if self.hard else soft)


def no_thresholds(_: Any) -> Any:
    """Raise InputError: only soft_topk has thresholds."""
    raise InputError("--threshold-only needs soft_topk: --map with the name of a link")


def given_k(k: float | None, map_: str | None) -> float:
    """Return k; InputError if it is not given, unless the map always chooses one."""
    if k is not None:
        return k
    if map_ is not None:
        from kofn.commands.compare.maps import chooses_one

        if chooses_one(map_):
            return 1.0
    raise InputError("-k is missing; give the number of entries to choose from each row")


def check_hard(**soft: object) -> None:
    """Raise InputError if an option of soft choices was given."""
    for name, value in soft.items():
        if value is not None:
            raise InputError(
                f"--hard gives weights of 0 and 1; it cannot be combined with --{name}"
            )


def _check_file(out: Path, force: bool) -> None:
    if os.path.isdir(out):  # unlike Path.is_dir, it accepts a name that is too long
        raise InputError(f"--out {out} is a directory; give a .csv or .npy file")
    if out.suffix not in ("", ".csv", ".npy"):
        raise InputError(f"--out must end in .csv or .npy; got {out}")
    files.check_out(out.parent, [out.name], force)
    if not os.path.exists(out.parent):
        raise InputError(
            f"--out {files.shortened(out)} cannot be written: there is no folder "
            f"{files.shortened(out.parent)}"
        )
