"""The house has floors: an import goes to the same room or to one below it, wherever it stands."""

import graphlib
import importlib.util
import re

import pytest

from layers import (
    LEVEL,
    SOURCES,
    imports,
    longest_chain,
    modules,
    room_of,
    rooms_below,
    without_detours,
)
from places import ROOT, TESTS
from repeated_on_jax import EDGES, REPEATED

FLAT = {"__init__", "__main__", "balance", "classic", "onnx", "schedules"}


def check_no_circle(root):
    known = modules(root)
    graph = {name: imports(path, known) - {name} for name, path in known.items() if name != "kofn"}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the circle


def check_floors(root):
    known = modules(root)
    for name, path in known.items():
        if name == "kofn":
            continue
        room = name.split(".")[1]
        assert room in LEVEL, f"{name}: the room {room!r} has no floor in FLOORS"
        for target in imports(path, known):
            if target == "kofn":
                assert LEVEL[room] >= LEVEL["feature_selection"], f"{name} imports kofn itself"
                continue
            other = target.split(".")[1]
            below = other == room or LEVEL[other] < LEVEL[room]
            assert below, f"{name} ({room}) imports {target} ({other}), which is not below it"


def test_no_file_imports_itself_by_a_detour():
    check_no_circle(SOURCES)


def test_imports_go_down():
    check_floors(SOURCES)


@pytest.mark.parametrize("room", [room for room in LEVEL if (SOURCES / room).is_dir()])
def test_few_files_of_a_room_stand_on_each_other(room):
    """Who follows the imports of a file reads so many files of its room."""
    chain = longest_chain(SOURCES, room)
    print(f"{room}: {len(chain)}:", " > ".join(name.rpartition(".")[2] for name in chain))
    assert len(chain) <= {"kernels": 12, "nn": 9}.get(room, 8)


def test_no_folder_has_more_than_20_files():
    folders = [folder for folder in SOURCES.rglob("*") if folder.is_dir()]
    assert [folder for folder in folders if len([*folder.glob("*.py")]) > 20] == []


def test_no_file_has_more_than_400_lines():
    files = [*SOURCES.rglob("*.py")]
    assert [path for path in files if path.read_text("utf-8").count("\n") > 400] == []


def test_few_files_stand_outside_of_a_room():
    assert {path.stem for path in SOURCES.glob("*.py")} == FLAT


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("from kofn.maps.topk import soft_topk", AssertionError),
        ("def f():\n    from kofn.rows import given", AssertionError),
        ("from importlib import import_module; import_module('kofn.rows.given')", AssertionError),
        ("from . import table", AssertionError),
        ("from kofn.links import table", None),
    ],
)
def test_the_check_sees_an_import_that_goes_up(tmp_path, line, error):
    root = tmp_path / "kofn"
    files = {"links/table.py": "", "links/link.py": line, "rows/given.py": "", "maps/topk.py": ""}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    if error is None:
        check_floors(root)
    else:
        with pytest.raises(error):
            check_floors(root)


def test_the_check_sees_a_room_without_a_floor_and_a_circle(tmp_path):
    root = tmp_path / "kofn"
    (root / "attic").mkdir(parents=True)
    (root / "attic" / "a.py").write_text("from kofn.attic import b")
    (root / "attic" / "b.py").write_text("def f():\n    from kofn.attic import a")
    with pytest.raises(AssertionError, match="attic"):
        check_floors(root)
    with pytest.raises(graphlib.CycleError):
        check_no_circle(root)


# Not of one room.
HOUSE = {"docs", "examples", "faults", "gpu", "layers", "package", "readme", "studies", "zoo"}


def test_tests_are_named_after_rooms():
    named = {path.stem.split("_", 1)[1] for path in TESTS.rglob("test_*.py")}
    rooms = {*LEVEL, *HOUSE}
    lost = {name for name in named if not any(f"{name}_".startswith(f"{r}_") for r in rooms)}
    assert not lost


def test_tests_lie_in_the_folder_of_their_room():
    """As the rooms lie in src/kofn: test_classic.py in none, test_maps_topk.py in maps."""
    several = {"docs": {"docs", "examples", "readme"}, "package": {"package", "faults", "layers"}}
    for path in TESTS.rglob("test_*.py"):
        folder = path.relative_to(TESTS).parts[0].removesuffix(path.name)
        rooms = several.get(folder, {folder} if folder else FLAT)
        assert any(f"{path.stem}_".startswith(f"test_{room}_") for room in rooms), path


# Rooms below the public functions, and what tests of a public room look into nevertheless.
INNER = {room for room in LEVEL if LEVEL["solver"] <= LEVEL[room] < LEVEL["maps"]}
INNER |= {"streaming", "subsets"}
LOOKS_INTO = {
    "commands": {"kernels", "streaming"},
    "distributed": {"adapters", "formulas", "operations", "rows"},
    "distributions": {"subsets"},
}


def test_tests_look_into_their_own_room_and_below_it():
    known = modules(SOURCES)
    for path in TESTS.rglob("test_*.py"):
        room = max(
            (r for r in {*LEVEL, *HOUSE} if f"{path.stem}_".startswith(f"test_{r}_")), key=len
        )
        if room in ("gpu", "layers", "zoo"):
            continue
        for target in imports(path, known):
            other = room_of(target)
            if other not in INNER or target.count(".") < 2:
                continue
            below = room in INNER and LEVEL[other] <= LEVEL[room]
            assert below or other in LOOKS_INTO.get(room, ()), f"{path.name} imports {target}"


def test_the_figure_shows_every_room_and_every_arrow(tmp_path):
    path = ROOT / "docs" / "make_rooms_figure.py"
    spec = importlib.util.spec_from_file_location("make_rooms_figure", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert set(script.BOXES) == set(rooms_below(SOURCES)) == set(LEVEL)
    script.draw(tmp_path / "rooms.png")
    assert (tmp_path / "rooms.png").stat().st_size > 10_000


def test_contributing_lists_every_room_with_its_floor():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = {
        room.removesuffix(".py"): int(floor) - 1
        for floor, rooms in re.findall(r"^\| (\d+) \| (.*?) \|", text, re.MULTILINE)
        for room in re.findall(r"`([\w.]+)/?`", rooms)
    }
    assert listed == {room: level for room, level in LEVEL.items() if room != "__main__"}


def test_an_arrow_that_others_imply_is_left_out():
    graph = {"c": {"a", "b"}, "b": {"a"}, "a": set()}
    assert without_detours(graph) == {"c": {"b"}, "b": {"a"}, "a": set()}


def test_what_the_ordinary_run_leaves_out_on_jax_is_there():
    """Names would leave out nothing after a file or a test is renamed."""
    files = {path.stem: path.read_text() for path in TESTS.rglob("test_*.py")}
    assert [name for name in EDGES if name not in files] == []
    every = "\n".join(files.values())
    assert [name for name in REPEATED if f"def {name}(" not in every] == []
