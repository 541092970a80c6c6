"""The explorer's matrix in Chromium, moved by mouse, finger and keys. `make test-explorer`."""

from urllib.parse import parse_qs

import numpy as np
import pytest

from explorer_golden import SHOWN
from kofn import links, soft_assignment, soft_assignment_prices
from test_commands_explore_browser import (
    DRAWN,
    PHONE,
    address,
    browser,
    focused,
    luminance,
    press,
    tab_to,
    visit,
)

pytestmark = pytest.mark.browser
__all__ = ["address", "browser", "visit"]  # fixtures

START = "#view=matrix"


@pytest.fixture
def opened(visit):
    """A function that opens the page at a matrix."""

    def open_at(hash=START, **options):
        tab = visit(**options)
        tab.evaluate("hash => { location.hash = hash; }", hash)
        tab.wait_for_selector("#matrix .cell")
        return tab

    return open_at


def numbers(tab, selector):
    signs = str.maketrans({"−": "-", "∞": "inf", "–": "nan"})
    texts = tab.locator(selector).all_text_contents()
    return np.array([float(text.split()[-1].translate(signs)) for text in texts])


def state(tab):
    """The state in the address, once it is written there."""
    tab.evaluate(DRAWN)
    tab.wait_for_timeout(300)
    return {name: value[0] for name, value in parse_qs(tab.url.partition("#")[2]).items()}


def margins(now):
    return [np.array(now[name].split(","), dtype=float) for name in ("rows", "columns")]


def assert_shows_what_kofn_computes(tab):
    """Cells, prices, sums and bars are those of the state in the address."""
    now = state(tab)
    scores = np.array([row.split(",") for row in now["s"].split(";")], dtype=float)
    masked = [int(cell) for cell in now.get("off", "").split(",") if cell]
    mask = ~np.isin(np.arange(scores.size), masked).reshape(scores.shape)
    k, c = margins(now)
    link = links.entmax(float(now["alpha"])) if "alpha" in now else now["link"]
    options = {"link": link, "temperature": float(now["T"]), "mask": mask}
    weights = soft_assignment(scores, k, c, **options)
    rows, columns = soft_assignment_prices(scores, k, c, **options)
    half = 0.51 * 10.0 ** -np.array([3, 4])
    np.testing.assert_allclose(numbers(tab, "#matrix .weight-text"), weights.ravel(), atol=half[0])
    np.testing.assert_allclose(numbers(tab, "#matrix .score-text"), scores.ravel(), atol=0.0051)
    np.testing.assert_allclose(numbers(tab, "#matrix-numbers .p"), weights.ravel(), atol=half[1])
    np.testing.assert_allclose(numbers(tab, "#matrix-numbers .alpha"), rows, atol=half[1])
    np.testing.assert_allclose(numbers(tab, "#matrix-numbers .beta"), columns, atol=half[1])
    np.testing.assert_allclose(numbers(tab, "#matrix-numbers .row-sum"), k, atol=half[0])
    np.testing.assert_allclose(numbers(tab, "#matrix-numbers .column-sum"), c, atol=half[0])
    shades = tab.locator("#matrix .shade").all()
    opacity = [float(shade.get_attribute("fill-opacity")) for shade in shades]
    np.testing.assert_allclose(opacity, weights.ravel(), atol=half[0])
    code = tab.locator("#code").inner_text()
    assert "soft_assignment(scores, k, capacity, **options)" in code
    assert f"capacity = torch.tensor([{c[0]}" in code
    return weights


def drag(tab, locator, dx, dy):
    locator.scroll_into_view_if_needed()
    box = locator.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x + dx, y + dy, steps=6)
    tab.mouse.up()


def test_one_goes_from_a_row_to_a_matrix_and_back(visit):
    tab = visit("#x=1,2,3&k=1&T=0.7&link=normal&entry=0")
    tab.locator("#views label").nth(1).click()
    tab.wait_for_selector("#matrix .cell")
    assert not tab.locator("#weights").is_visible()
    assert not tab.locator("#k-slider").is_visible()
    now = state(tab)
    assert (now["view"], now["T"], now["link"]) == ("matrix", "0.7", "normal")
    assert_shows_what_kofn_computes(tab)
    tab.locator("#views label").first.click()
    assert state(tab)["x"] == "1,2,3"
    assert tab.locator("#weights").is_visible()
    assert not tab.locator("#matrix").is_visible()
    assert "soft_topk(scores, k, **options)" in tab.locator("#code").inner_text()


