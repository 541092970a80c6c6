"""The explorer in Chromium: it is moved by mouse, finger and keys, and read. `make test-explorer`.

CHROMIUM may name the browser's program; otherwise that of the system, or Playwright's own, is used.
"""

import contextlib
import os
import re
import shutil
import time
from urllib.parse import parse_qs

import numpy as np
import pytest

from explorer_golden import SHOWN
from kofn import links, soft_topk
from kofn.commands.explore.page import page as explorer

pytestmark = pytest.mark.browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@contextlib.contextmanager
def launched(**options):
    from playwright.sync_api import sync_playwright

    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], **options
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def browser():
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "explorer.html"
    file.write_text(explorer(), encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def visit(browser, address):
    """A function that opens the page; whatever goes wrong on it fails the test."""
    wrong, contexts = [], []

    def opened(hash="", size=DESK, **options):
        context = browser.new_context(viewport=size, **options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("request", lambda asked: asked.url.startswith("file:") or wrong.append(asked.url))
        tab.goto(address + hash)
        tab.wait_for_selector("#weights .weight")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
WRITTEN = """() => {
  const told = new URLSearchParams(location.hash.slice(1));
  const value = (selector) => document.querySelector(selector).value;
  const rows = [...document.querySelectorAll("#numbers tbody tr")];
  const scores = rows.map((row) => row.querySelector("input:not([type])").value).join(",");
  const off = rows.flatMap((row, i) => row.querySelector("[type=checkbox]").checked ? [] : [i]);
  const entry = rows.findIndex((row) => row.querySelector("[type=radio]").checked);
  const shown = { x: scores, off: off.join(","), k: value("#k-field"), T: value("#T-field"),
    link: value("#links :checked"), entry: String(entry) };
  if (shown.link === "entmax") shown.alpha = value("#alpha-field");
  return Object.entries(shown).every(([name, text]) => (told.get(name) ?? "") === text);
}"""


def state(tab):
    """The state in the address, once what is shown has been written there."""
    tab.evaluate(DRAWN)
    tab.wait_for_function(WRITTEN)
    return {name: value[0] for name, value in parse_qs(tab.url.partition("#")[2]).items()}


def column(tab, name):
    texts = tab.locator(f"#numbers tbody .{name}").all_inner_texts()
    return np.array([float(text.replace("−", "-")) for text in texts])


def assert_shows_what_kofn_computes(tab):
    """The weights on the page are those of the state in the address, and they sum to k."""
    now = state(tab)
    link = links.entmax(float(now["alpha"])) if "alpha" in now else now["link"]
    scores = np.array(now["x"].split(","), dtype=float)
    masked = [int(i) for i in now.get("off", "").split(",") if i]
    mask = ~np.isin(np.arange(len(scores)), masked)
    k, T = float(now["k"]), float(now["T"])
    weights = soft_topk(scores, k, link=link, temperature=T, mask=mask)
    digits = 3 if tab.viewport_size["width"] < 480 else 4
    np.testing.assert_allclose(column(tab, "p"), weights, atol=0.51 * 10.0**-digits)
    shown = re.search(r"[\d.]+", tab.locator("#sum .mark-text").inner_html())
    assert float(shown[0]) == pytest.approx(min(k, mask.sum()), abs=6e-4)
    heights = [float(bar.get_attribute("height")) for bar in tab.locator("#weights .weight").all()]
    np.testing.assert_allclose(np.array(heights) / 172, weights, atol=1e-3)


def test_it_opens_in_less_than_a_second(browser, address):
    tab = browser.new_page()
    times = []
    for _ in range(3):
        began = time.perf_counter()
        tab.goto(address)
        tab.wait_for_selector("#weights .weight")
        times.append(time.perf_counter() - began)
    tab.close()
    assert min(times) < 1


@pytest.mark.parametrize("link", SHOWN)
def test_sliders_move_and_numbers_follow(visit, link):
    tab = visit()
    tab.locator(f"[data-link={link}].link").click()
    for name, places in {"k": (0.1, 0.62, 0.9), "T": (0.2, 0.5, 0.8)}.items():
        box = tab.locator(f"#{name}-slider").bounding_box()
        for place in places:
            tab.mouse.click(box["x"] + place * box["width"], box["y"] + box["height"] / 2)
            assert_shows_what_kofn_computes(tab)
    if link == "entmax":
        tab.locator("#alpha-field").fill("2.3")
        assert_shows_what_kofn_computes(tab)
        assert state(tab)["alpha"] == "2.3"


def test_a_score_is_dragged_by_mouse(visit):
    tab = visit()
    box = tab.locator("#scores .knob").nth(4).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x, y - 60, steps=8)
    tab.mouse.up()
    assert float(state(tab)["x"].split(",")[4]) > 2
    assert state(tab)["entry"] == "4"
    assert_shows_what_kofn_computes(tab)
    tab.mouse.click(x + 60, y + 250)  # a column of the weights
    assert state(tab)["entry"] == "5"


def test_a_score_is_dragged_by_finger(visit):
    tab = visit(size=PHONE, has_touch=True, is_mobile=True)
    knob = tab.locator("#scores .knob").nth(1)
    knob.scroll_into_view_if_needed()
    box = knob.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    touch = tab.context.new_cdp_session(tab)
    before = tab.evaluate("scrollY")
    touch.send(
        "Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]}
    )
    for step in range(1, 9):
        point = {"x": x, "y": y + 8 * step}
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert float(state(tab)["x"].split(",")[1]) < 1.5
    assert tab.evaluate("scrollY") == before
    assert_shows_what_kofn_computes(tab)


def test_the_temperature_is_dragged_on_the_path(visit):
    tab = visit()
    box = tab.locator("#cooling").bounding_box()
    tab.mouse.move(box["x"] + 100, box["y"] + 80)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 300, box["y"] + 80, steps=5)
    tab.mouse.up()
    assert float(state(tab)["T"]) < 0.3
    assert_shows_what_kofn_computes(tab)


