"""The page in a real browser: drawn without an error, usable by keyboard and on a phone, asking for nothing."""

import json

import pytest
from chromium import Chromium, find_chromium
from nasty_page import EVIL, nasty_page, verdict

from kaffee.report.page import Report, Section
from kaffee.tables import Table

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium on this machine; install it (Debian: apt-get install chromium)"
)

FIGURES = """[...document.querySelectorAll('figure.interactive')].map((figure) => {
  const pixels = (canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const inked = (canvas) => pixels(canvas).filter((value, i) => i % 4 === 3 && value > 0).length;
  return {
    title: figure.querySelector('h3').textContent,
    drawn: figure.dataset.drawn,
    paths: [...figure.querySelectorAll('.stage .marks path')].map((path) => path.getAttribute('d').length),
    canvases: [...figure.querySelectorAll('canvas')].map(inked),
    label: figure.querySelector('.stage').getAttribute('aria-label'),
  };
})"""
CLEAN = "document.documentElement.dataset.errors === undefined"
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "a <b> & 'c'.html"
    path.write_text(nasty_page().to_html(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    started = Chromium(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def page(browser, page_file):
    """The page at the width of a screen; tests leave the figures as they like, but look at their own one."""
    browser.open(page_file, width=1400)
    return browser


def figure(i, rest):
    return f"document.querySelectorAll('figure.interactive')[{i}]{rest}"


def focus(browser, i):
    # A smooth scroll would go on while a test presses and drags.
    browser.evaluate(figure(i, ".querySelector('.stage').focus({preventScroll: true})"))


def readout(browser, i):
    return browser.evaluate(figure(i, ".querySelector('output').textContent"))


def marks(browser, i):
    return browser.evaluate(figure(i, ".querySelector('.stage .marks').innerHTML"))


def named(title):
    titles = [figure.title for section in nasty_page().sections for figure in section.interactive]
    return titles.index(title)


def test_every_figure_is_drawn_quickly_and_nothing_complains(page):
    found = page.evaluate(FIGURES)
    assert [figure["drawn"] for figure in found] == ["true"] * 11
    for figure in found:
        assert figure["canvases"] or figure["paths"], figure["title"]
        assert all(figure["canvases"]), figure["title"]
        assert figure["title"] == "log zero" or not figure["paths"] or max(figure["paths"]) > 20, figure["title"]
        assert figure["title"] in figure["label"]
    run, _, frame = found[named("two")]["canvases"]
    assert run > 1.2 * frame > 0  # not only the room around the run
    assert page.evaluate(CLEAN)
    assert page.problems == []
    # A second is the aim; a busy machine may take longer.
    assert float(page.evaluate("document.documentElement.dataset.milliseconds")) < 5000


def test_a_page_asks_for_nothing_but_itself(page, page_file):
    assert page.requests == [page_file.as_uri()]


def test_hostile_texts_are_shown_and_do_nothing(page):
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 11 + 1
    assert page.evaluate("document.title").split() == EVIL.split()
    assert page.evaluate("document.querySelector('h1').textContent") == EVIL
    entries = figure(0, ".querySelectorAll('.legend button')")
    assert EVIL in page.evaluate(f"[...{entries}].map((entry) => entry.textContent)")


def test_the_policy_stops_scripts_that_are_not_the_page_s_own(page):
    page.evaluate("""(() => {
      const script = document.createElement('script');
      script.textContent = 'window.broken = true';
      document.body.append(script);
    })()""")
    assert page.evaluate("window.broken === undefined")
    # That refusal is the only thing the console has to say.
    assert len(page.problems) == 1
    assert "Content Security Policy" in page.problems.pop()


def test_verdicts_are_told_by_word_and_symbol(page):
    cards = page.evaluate("[...document.querySelectorAll('.card')].map((card) => card.innerText)")
    assert len(cards) == 4
    for card, (word, symbol) in zip(
        cards, [("fail", "✕"), ("warn", "!"), ("unknown", "?"), ("pass", "✓")], strict=True
    ):
        assert {word, symbol} <= set(card.split())
        assert card.count("alert(1)</script>") == 6
    top = page.evaluate("document.querySelector('.card').getBoundingClientRect().top + window.scrollY")
    assert top < 900


def test_the_cursor_reads_all_values_by_keyboard(page):
    i = named("fan")
    focus(page, i)
    assert readout(page, i) == ""
    page.press("ArrowRight")
    first = readout(page, i)
    assert first.startswith("time = ")
    assert all(name in first for name in ("95 %", "80 %", "50 %", "median", "truth"))
    page.press("ArrowRight")
    assert readout(page, i) != first
    page.press("ArrowLeft")
    assert readout(page, i) == first
    page.press("Home")
    assert readout(page, i).startswith("time = −2.000")
    assert "history 1.000" in readout(page, i)
    page.press("End")
    assert readout(page, i).startswith("time = 29.00")
    page.press("Escape")
    assert readout(page, i) == ""


def test_exponents_are_read_by_their_names(page):
    i = named("exponents")
    focus(page, i)
    page.press("Home")
    assert readout(page, i).startswith("λ₁truth 0.9000kaffee 0.8800 (0.8600 … 0.9000)")
    page.press("ArrowRight")
    assert "kaffee –" in readout(page, i)


def test_plots_are_magnified_by_keyboard_and_pointer_and_reset(page):
    i = named("coverage")
    focus(page, i)
    whole = marks(page, i)
    page.press("+")
    closer = marks(page, i)
    assert closer != whole
    page.press("0")
    assert marks(page, i) == whole
    page.evaluate(figure(i, ".querySelector('.stage').scrollIntoView({block: 'center', behavior: 'instant'})"))
    box = page.evaluate(figure(i, ".querySelector('.stage').getBoundingClientRect().toJSON()"))
    middle = box["top"] + box["height"] / 2
    page.drag((box["left"] + 200, middle), (box["left"] + 500, middle))
    assert marks(page, i) not in (whole, closer)
    for clicks in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            page.mouse(kind, box["left"] + 300, middle, clicks=clicks)
    assert marks(page, i) == whole


def test_a_legend_entry_hides_and_shows(page):
    i = named("pit")
    entry = figure(i, ".querySelector('.legend button')")
    before = marks(page, i)
    page.evaluate(f"{entry}.focus()")
    page.press("Enter", text="\r")
    assert page.evaluate(f"{entry}.getAttribute('aria-pressed')") == "false"
    assert marks(page, i).count("<path") == before.count("<path") - 1
    page.press("Enter", text="\r")
    assert marks(page, i) == before


def test_every_panel_can_be_chosen(page):
    select = figure(0, ".querySelector('select')")
    count = page.evaluate(f"{select}.options.length")
    assert count == 8
    seen = []
    for option in range(count):
        page.evaluate(f"{select}.value = {option}; {select}.dispatchEvent(new Event('change'))")
        seen.append(page.evaluate(figure(0, ".querySelector('.stage').innerHTML")))
        assert "NaN" not in seen[-1]
        assert "Infinity" not in seen[-1]
    assert len(set(seen)) == count
    assert seen[1].count("nothing to show") == 1
    assert page.evaluate(CLEAN)


def test_attractors_turn_together_by_keyboard_and_drag(page):
    i = named("two")
    pixels = figure(i, ".querySelectorAll('canvas')")
    shot = f"[...{pixels}].map((canvas) => canvas.toDataURL())"
    before, angle = page.evaluate(shot), readout(page, i)
    focus(page, i)
    page.press("ArrowRight")
    page.press("ArrowUp")
    assert readout(page, i) == "turned −29°, tilted 25°"
    after = page.evaluate(shot)
    assert all(old != new for old, new in zip(before, after, strict=True))
    page.press("0")
    assert readout(page, i) == angle
    page.evaluate(figure(i, ".querySelector('.stage').scrollIntoView({block: 'center', behavior: 'instant'})"))
    box = page.evaluate(figure(i, ".querySelector('canvas').getBoundingClientRect().toJSON()"))
    page.drag((box["left"] + 100, box["top"] + 100), (box["left"] + 160, box["top"] + 100))
    assert readout(page, i) != angle


def test_the_numbers_are_there_without_the_picture(page):
    for title, head, rows in (("exponents", "truth", 3), ("two", "x", 167), ("pit", "share", 10)):
        i = named(title)
        page.evaluate(figure(i, ".querySelector('button[aria-expanded]').click()"))
        table = figure(i, ".querySelector('.numbers table')")
        assert head in page.evaluate(f"[...{table}.querySelectorAll('th')].map((cell) => cell.textContent)")
        assert page.evaluate(f"{table}.querySelectorAll('tbody tr').length") == rows


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(browser, page_file, dark):
    browser.open(page_file, width=400, height=800, dark=dark)
    assert browser.evaluate(FITS)
    widths = browser.evaluate("[...document.querySelectorAll('.stage')].map((stage) => stage.clientWidth)")
    assert min(widths) >= 360
    assert browser.evaluate("new Set([...document.querySelectorAll('.card')].map((c) => c.offsetLeft)).size") == 1
    assert [figure["drawn"] for figure in browser.evaluate(FIGURES)] == ["true"] * 11
    paper = "getComputedStyle(document.body).backgroundColor"
    assert (browser.evaluate(paper) == "rgb(255, 255, 255)") != dark
    assert browser.problems == []


def test_a_phone_shows_what_fails_on_its_first_screen(browser, tmp_path):
    path = tmp_path / "fair.html"
    statuses = (("1 a", "pass"), ("1 a", "warn"), ("2 b", "pass"), ("3 c", "fail"))
    verdicts = [verdict(axis, f"check {i}", "n", status, "1", "r", "s") for i, (axis, status) in enumerate(statuses)]
    table = Table("wide", tuple(f"column {i}" for i in range(20)), [[1.0] * 20])
    sections = [Section(title, tables=[table]) for title in "abc"]
    path.write_text(Report("r", sections, subtitle="s", verdicts=verdicts).to_html(), encoding="utf-8")
    browser.open(path, width=400, height=800)
    bottoms = "[...document.querySelectorAll('.badge, .card.fail')].map((b) => b.getBoundingClientRect().bottom)"
    assert max(browser.evaluate(bottoms)) < 800
    # Wide tables scroll inside their box.
    assert browser.evaluate(FITS)
    assert browser.evaluate("(([box]) => box.scrollWidth > box.clientWidth)(document.querySelectorAll('.scroll'))")
    # By keyboard, after the three entries of the list of sections, to the badge that fails.
    for _ in range(6):
        browser.press("Tab")
    assert browser.evaluate("document.activeElement.className") == "badge fail"
    browser.press("Enter", text="\r")
    assert browser.evaluate("document.querySelector(':target').innerText").split()[:2] == ["✕", "fail"]
    assert browser.problems == []


def test_a_finger_reads_values(browser, page_file):
    browser.open(page_file, width=400, height=800)
    i = named("fan")
    browser.evaluate(figure(i, ".querySelector('.stage').scrollIntoView({block: 'center', behavior: 'instant'})"))
    box = browser.evaluate(figure(i, ".querySelector('.stage').getBoundingClientRect().toJSON()"))
    browser.tap(box["left"] + box["width"] / 2, box["top"] + box["height"] / 2)
    assert readout(browser, i).startswith("time = ")


def test_figures_follow_the_width_of_the_window(browser, page_file):
    browser.open(page_file, width=400, height=800)
    browser.resize(1000)
    settled = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    browser.evaluate(f"{settled}.then(() => null)")
    widths = json.loads(
        browser.evaluate("JSON.stringify([...document.querySelectorAll('.stage > svg')].map((s) => s.clientWidth))")
    )
    assert min(widths) > 900
    assert browser.evaluate(FITS)
    assert browser.problems == []
