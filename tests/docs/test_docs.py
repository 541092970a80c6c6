"""The pages of docs/: their code runs as pasted and prints what it says it prints."""

import re

import pytest

from layers import LEVEL
from test_readme import ROOT, Block, assert_prints, blocks, run

DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(DOCS.rglob("*.md"))
}

# Packages that continuous integration does not install.
EXTRAS = re.compile(
    r"^ *(?:import|from) [\w.]*"
    r"\b(?:transformers|jaxopt|optax|ott|softtorch|saelens|torch_geometric)\b",
    re.MULTILINE,
)


@pytest.mark.usefixtures("own_warnings")
@pytest.mark.parametrize(
    ("name", "block"),
    [
        pytest.param(
            name,
            block,
            id=f"{name} line {block.line}",
            marks=[pytest.mark.extras] * bool(EXTRAS.search(block.code))
            # The export takes ten seconds, and has tests of its own.
            + [pytest.mark.full] * ("onnxruntime" in block.code),
        )
        for name, page in PAGES.items()
        for block in blocks(page)
    ],
)
def test_block_prints_what_it_says(name: str, block: Block, monkeypatch) -> None:
    if "import softtorch" in block.code:
        pytest.importorskip("softtorch")  # it needs Python 3.12
    if "links.ScalarLink" in block.code:  # Numba compiles one for ten seconds; kernels have tests
        monkeypatch.setenv("KOFN_KERNELS", "reference")
    for promise, printed in run(block):
        assert_prints(printed, promise)


@pytest.fixture
def own_warnings():
    """A block may silence warnings, for itself alone."""
    import warnings

    with warnings.catch_warnings():
        yield


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)[)#]", PAGES[name])
    folder = (DOCS / name).parent
    assert [target for target in targets if not (folder / target).exists()] == []


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


FRONT = {
    name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md")
}


@pytest.mark.parametrize(
    ("folder", "name"), [*(("docs", name) for name in PAGES), *(("", name) for name in FRONT)]
)
def test_anchors_exist(folder: str, name: str) -> None:
    page = PAGES[name] if folder else FRONT[name]
    beside = (ROOT / folder / name).parent
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page):
        text = (beside / target).read_text(encoding="utf-8") if target else page
        assert anchor in anchors(text), f"{name}: {target}#{anchor}"


def cells(line: str) -> int:
    """How many cells a line of a table has: any bar ends one, within code too, but for `\\|`."""
    return line.replace(r"\|", "").strip().strip("|").count("|") + 1


@pytest.mark.parametrize(
    ("folder", "name"), [*(("docs", name) for name in PAGES), *(("", name) for name in FRONT)]
)
def test_lines_of_a_table_have_as_many_cells_as_its_head(folder: str, name: str) -> None:
    """A table whose head is shorter or longer than the line below it is shown as text."""
    page = re.sub(
        r"^ *```.*?^ *```$", "", PAGES[name] if folder else FRONT[name], flags=re.S | re.M
    )
    for table in re.findall(r"(?:^ *\|.*\n)+", page, re.MULTILINE):
        assert len({cells(line) for line in table.splitlines()}) == 1, table


def test_commands_print_what_the_page_says(tmp_path, monkeypatch) -> None:
    from typer.testing import CliRunner

    from kofn.commands import app

    monkeypatch.chdir(tmp_path)
    console = re.findall(r"^```console\n(.*?)^```$", PAGES["commands.md"], re.S | re.M)
    found = re.findall(
        r"^\$ echo \"(.*)\" \| kofn (.*)\n((?:[^$].*\n|\n)*)", "".join(console), re.M
    )
    assert len(found) == 2
    for sent, arguments, promise in found:
        printed = CliRunner().invoke(app.app, arguments.split(), input=sent).stdout
        shown = " ".join(printed.split()[: len(promise.split())])  # the page may stop early
        assert_prints(shown, promise)


def test_pages_that_the_code_names_exist() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("src/**/*.py"))
    assert set(re.findall(r"docs/(\w+\.md)", code)) - set(PAGES) == set()


def test_the_kernels_readme_lists_their_files() -> None:
    kernels = ROOT / "src" / "kofn" / "kernels"
    rows = [
        re.findall(r"`([\w/]+\.(?:py|c))`", row.split("|")[1])
        for row in re.findall(r"^\|.*$", (kernels / "README.md").read_text(encoding="utf-8"), re.M)
    ]
    # A name without a folder is in the folder of the name before it.
    listed = {
        kernels / row[0].rpartition("/")[0] / name if "/" not in name else kernels / name
        for row in rows
        for name in row
    }
    files = {path for kind in ("*.py", "*.c") for path in kernels.rglob(kind)}
    files = {path for path in files if path.name != "__init__.py"}
    assert {str(path.relative_to(kernels)) for path in files - listed} == set()
    assert [str(path) for path in listed if not path.exists()] == []


def test_the_tests_that_pages_name_exist() -> None:
    kernels = (ROOT / "src" / "kofn" / "kernels" / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", "".join([*PAGES.values(), *FRONT.values(), kernels])))
    code = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*.py"))
    assert sorted(named - set(re.findall(r"def (test_\w+)\(", code))) == []


# Pages about the whole library; every other page is named after a room of src/kofn.
GENERAL = {
    *("README", "guide", "behaviour", "names", "speed", "scale", "glossary", "explorer"),
    *("from_the_articles", "errata", "sources", "mathematics", "properties"),
    *("benchmarks", "studies", "platforms"),
}


def test_pages_are_named_after_rooms() -> None:
    stems = {name.removesuffix(".md") for name in PAGES if "/" not in name} - GENERAL
    assert [s for s in stems if not any(f"{s}_".startswith(f"{room}_") for room in LEVEL)] == []


@pytest.mark.parametrize("folder", ["", "guides/", "coming_from/"])
def test_the_index_lists_every_page(folder: str) -> None:
    listed = set(re.findall(r"\]\(((?!README)\w+\.md)\)", PAGES[f"{folder}README.md"]))
    beside = {name for name in PAGES if name.rpartition("/")[0] == folder.rstrip("/")}
    assert {f"{folder}{name}" for name in listed} == beside - {f"{folder}README.md"}
