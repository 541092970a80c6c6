"""The site that `make site` builds: its reference, its links, its formulas and figures."""

from __future__ import annotations

import importlib
import io
import re
import sys

import numpy as np
import pytest

import kofn
from test_docs import DOCS, PAGES
from test_readme import ROOT

sys.path.insert(0, str(DOCS / "site"))

import check
import reference
import repository

OPTIONAL = ("kofn.integrations.", "kofn.onnx")  # need other libraries
PUBLIC = {
    f"{module}.{name}"
    for module in ("kofn", *reference.modules())
    if not module.startswith(OPTIONAL)
    for name in importlib.import_module(module).__all__
}
MODULES = {f"kofn.{name}" for name in reference.MODULES}


def test_all_pages_are_plain_markdown_in_one_folder() -> None:
    pytest.importorskip("PIL")
    import pages

    every = pages.every()
    assert set(PAGES) | {page.place for page in reference.pages()} <= set(every)
    assert every["README.md"].startswith("---\nhide: [navigation]\n---\n\n# kofn")
    listed = re.findall(r"[\w/]+\.md", repr(pages.navigation()))
    assert len(listed) == len(set(listed))
    assert set(every) - set(listed) == {p for p in every if p.startswith("repository/")}


def test_pages_to_use_are_in_groups_that_can_be_read_at_a_glance() -> None:
    pytest.importorskip("PIL")
    import pages

    use = {title: entries for part in pages.navigation() for title, entries in part.items()}
    groups = {title: entries for group in use["Use it"] for title, entries in group.items()}
    assert len(groups) > 4
    assert all(1 < len(entries) < 9 for entries in groups.values()), groups
    index = PAGES["README.md"]
    assert index.index("```python") < index.index("## Install") < index.index("## Try it")


def test_captions_say_what_a_figure_shows() -> None:
    """Not how it was made, which benchmarks.md says."""
    made = re.compile(r"^!\[.*\n\n\*(?:Drawn|Made|`(?:make|python) ).*", re.MULTILINE)
    found = {name: made.findall(page) for name, page in PAGES.items()}
    assert {name: captions for name, captions in found.items() if captions} == {}


def test_terms_of_the_articles_are_in_chinese_first() -> None:
    table = PAGES["from_the_articles.md"].partition("## By name")[2].partition("\n## ")[0]
    terms = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)[2:]
    chinese = [bool(re.match("[\u4e00-\u9fff]", term)) for term in terms]
    assert sum(chinese) > 8
    assert chinese == sorted(chinese, reverse=True)
    assert {"稀疏", "待定常数", "迭代构造", "温度"} < {term.partition(",")[0] for term in terms}


def test_names_lead_to_the_reference_where_they_are_kofns() -> None:
    pytest.importorskip("PIL")
    pytest.importorskip("latex2mathml")
    import finish

    row = "<tr><td><code>topk</code></td><td><code>kofn.topk</code> <code>other</code></td></tr>"
    link = '<a class="name" href="../reference/kofn_'
    theirs = finish.finished(f"<pre><code>topk</code></pre>{row}", "coming_from/a.html")
    assert theirs.count(link) == 1
    assert finish.finished(row, "guides/a.html").count(link) == 2
    assert finish.finished(row, "reference/a.html") == row
    assert '#kofn.topk"><code>kofn.topk</code></a>' in theirs


def test_every_public_name_is_in_the_reference() -> None:
    assert PUBLIC - MODULES - set(reference.home()) == set()
    text = {page.place: page.text for page in reference.pages()}
    for name, place in reference.home().items():
        assert f"::: {name}\n" in text[place] or f"{{ #{name} }}" in text[place], name


def test_every_public_module_is_in_the_reference() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "kofn").glob("*/__init__.py")}
    named = {room for room in rooms if reference.names(f"kofn.{room}")}
    assert named - {name.removeprefix("kofn.") for name in reference.modules()} == set()
    assert {f"kofn.{name}" for name in kofn.__all__} & MODULES <= set(reference.modules())


def test_the_groups_are_those_of_the_package() -> None:
    groups = reference.groups("kofn")
    assert [name for _, names in groups for name in names] == kofn.__all__
    assert all(group.title for group in groups)


def test_links_to_sources_lead_to_pages_of_the_site() -> None:
    pages = repository.pages(PAGES)
    assert "repository/CONTRIBUTING.md" in pages
    assert "repository/examples/gates.py.md" in pages
    for place in pages:
        assert (ROOT / repository.origin(place)).is_file()
    text = "[a](../examples/gates.py) [b](maps.md#x) `[c](../d)`\n```\n[e](../README.md)\n```\n"
    assert repository.rewritten(text, "guides/prune.md").startswith("[a](../examples/gates.py)")
    turned = repository.rewritten(text.replace("../", "../../", 1), "guides/prune.md")
    assert turned.startswith("[a](../repository/examples/gates.py.md) [b](maps.md#x)")
    assert turned.endswith("```\n[e](../README.md)\n```\n")
    named = repository.rewritten("[links.md](../links.md#a) [x.md](#y)", "guides/prune.md")
    assert named == "[Links](../links.md#a) [x.md](#y)"
    back = repository.rewritten("[maps](docs/maps.md#a)", "repository/CONTRIBUTING.md")
    assert back == "[maps](../maps.md#a)"


