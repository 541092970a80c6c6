"""The kernel that `python -m wheels.hub` makes of kofn's files, where it lies.

tests/release/kernel.py uses it in a process without kofn.
"""

import ast
import os
import subprocess
import sys
import tomllib

import pytest
import torch

import kofn
from places import TESTS
from release import kernel
from support import ONE_OF_EACH
from wheels.hub import files
from wheels.hub.__main__ import BACKENDS, STARTS, WITHOUT, main
from wheels.hub.router import layers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The kernel, made by the command."""
    made = tmp_path_factory.mktemp("hub") / "kofn-router"
    main([str(made)])
    return made


@pytest.fixture(scope="module")
def answers(folder):
    """Kofn's own answers by array code, beside the kernel."""
    torch.manual_seed(0)
    rows = [
        (2 * torch.randn(6, 16, dtype=dtype), torch.randn(8, 16, dtype=dtype) / 4)
        for dtype in (torch.float32, torch.float64)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KOFN_KERNELS", "reference")
        patch.setattr(kofn, "layers", layers, raising=False)
        expected = kernel.answers(kofn, rows, ONE_OF_EACH, torch)
    torch.save((rows, ONE_OF_EACH, expected), folder / "answers.pt")
    return rows, expected


def where_it_lies(folder, task, **environment):
    program = [sys.executable, TESTS / "release" / "kernel.py", folder, task]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def sources(folder):
    return [*(folder / "torch-ext").rglob("*.py")]


def test_a_kernel_imports_its_own_files_torch_and_the_standard_library(folder):
    own, outside = 0, set()
    for path in sources(folder):
        for each in files._imports(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(each.node, ast.ImportFrom) and each.node.level:
                own += 1
            elif not each.of_types:
                outside |= {name.partition(".")[0] for name in files.modules_of(each.node)}
    assert own > 500
    assert outside - {*sys.stdlib_module_names} == {"torch", "triton"}


def test_what_a_kernel_imports_at_once_lies_there(folder):
    """What does not is imported in functions alone, and was meant to be left out."""
    root = folder / "torch-ext" / "kofn_router"
    missing = set()
    for path in sources(folder):
        for each in files._imports(ast.parse(path.read_text(encoding="utf-8"))):
            node = each.node
            if each.of_types or not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            place = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            there = place.is_dir() or place.with_suffix(".py").is_file()
            if not there:
                assert each.later, (path, ast.unparse(node))
                missing.add("kofn." + ".".join(place.relative_to(root).parts))
    assert missing
    assert all(f"{name}.".startswith(tuple(f"{each}." for each in WITHOUT)) for name in missing)


def test_the_kernel_has_no_more_files_than_it_needs(folder):
    """Beside a file of each link."""
    files = [path for path in sources(folder) if path.parent.name != "built_in"]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert len(files) <= 140
    assert lines <= 18_000


def test_a_file_that_is_left_out_may_not_be_imported_at_once():
    with pytest.raises(ImportError, match=r"imports kofn\.solver\.\w+ at its top"):
        files.closure(STARTS, ("kofn.solver",))


def test_the_settings_are_those_that_kernel_builder_takes(folder):
    settings = tomllib.loads((folder / "build.toml").read_text(encoding="utf-8"))
    assert settings["torch-noarch"] == {}
    assert settings["general"] == {
        "name": "kofn-router",
        "version": 0,
        "edition": 5,
        "license": "apache-2.0",
        "backends": [*BACKENDS],
        "hub": {"repo-id": "kofn/kofn-router"},
    }
    assert {path.name for path in folder.iterdir()} >= {"CARD.md", "LICENSE", "flake.nix"}


def test_layers_answer_as_the_router_of_nn_does(answers):
    rows, _ = answers
    for x, weight in rows:
        for layer, normalize in ((layers.TopKRouter, True), (layers.SharesTopKRouter, False)):
            router = kofn.nn.TopKRouter(16, 8, 2, normalize=normalize, dtype=x.dtype)
            router.load_state_dict({"weight": weight}, strict=False)
            given = x.clone().requires_grad_()
            expected = router(given)
            back = torch.autograd.grad((expected[1] * x[:, :2]).sum(), (given, router.weight))
            found = kernel.routed(layer.forward, x, weight, torch)
            for each, wanted in zip(found, (*expected, *back), strict=True):
                torch.testing.assert_close(each, wanted)


def test_two_versions_answer_as_kofn_does_without_kofn_and_numpy(folder, answers):
    where_it_lies(folder, "side_by_side")


@pytest.mark.extras
def test_the_library_of_the_hub_loads_it(folder, answers):
    pytest.importorskip("kernels")
    where_it_lies(folder, "by_kernels", **os.environ)


@pytest.mark.full
def test_a_kernel_is_compiled_whole(folder, answers):
    where_it_lies(folder, "compiled")


@pytest.mark.full
def test_triton_runs_the_kernels_of_the_folder(folder, answers):
    pytest.importorskip("triton")
    where_it_lies(folder, "interpreted", TRITON_INTERPRET="1")
