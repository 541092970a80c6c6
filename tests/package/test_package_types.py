"""Types of public signatures, as a user's type checker sees them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kofn
import names_written
import signatures
from places import TESTS

TYPED = TESTS / "typed"
USERS, STRICT = TYPED / "users.py", TYPED / "strict.py"


def of_unknown_words():
    """A call of every public function with a word that it does not take, a line each."""
    imports = [f"import {module}\n" for module in signatures.MODULES]
    of_others = "**options: "  # it takes those of others, too
    calls = [
        f"{whole}(*anything, zzz=1)\n"
        for function, whole in signatures.functions().items()
        if of_others not in (function.__doc__ or "")
    ]
    head = ["from typing import Any\n", *imports, "anything: list[Any] = []\n"]
    return head, calls


@pytest.mark.full  # mypy reads PyTorch and JAX: most of a minute without its cache
def test_mypy_knows_the_kind_that_comes_back_and_refuses_wrong_names(tmp_path):
    pytest.importorskip("mypy")
    words = tmp_path / "words.py"
    head, calls = of_unknown_words()
    words.write_text("".join(head + calls), encoding="utf-8")
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports"),
            *map(str, (USERS, STRICT, words)),
        ],
        capture_output=True,
        text=True,
        env={"MYPYPATH": str(Path(kofn.__file__).parent.parent), "PATH": ""},
    )
    assert "strict.py" not in checked.stdout, checked.stdout  # it has parameters of modules, too
    refused = {int(n) for n in re.findall(r"users\.py:(\d+): error", checked.stdout)}
    lines = USERS.read_text(encoding="utf-8").splitlines()
    wrong = {n for n, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert refused == wrong, checked.stdout + checked.stderr
    refused = {int(n) for n in re.findall(r"words\.py:(\d+): error", checked.stdout)}
    accepted = [call for n, call in enumerate(calls, len(head) + 1) if n not in refused]
    assert not accepted


def test_names_of_types_are_those_that_run():
    from typing import get_args

    from kofn.arrays.typing import LinkName, NoiseName
    from kofn.maps.perturbed import GUMBEL, NOISES

    assert set(get_args(LinkName)) == set(kofn.links.TABLE)
    assert set(get_args(NoiseName)) == {*NOISES, GUMBEL}


def test_names_are_those_of_their_files():
    for path, text in names_written.written().items():
        assert path.read_text(encoding="utf-8") == text, "run: make signatures"


def test_dir_shows_what_there_is_to_use():
    assert set(dir(kofn)) == {*kofn.__all__, *kofn._ROOMS, "__version__"}
    assert all(hasattr(kofn, name) for name in dir(kofn))
