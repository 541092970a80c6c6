"""The search of the site, in Chromium: terms of the articles and of the field find their page.

CHROMIUM may name the browser's program, as for the explorer (test_commands_explore_browser.py).
"""

import subprocess
import sys

import pytest

from test_readme import ROOT

# What a reader types, and the page that has to be among the first three.
TERMS = {
    "重参数": "from_the_articles",
    "单调性": "from_the_articles",
    "不变性": "from_the_articles",
    "趋近性": "from_the_articles",
    "光滑近似": "from_the_articles",
    "降方差": "from_the_articles",
    "推导": "errata",
    "稀疏": "from_the_articles",
    "待定常数": "from_the_articles",
    "迭代构造": "from_the_articles",
    "温度": "from_the_articles",
    "ThreTopK": "reference/kofn_choosing_k_of_n",
    "GradTopK": "subsets",
    "STk": "from_the_articles",
    "Perturb-Max": "maps_perturbed",
    "Gumbel-Max": "from_the_articles",
    "AM-Softmax": "reference/losses",
    "Sparsemax": "reference/kofn_choosing_one",
    "Entmax": "coming_from/entmax",
    "REINFORCE": "reference/estimators",
    "Tsallis": "reference/metrics",
    "Lipschitz": "properties",
    "multi-hot": "properties",
    "MoE": "guides/route_experts",
    "top-p": "guides/decode",
    "SMART": "from_the_articles",
    "Wasserstein": "from_the_articles",
    "quantization": "from_the_articles",
    "quantile balancing": "from_the_articles",
    "seq2seq": "reference/kofn_choosing_one",
    "invariance": "properties",
    "LapSum": "coming_from/lapsum",
    "logsumexp": "from_the_articles",
    "BatchTopK": "nn_autoencoders",
    "straight-through": "estimators",
    "Fenchel–Young": "losses",
}
FIELD, RESULT = "[data-md-component=search-query]", ".md-search-result__item"
PAGES = """items => items.map(item => item.querySelector('a').getAttribute('href'))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, ROOT / "docs" / "site" / "build.py", folder],
        check=True,
        cwd=ROOT,
    )
    return folder


@pytest.mark.browser
def test_thirty_terms_find_their_page(site):
    from test_commands_explore_browser import launched

    assert len(TERMS) >= 30
    with launched() as browser:
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.goto((site / "index.html").as_uri())
        field = tab.locator(FIELD)

        def typed(term, wanted):
            """Type a term, and wait, for ten seconds at most, for as many results as are wanted."""
            field.fill(term)
            field.dispatch_event("keyup")
            for _ in range(100):
                tab.wait_for_timeout(100)
                pages = tab.eval_on_selector_all(RESULT, PAGES)
                if wanted(len(pages)):
                    break
            return pages

        def found(term):
            """Return the first three pages that the search shows for a term."""
            assert typed("", lambda number: number == 0) == []
            pages = typed(term, lambda number: number > 0)
            addresses = [page.partition("?")[0].partition("#")[0] for page in pages]
            prefix = f"{site.as_uri()}/"
            return [each.removeprefix(prefix).removesuffix(".html") for each in addresses][:3]

        assert found("softmax")  # until then the index is read
        assert found("xyzzy") == []
        wrong = {term: found(term) for term in TERMS}
    wrong = {term: pages for term, pages in wrong.items() if TERMS[term] not in pages}
    assert wrong == {}