def test_figures_have_dark_versions_that_keep_their_hues(tmp_path) -> None:
    Image = pytest.importorskip("PIL.Image")
    import figures

    colours = np.array([[[255, 255, 255], [0, 0, 0], [0, 114, 178], [213, 94, 0]]], np.uint8)
    Image.fromarray(colours).save(tmp_path / "four.png")
    turned = np.asarray(Image.open(io.BytesIO(figures.dark(tmp_path / "four.png"))))[0]
    white, black, blue, red = turned.astype(int)
    assert white.max() < 50
    assert black.min() > 220
    assert blue.argmax() == 2
    assert red.argmax() == 0
    assert min(blue.max(), red.max()) > 120
    assert figures.both('<img alt="A" src="images/a.png">').count("<img") == 2


def test_formulas_become_mathml() -> None:
    pytest.importorskip("latex2mathml")
    import formulas

    drawn = formulas.drawn(r'<p><span class="arithmatex">\(x \lt 1\)</span></p>')
    assert "<math" in drawn
    assert "arithmatex" not in drawn
    assert formulas.said(r"a \(x &lt; \alpha\) b") == "a x&lt;α b"
    theta = formulas.drawn(r'<span class="arithmatex">\(\theta\)</span>')
    assert '<mi mathvariant="normal">&#x003B8;</mi>' in theta  # the italic one looks like θ̂
    block = formulas.drawn(r'<div class="arithmatex">\[\max_p \log(x) \to \infty\]</div>')
    assert 'display="block"' in block
    assert '<mo lspace="0.167em" rspace="0">log</mo><mo' in block
    assert "<mi>&#x0221E;</mi>" in block


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if "$" in page])
def test_every_formula_of_a_page_has_a_shape(name: str) -> None:
    pytest.importorskip("latex2mathml")
    import formulas

    page = re.sub(r"^```(?!math).*?^```$", "", PAGES[name], flags=re.S | re.M)
    found = re.findall(r"^```math\n(.*?)^```$|(?<![`$])\$([^$\n]+)\$", page, re.S | re.M)
    for block, inline in found:
        formulas.drawn(rf'<div class="arithmatex">\[{block or inline}\]</div>')
    with pytest.raises(ValueError, match=r"no MathML for .arg"):
        formulas.drawn(r'<span class="arithmatex">\(\arg x\)</span>')


def test_dollars_of_pages_are_in_pairs() -> None:
    """An odd one would make a formula of the text up to the next."""
    for name, page in PAGES.items():
        text = re.sub(r"^```.*?^```$", "", page, flags=re.S | re.M)
        text = re.sub(r"^    .*$", "", re.sub(r"`[^`]*`", "", text), flags=re.M)
        for paragraph in text.split("\n\n"):
            assert paragraph.count("$") % 2 == 0, f"{name}: {paragraph[:80]}"


def test_the_check_of_links_finds_what_leads_nowhere(tmp_path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="x"></h1><a href="b.html#y">b</a><a href="#x"></a>')
    (tmp_path / "b.html").write_text('<a href="c.html"></a><script src="https://e.org/s"></script>')
    assert check.problems(tmp_path) == [
        "a.html: b.html#y: no such anchor",
        "b.html: c.html: no such file",
        "b.html: https://e.org/s: is loaded from elsewhere",
    ]


@pytest.mark.browser
@pytest.mark.parametrize("width", [420, 1280])
def test_formulas_scroll_sideways_only(tmp_path, width: int) -> None:
    """Their signs reach out of their line by a pixel, for which no scrollbar is needed."""
    import formulas
    from test_commands_explore_browser import launched

    page = PAGES["README.md"] + PAGES["mathematics.md"]
    found = re.findall(r"^```math\n(.*?)^```$", page, re.S | re.M)
    drawn = "".join(formulas.drawn(rf'<div class="arithmatex">\[{tex}\]</div>') for tex in found)
    style = (DOCS / "assets" / "site.css").as_uri()
    (tmp_path / "page.html").write_text(f'<link rel="stylesheet" href="{style}">{drawn}')
    bars = (
        "[...document.querySelectorAll('div.formula')].map(e => [e.offsetWidth - e.clientWidth, "
        "getComputedStyle(e).overflowY, e.scrollHeight - e.clientHeight])"
    )
    with launched(ignore_default_args=["--hide-scrollbars"]) as browser:
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tab.goto((tmp_path / "page.html").as_uri())
        shown = tab.evaluate(bars)
    assert len(shown) == len(found) > 3
    assert shown == [[0, "hidden", 0]] * len(found)


def test_signatures_leave_out_a_parameter_that_takes_nothing() -> None:
    griffe = pytest.importorskip("griffe")
    import docstrings

    extensions = griffe.load_extensions(docstrings.Readable())
    each = "def chosen(x: int, **others: Never) -> int: ...\n"
    files = {"__init__.py": f"from typing import Never, overload\n@overload\n{each}{each}"}
    with griffe.temporary_visited_package("made", files, extensions=extensions) as module:
        for function in (module["chosen"], *module["chosen"].overloads):
            assert [each.name for each in function.parameters] == ["x"]


@pytest.mark.full
def test_the_site_is_built_without_warnings(tmp_path) -> None:
    """Strictly, every link leading somewhere, every public name documented."""
    pytest.importorskip("mkdocstrings")
    import subprocess

    run = subprocess.run(
        [sys.executable, DOCS / "site" / "build.py", tmp_path],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert check.problems(tmp_path) == []
    anchors = {a for page in tmp_path.glob("reference/*.html") for a in check.read(page).anchors}
    assert set(reference.home()) - anchors == set()
    explorer = (tmp_path / "explorer.html").read_text(encoding="utf-8")
    assert "<iframe" in explorer  # itself, in place of its picture
    for page in tmp_path.glob("reference/*.html"):
        assert ">Never<" not in page.read_text(encoding="utf-8"), page
    assert "explorer.png" not in explorer