def focused(tab):
    return tab.evaluate(
        "(e => e.id || e.name || e.getAttribute('class') || e.tagName)(document.activeElement)"
    )


def tab_to(tab, wanted):
    for _ in range(80):
        tab.keyboard.press("Tab")
        if focused(tab) == wanted:
            return
    pytest.fail(f"Tab does not reach {wanted}")


def press(tab, *keys):
    for key in keys:
        tab.keyboard.press(key)


def test_the_keyboard_suffices(visit):
    tab = visit()
    tab_to(tab, "theme")
    press(tab, "Enter", "Space")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    tab_to(tab, "k-slider")
    press(tab, *["ArrowRight"] * 10)
    assert state(tab)["k"] == "3.5"
    tab_to(tab, "T-slider")
    press(tab, *["ArrowLeft"] * 15)
    assert state(tab)["T"] == "0.251"
    tab_to(tab, "link")
    press(tab, "ArrowRight", "ArrowRight")
    assert state(tab)["link"] == "normal"
    tab_to(tab, "knob")
    press(tab, "ArrowRight", "ArrowUp", "ArrowUp", "PageDown", "Shift+ArrowUp")
    assert state(tab)["x"].split(",")[3] == "0.71"
    press(tab, "End", "m")
    assert state(tab)["off"] == "7"
    assert state(tab)["entry"] == "7"
    assert focused(tab) == "knob"
    press(tab, "m", "Home")
    assert_shows_what_kofn_computes(tab)
    tab_to(tab, "play")
    press(tab, "Enter")
    tab.wait_for_timeout(700)
    press(tab, "Enter")
    assert float(state(tab)["T"]) < 0.25
    tab_to(tab, "entry")
    press(tab, "ArrowDown")
    assert state(tab)["entry"] == "1"
    tab_to(tab, "framework")
    press(tab, "ArrowRight")
    assert "import jax" in tab.locator("#code").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("link", SHOWN)
