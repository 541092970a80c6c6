"""What hatchling does when it builds a wheel: it adds the library of the platform.

The environment variable KOFN_PLATFORM names another platform than this machine's, or is "none" for
a wheel without a library, which runs anywhere. The library has code for every level of processors,
or, where pip installs from a checkout or an address, for this machine's own alone, in a third of
the time: KOFN_LEVELS, "all" or "own", says it otherwise. On a lesser processor than that, kofn says
at the first call that its library does not serve, and answers by Numba or array code. With
KOFN_HANDLER=none the library lacks the handler that JAX's programs call, and jaxlib is not needed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NEEDED = ("numba>=0.62,<0.69",)
"""What compiles kernels: Numba, up to the last release that is known."""
OF_HANDLER = "jaxlib>=0.7"
"""What has XLA's header."""
ZIG = "ziglang>=0.14"
"""What links them where there is no C compiler."""


class Library(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the library, and says in the wheel's name for which platform it is."""

    def dependencies(self) -> list[str]:
        """Return what compiles the library, where it can be installed."""
        self._find_wheels()
        from wheels.platforms import c_compiler, can_compile

        if self.target_name != "wheel" or not can_compile():
            return []
        needed = [*NEEDED, OF_HANDLER] if self._has_handler() else [*NEEDED]
        return needed if c_compiler() else [*needed, ZIG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the library; of an editable installation, `make library` does."""
        if version == "editable" or self.target_name != "wheel":
            return
        self._find_wheels()
        from wheels.platforms import PLATFORMS, own

        wanted = os.environ.get("KOFN_PLATFORM")
        name = wanted or own()
        if name is None or name == "none":
            return
        if name not in PLATFORMS:
            allowed = ", ".join(map(repr, PLATFORMS))
            raise ValueError(f"KOFN_PLATFORM must be one of {allowed}, or 'none'; got {name!r}")
        platform, all_levels = PLATFORMS[name], self._all_levels(wanted)
        made = Path(self.root, "build", "libraries", name, platform.library)
        try:
            from wheels.library import build, is_portable, own_levels

            levels, tell = None if all_levels else own_levels(name), self.app.display_info
            build(name, made, levels, tell=tell, handler=self._has_handler())
        except Exception as error:  # of the compiler, of Numba, of a full disk
            if wanted:
                raise
            # Whoever installs kofn from its sources gets it, and is told at the first call.
            self.app.display_warning(f"kofn is built without its library of kernels: {error!r}")
            return
        build_data["force_include"][str(made)] = f"kofn/kernels/cpu/{platform.library}"
        build_data["pure_python"] = False
        tags = platform.tags if is_portable() and all_levels else platform.local_tag
        build_data["tag"] = f"py3-none-{tags}"

    def _all_levels(self, wanted: str | None) -> bool:
        chosen = os.environ.get("KOFN_LEVELS")
        if chosen not in (None, "", "all", "own"):
            raise ValueError(f"KOFN_LEVELS must be 'all' or 'own', got {chosen!r}")
        # pip sets this variable while it builds what it installs; `python -m build` does not.
        return chosen == "all" or not (chosen or ("PIP_BUILD_TRACKER" in os.environ and not wanted))

    def _has_handler(self) -> bool:
        chosen = os.environ.get("KOFN_HANDLER")
        if chosen not in (None, "", "xla", "none"):
            raise ValueError(f"KOFN_HANDLER must be 'xla' or 'none', got {chosen!r}")
        return chosen != "none"

    def _find_wheels(self) -> None:
        for path in (self.root, str(Path(self.root, "src"))):
            if path not in sys.path:
                sys.path.insert(0, path)