def test_scores_and_margins_are_dragged(opened):
    tab = opened()
    before = assert_shows_what_kofn_computes(tab)
    drag(tab, tab.locator("#matrix .cell").nth(6), 100, 0)
    now = state(tab)
    assert now["s"].split(";")[1].split(",")[2] == "2.2"
    assert now["cell"] == "6"
    assert assert_shows_what_kofn_computes(tab)[1, 2] > before[1, 2] + 0.3
    drag(tab, tab.locator(".row-bars .margin-knob").nth(0), 60, 0)
    k, c = margins(state(tab))
    assert k[0] > 1.5
    assert c.sum() == pytest.approx(k.sum(), abs=1e-9)
    assert c[0] / c[2] == pytest.approx(2 / 1.5, abs=0.02)  # in proportion
    assert_shows_what_kofn_computes(tab)
    drag(tab, tab.locator(".column-bars .margin-knob").nth(3), 0, -25)
    rows, columns = margins(state(tab))
    assert columns[3] > c[3] + 1
    assert (columns[:3] < c[:3]).all()
    np.testing.assert_array_equal(rows, k)
    assert_shows_what_kofn_computes(tab)
    drag(tab, tab.locator(".column-bars .margin-knob").nth(0), 0, 300)  # to its end
    assert margins(state(tab))[1][0] == 0
    assert assert_shows_what_kofn_computes(tab)[:, 0].max() == 0
    pieces = tab.locator(".row-bars .piece").first
    assert float(pieces.get_attribute("width")) == 0


def test_a_cell_is_dragged_by_finger_and_the_page_still_scrolls(opened):
    tab = opened(size=PHONE, has_touch=True, is_mobile=True)
    touch = tab.context.new_cdp_session(tab)

    def swipe(locator, dx, dy):
        box = locator.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

        def send(kind, points):
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        send("touchStart", [{"x": x, "y": y}])
        for step in range(1, 9):
            send("touchMove", [{"x": x + dx * step / 8, "y": y + dy * step / 8}])
        send("touchEnd", [])

    cell = tab.locator("#matrix .cell").nth(4)
    cell.scroll_into_view_if_needed()
    swipe(cell, 80, 0)
    assert float(state(tab)["s"].split(";")[1].split(",")[0]) > 3.5
    before, scores = tab.evaluate("scrollY"), state(tab)["s"]
    swipe(cell, 0, -120)
    tab.wait_for_function("before => scrollY > before + 50", arg=before)
    assert state(tab)["s"] == scores
    tab.wait_for_timeout(300)
    knob = tab.locator(".column-bars .margin-knob").nth(1)
    knob.scroll_into_view_if_needed()
    before = tab.evaluate("scrollY")
    swipe(knob, 0, -20)
    assert margins(state(tab))[1][1] > 3
    assert tab.evaluate("scrollY") == before


def test_the_keyboard_suffices_for_a_matrix(visit):
    tab = visit()
    tab_to(tab, "view")
    press(tab, "ArrowRight")
    tab.wait_for_selector("#matrix .cell")
    tab_to(tab, "cell")
    press(tab, "ArrowRight", "ArrowUp", "ArrowUp", "Shift+ArrowDown", "PageUp")
    assert state(tab)["s"].split(",")[1] == "2.19"
    press(tab, "End", "m")
    now = state(tab)
    assert (now["off"], now["cell"], focused(tab)) == ("23", "23", "cell")
    assert_shows_what_kofn_computes(tab)
    tab_to(tab, "margin-knob")
    press(tab, "ArrowUp", "ArrowUp", "Shift+ArrowRight")
    k, c = margins(state(tab))
    assert (k[0], round(c.sum(), 9)) == (1.21, 7.21)
    press(tab, *["Tab"] * 6, "Home")
    assert margins(state(tab))[1][0] == 0
    press(tab, "End")
    assert margins(state(tab))[1][0] == 6
    press(tab, "PageDown", "PageDown")
    assert_shows_what_kofn_computes(tab)


def test_numbers_are_typed_and_pasted(opened):
    tab = opened()
    fields = tab.locator("#matrix-numbers input")
    fields.nth(0).fill("-1.5")
    fields.nth(4).fill("1,5")
    assert fields.nth(4).get_attribute("aria-invalid") == "true"
    fields.nth(4).fill("1.5")
    fields.nth(4).blur()
    fields.nth(30).fill("0.75")
    fields.nth(30).blur()
    now = state(tab)
    k, c = margins(now)
    assert (now["s"].split(",")[0], k[0], c[0], round(c.sum(), 9)) == ("-1.5", 1.5, 0.75, 7.5)
    assert_shows_what_kofn_computes(tab)
    paste = """text => {
      const data = new DataTransfer();
      data.setData("text", text);
      const options = { clipboardData: data, bubbles: true };
      document.body.dispatchEvent(new ClipboardEvent("paste", options));
    }"""
    tab.evaluate(paste, "1 2\n3")
    assert "same length" in tab.locator("#matrix-error").inner_text()
    tab.evaluate(paste, "[[1, 2, 0.5], [3, 4, -1]]")
    now = state(tab)
    assert (now["s"], now["rows"]) == ("1,2,0.5;3,4,-1", "1,1")
    assert tab.locator("#matrix-error").inner_text() == ""
    assert_shows_what_kofn_computes(tab)
    for button in ("more-rows", "fewer-columns", "random-matrix"):
        tab.locator(f"#{button}").click()
        assert_shows_what_kofn_computes(tab)
    assert len(state(tab)["s"].split(";")) == 3