def test_text_is_readable_in_both_colour_schemes(visit, scheme, link):
    tab = visit(f"#link={link}", color_scheme=scheme)
    dark = scheme == "dark"
    paper = luminance(tab, "body", "backgroundColor")
    assert (paper < 0.05) == dark
    card = luminance(tab, "#sheet > section", "backgroundColor")
    for selector, name, least in [
        ("h2", "color", 7),
        (".hint", "color", 4.5),
        ("#weights .number[data-chosen]", "fill", 4.5),
        (".link:has(:checked)", "color", 4.5),
        ("#weights .level-text", "fill", 4.5),
        ("#weights .weight", "fill", 3),
        ("#weights .hard", "stroke", 3),
        ("#weights .marginal", "stroke", 3),
    ]:
        high, low = sorted([card, luminance(tab, selector, name)], reverse=True)
        assert (high + 0.05) / (low + 0.05) >= least, (selector, scheme, link)
    tab.locator("#theme").click()  # light, whatever the system has
    assert luminance(tab, "body", "backgroundColor") > 0.8
    tab.locator("#theme").click()
    assert luminance(tab, "body", "backgroundColor") < 0.05
    tab.reload()
    assert luminance(tab, "body", "backgroundColor") < 0.05  # it is remembered


def luminance(tab, selector, name):
    """Relative luminance as in WCAG 2."""
    colour = tab.locator(selector).first.evaluate(f"e => getComputedStyle(e).{name}")
    channels = np.array(re.findall(r"[\d.]+", colour)[:3], dtype=float) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("width", [320, 360, 690, 860, 1100, 1600])
def test_nothing_sticks_out(visit, width):
    tab = visit("#link=entmax", size={"width": width, "height": 740}, has_touch=width < 400)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    out = """() => [...document.querySelectorAll("button, input, svg, h2")].filter(e => {
      const box = e.getBoundingClientRect();
      return box.width && !e.closest(".scroll") && (box.left < 0 || box.right > innerWidth);
    }).map(e => e.id || e.outerHTML)"""
    assert tab.evaluate(out) == []
    small = """() => [...document.querySelectorAll("button, input")].filter(e => {
      const box = e.getBoundingClientRect();
      return box.width && (box.width < 22 || box.height < 22) && !e.closest("td, th");
    }).map(e => e.id || e.outerHTML)"""
    assert tab.evaluate(small) == []


def test_sliders_stay_in_sight_on_a_phone(visit):
    tab = visit(size=PHONE, has_touch=True)
    tab.locator("#cooling").scroll_into_view_if_needed()
    assert 0 <= tab.locator("#k-slider").bounding_box()["y"] < 60


def test_the_address_holds_the_state(visit, address):
    part = "#x=2,-inf,0.5,1&off=3&k=1.25&T=0.2&link=entmax&alpha=1.8&entry=2"
    tab = visit(part)
    assert "#" + tab.url.partition("#")[2] == part
    assert_shows_what_kofn_computes(tab)
    tab.locator("#fewer").click()
    changed = state(tab)
    tab.reload()
    tab.wait_for_selector("#weights .weight")
    assert state(tab) == changed
    assert changed["x"] == "2,-inf,0.5"
    tab.evaluate("location.hash = '#k=2&link=linear'")
    assert state(tab)["link"] == "linear"
    assert_shows_what_kofn_computes(tab)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("#k=99", "k=99"),
        ("#x=1,two,3&k=1", "x=1,two,3"),
        ("#link=cauchy&T=-1", "T=-1, link=cauchy"),
        ("#entry=x&alpha=&off=1,77", "off=1,77, alpha=, entry=x"),
        ("#x=" + "1," * 70, "x="),
        ("#%E0%A4%A", ""),
        ("#top", ""),
    ],
)
def test_a_bad_address_is_told_and_the_rest_used(visit, part, words):
    tab = visit(part)
    assert words in tab.locator("#notice").inner_text()
    assert_shows_what_kofn_computes(tab)


@pytest.mark.parametrize(
    ("name", "typed", "became", "words"),
    [
        ("k", "99", "8", "k goes from 0 to 8, the number of scores"),
        ("k", "-1", "0", "k goes from 0 to 8, the number of scores"),
        ("T", "0", "0.01", "T goes from 0.01 to 100"),
    ],
)
def test_a_number_out_of_its_limits_becomes_the_nearest_and_the_page_says_why(
    visit, name, typed, became, words
):
    tab = visit()
    field, said = tab.locator(f"#{name}-field"), tab.locator("#limits")
    field.fill(typed)
    assert said.inner_text() == f"{words}."
    field.blur()
    assert said.inner_text() == f"{words}: {typed} became {became}."
    assert (field.input_value(), state(tab)[name]) == (became, became)
    field.fill("2")
    assert said.inner_text() == ""
    assert_shows_what_kofn_computes(tab)


