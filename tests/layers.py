"""The rooms of src/kofn, their floors, and what imports what: for a test and for a figure."""

import ast
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "kofn"

# From the ground up. Rooms on one line do not know each other.
FLOORS = (
    ("arrays",),
    ("links", "schedules"),
    ("solver", "kernels"),
    ("rows",),
    ("formulas",),
    ("operations",),
    ("adapters",),
    ("maps", "subsets", "classic"),
    ("distributions", "losses", "metrics", "streaming"),
    ("estimators", "distributed", "balance", "projections"),
    ("nn",),
    ("feature_selection", "onnx", "integrations"),
    ("commands",),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}


def modules(root):
    """The modules below a folder: name and file."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path, known):
    """Every module of kofn that a file names: at its top, in a function, or for types only.

    "kofn" itself is the face of all rooms: only the top floors may look at it from inside.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import, line {node.lineno}"
            if (node.module or "").partition(".")[0] == "kofn":
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                found |= {name if name in known else str(node.module) for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known:
            found.add(node.value)  # import_module("kofn.kernels.cpu.rows.launch")
    return found


def room_of(module):
    """ "kofn.links.table" stands in the room "links"; "kofn" itself in none."""
    return module.split(".")[1] if "." in module else None


def rooms_below(root):
    """The graph of rooms: every room, with the other rooms that its files import."""
    known = modules(root)
    graph = {}
    for name, path in known.items():
        if name != "kofn":
            targets = {room_of(target) for target in imports(path, known)}
            graph.setdefault(room_of(name), set()).update(targets - {None, room_of(name)})
    return graph


def longest_chain(root, room):
    """The longest list of files of a room of which each imports the next."""
    known = modules(root)
    inside = {name: path for name, path in known.items() if room_of(name) == room}
    below = {name: (imports(path, known) - {name}) & {*inside} for name, path in inside.items()}
    chains = {}

    def chain(name):
        if name not in chains:
            chains[name] = [name, *max(map(chain, below[name]), key=len, default=[])]
        return chains[name]

    return max(map(chain, inside), key=len, default=[])


def without_detours(graph):
    """The same graph less every arrow that a chain of other arrows implies."""

    def reached(room):
        return {room}.union(*(reached(below) for below in graph[room]))

    return {
        room: {b for b in below if not any(b in reached(other) for other in below - {b})}
        for room, below in graph.items()
    }