def test_what_is_impossible_is_told(opened):
    tab = opened(START + "&s=1,2;3,4&rows=2,0&columns=2,0&T=0.5")
    assert tab.locator("#impossible").is_visible()
    assert np.isnan(numbers(tab, "#matrix .weight-text")).all()
    tab.wait_for_timeout(1000)
    assert "No weights" in tab.locator("#status").inner_text()
    tab.evaluate("hash => { location.hash = hash; }", START + "&s=1,2;3,4&columns=9,9")
    assert "columns=9,9" in tab.locator("#notice").inner_text()
    assert not tab.locator("#impossible").is_visible()
    assert_shows_what_kofn_computes(tab)


def test_the_address_holds_the_matrix(opened):
    part = (
        "#view=matrix&s=1,2,0.5;3,4,-1&off=4&rows=1,0.75&columns=0.5,0.25,1&cell=3&T=0.2"
        "&link=entmax&alpha=1.25"
    )
    tab = opened(part)
    state(tab)
    assert "#" + tab.url.partition("#")[2] == part
    assert_shows_what_kofn_computes(tab)
    tab.reload()
    tab.wait_for_selector("#matrix .cell")
    state(tab)
    assert "#" + tab.url.partition("#")[2] == part
    tab.locator("#reset").click()
    now = state(tab)
    assert (now["view"], now["rows"]) == ("matrix", "1,1,1,2,1,1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("link", SHOWN)
def test_numbers_are_readable_on_every_shade(opened, scheme, link):
    tab = opened(f"{START}&link={link}&T=0.01", color_scheme=scheme)
    card = luminance(tab, "#matrix .ground", "fill")
    # color-mix() is computed as color(srgb …), with channels from 0 to 1.
    mixed = tab.locator("#matrix .shade").first.evaluate("e => getComputedStyle(e).fill")
    channels = np.array(mixed.removeprefix("color(srgb ").rstrip(")").split(), dtype=float)
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    shade = float(linear @ [0.2126, 0.7152, 0.0722])
    ink = luminance(tab, "#matrix .weight-text", "fill")
    for ground in (card, shade):
        high, low = sorted([ground, ink], reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5
    handle = luminance(tab, "#matrix .handle", "stroke")
    assert (max(card, handle) + 0.05) / (min(card, handle) + 0.05) >= 3


@pytest.mark.parametrize("width", [320, 360, 690, 860, 1100, 1600])
def test_nothing_of_the_matrix_sticks_out(opened, width):
    part = "&s=1,2,3,4,5,-12.25;3,1,2,3,4,5&link=entmax"
    tab = opened(START + part, size={"width": width, "height": 740}, has_touch=width < 400)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    out = """() => [...document.querySelectorAll("button, input, svg, h2, svg text")].filter(e => {
      const box = e.getBoundingClientRect();
      return box.width && !e.closest(".scroll") && (box.left < 0 || box.right > innerWidth);
    }).map(e => e.id || e.outerHTML)"""
    assert tab.evaluate(out) == []
    wide = """() => [...document.querySelectorAll("#matrix .cell")].filter(e =>
      e.querySelector(".weight-text").getBoundingClientRect().width
        > e.querySelector(".ground").getBoundingClientRect().width).length"""
    assert tab.evaluate(wide) == 0


def test_everything_of_the_matrix_has_a_name(opened):
    tab = opened()
    nameless = """() => [...document.querySelectorAll("button, input, [tabindex]")].filter(e =>
      !(e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.labels?.length
        || e.tagName === "BUTTON" && e.innerText.trim())).map(e => e.outerHTML)"""
    assert tab.evaluate(nameless) == []
    tree = tab.locator("body").aria_snapshot()
    for name in ("Score of row 2, column 1", "k of row 3", "Capacity of column 0", "A matrix"):
        assert name in tree
    tab.wait_for_timeout(1200)
    assert "weight of row 0, column 0 0.599" in tab.locator("#status").inner_text()