def test_scores_are_typed_and_pasted(visit):
    tab = visit()
    field = tab.locator("#scores-text")
    field.fill("[1.5, −2; 3e-1]\t.5")
    assert state(tab)["x"] == "1.5,-2,0.3,0.5"
    field.fill("1, 2, x")
    assert "“x” is not a number" in tab.locator("#scores-error").inner_text()
    assert state(tab)["x"] == "1.5,-2,0.3,0.5"
    field.blur()
    assert tab.locator("#scores-error").inner_text() == ""
    tab.evaluate("""() => {
      const data = new DataTransfer();
      data.setData("text", "4\\n3\\n2\\n");
      const options = { clipboardData: data, bubbles: true };
      document.body.dispatchEvent(new ClipboardEvent("paste", options));
    }""")
    assert state(tab)["x"] == "4,3,2"
    row = tab.locator("#numbers tbody tr").nth(1)
    row.locator("input:not([type])").fill("-7.25")
    row.locator("[type=checkbox]").uncheck()
    assert state(tab)["x"] == "4,-7.25,2"
    assert state(tab)["off"] == "1"
    assert_shows_what_kofn_computes(tab)
    tab.locator("#random").click()
    tab.wait_for_timeout(600)
    assert state(tab)["x"] != "4,-7.25,2"
    assert_shows_what_kofn_computes(tab)


def temperatures(tab, seconds):
    """The different temperatures that the field shows while the page cools down."""
    tab.evaluate("""() => {
      window.seen = new Set();
      const field = document.querySelector("#T-field");
      const look = () => {
        window.seen.add(field.value);
        requestAnimationFrame(look);
      };
      look();
    }""")
    tab.locator("#play").click()
    tab.wait_for_timeout(1000 * seconds)
    return [float(x) for x in tab.evaluate("[...window.seen]")]


def test_it_cools_down_and_stops(visit):
    tab = visit("#T=0.1")
    seen = temperatures(tab, 4)
    assert len(seen) > 15
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 0.01
    assert tab.locator("#play").get_attribute("aria-pressed") == "false"


def test_motion_is_reduced_if_wanted(visit):
    tab = visit("#T=0.1", reduced_motion="reduce")
    seen = temperatures(tab, 4)
    assert 5 < len(seen) <= 13
    assert seen[-1] == 0.01


def test_code_and_link_are_copied(visit):
    tab = visit("#k=2", permissions=["clipboard-read", "clipboard-write"])
    tab.locator("#frameworks label").nth(2).click()
    tab.locator("#copy").click()
    code = tab.evaluate("navigator.clipboard.readText()")
    assert code.startswith("import numpy as np\n")
    assert code.splitlines() == tab.locator("#code").inner_text().splitlines()
    tab.locator("#share").click()
    assert tab.evaluate("navigator.clipboard.readText()") == tab.url


def test_it_works_in_a_frame_that_may_nearly_nothing(visit):
    tab = visit()
    html = explorer()
    tab.evaluate(
        """html => {
          const frame = document.createElement("iframe");
          frame.sandbox = "allow-scripts";
          frame.srcdoc = html;
          frame.id = "embedded";
          document.body.append(frame);
        }""",
        html,
    )
    frame = tab.frame_locator("#embedded")
    frame.locator("#weights .weight").first.wait_for()
    frame.locator("#more").click()
    frame.locator("#weights .weight").nth(8).wait_for(state="attached")
    frame.locator("#theme").click()


def test_everything_has_a_name(visit):
    """What takes the focus has a role and a name for screen readers."""
    tab = visit("#link=entmax")
    nameless = """() => [...document.querySelectorAll("button, input, [tabindex]")].filter(e =>
      !(e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.labels?.length
        || e.tagName === "BUTTON" && e.innerText.trim())).map(e => e.outerHTML)"""
    assert tab.evaluate(nameless) == []
    tree = tab.locator("body").aria_snapshot()
    assert 'slider "Score of entry 2": "1.70, weight 0.515"' in tree or "Score of entry 2" in tree
    assert "table" in tree
    tab.wait_for_timeout(1200)
    assert "threshold" in tab.locator("#status").inner_text()
