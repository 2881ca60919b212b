"""The page in a real browser: drawn without an error and without network, on screens and phones, light and dark."""

import time

import pytest
from chromium import Chromium, find_chromium
from sample import EVIL, many_coordinates

from kaffee.report.sections import lay_out_certificate

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium on this machine; install it (Debian: apt-get install chromium)"
)

WAITING = "document.querySelectorAll('.stage:not([data-drawn])').length"
DRAWN = """[...document.querySelectorAll('.stage')].map((stage) =>
  stage.querySelectorAll('.trace, .point, .scene canvas, canvas, .bars path').length)"""
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
NUM_FIGURES = 13


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "a <b> & 'c'.html"
    names = (EVIL, "b", "c", "d", "e", "f")
    path.write_text(lay_out_certificate(many_coordinates(names)).to_html(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    started = Chromium(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


def open_page(browser, page_file, **options):
    browser.open(page_file, **options)
    limit = time.monotonic() + 60
    while browser.evaluate(WAITING):
        assert time.monotonic() < limit, browser.problems
        time.sleep(0.1)


@pytest.fixture(scope="module")
def page(browser, page_file):
    open_page(browser, page_file, width=1400)
    return browser


def test_every_figure_is_drawn_without_an_error_and_without_network(page, page_file):
    found = page.evaluate(DRAWN)
    assert len(found) == NUM_FIGURES
    assert all(found), found
    assert page.problems == []
    assert page.requests == [page_file.as_uri()]
    assert page_file.stat().st_size < 6e6


def test_hostile_texts_are_shown_and_do_nothing(page):
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.title").split() == EVIL.split()
    assert page.evaluate("document.querySelector('h1').textContent") == EVIL
    texts = "[...document.querySelectorAll('.stage text')].map((text) => text.textContent).join(' ')"
    assert "<img src=x onerror=alert(1)>" in page.evaluate(texts)
    assert page.evaluate("document.querySelector('select').options[0].text").startswith("<script>")


def test_the_policy_stops_scripts_that_are_not_the_page_s_own(page):
    page.evaluate("""(() => {
      const script = document.createElement('script');
      script.textContent = 'window.broken = true';
      document.body.append(script);
    })()""")
    assert page.evaluate("window.broken === undefined")
    assert "Content Security Policy" in page.problems.pop()


def test_every_panel_can_be_chosen_by_a_menu_of_the_browser(page):
    last = NUM_FIGURES - 1
    select = f"document.querySelectorAll('.plot')[{last}].querySelector('select')"
    visible = f"document.querySelectorAll('.stage')[{last}].data.map((trace) => trace.visible)"
    assert page.evaluate(visible) == [True, False]
    page.evaluate(f"{select}.selectedIndex = 1; {select}.dispatchEvent(new Event('change'))")
    assert page.evaluate(visible) == [False, True]


def test_attractors_turn_together(page):
    stage = "document.querySelector('.stage')"
    page.evaluate(f"Plotly.relayout({stage}, {{'scene2.camera': {{eye: {{x: 2, y: 1, z: 0}}}}}}).then(() => 1)")
    time.sleep(0.5)
    eyes = page.evaluate(f"['scene', 'scene2', 'scene5'].map((name) => {stage}.layout[name].camera.eye.x)")
    assert eyes == [2, 2, 2]


def test_the_numbers_are_there_without_the_picture(page):
    rows = "[...document.querySelectorAll('.plot details')].map((part) => part.querySelectorAll('tbody tr').length)"
    assert min(page.evaluate(rows)) >= 3


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(browser, page_file, dark):
    open_page(browser, page_file, width=400, height=800, dark=dark)
    assert browser.evaluate(FITS)
    assert min(browser.evaluate("[...document.querySelectorAll('.stage')].map((stage) => stage.clientWidth)")) >= 360
    assert browser.evaluate("new Set([...document.querySelectorAll('.card')].map((c) => c.offsetLeft)).size") == 1
    assert (
        max(browser.evaluate("[...document.querySelectorAll('.badge')].map((b) => b.getBoundingClientRect().bottom)"))
        < 800
    )
    paper = "getComputedStyle(document.body).backgroundColor"
    assert (browser.evaluate(paper) == "rgb(255, 255, 255)") != dark
    ink = "document.querySelectorAll('.stage')[1].data.find((trace) => trace.name === 'truth').line.color"
    assert (browser.evaluate(ink) == "#000000") != dark
    assert browser.problems == []
