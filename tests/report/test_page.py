"""The page: one file without network or foreign scripts, in which every text is escaped."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from sample import EVIL, certificate, with_page

from kaffee.certification.verdicts import Verdict
from kaffee.errors import ConfigError
from kaffee.report.figures import plot_curves
from kaffee.report.page import Picture, Report, Section, _tabulate_numbers
from kaffee.report.sections import lay_out_certificate
from kaffee.tables import Table

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Collects tags and addresses, and notices tags that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.open, self.text = [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def hostile_page():
    table = Table(EVIL, (EVIL,), [[EVIL]], note=EVIL)
    picture = Picture(EVIL, EVIL, plot_curves({EVIL: {EVIL: ([0, 1], [1, 2])}, "b": {EVIL: ([0], [1])}}, x=EVIL))
    section = Section(EVIL, EVIL, tables=[table], pictures=[picture], code=EVIL)
    verdicts = [Verdict(1, EVIL, "pass", 1.0, EVIL, EVIL, EVIL)]
    parts = {"subtitle": EVIL, "verdicts": verdicts, "provenance": {EVIL: EVIL}}
    return Report(EVIL, [section, Section("empty")], **parts).to_html()


def test_no_text_becomes_a_tag_and_nothing_is_loaded():
    text = hostile_page()
    page = Page(text)
    assert page.open == []
    assert page.tags.count("script") == 4  # the data of the figure, the looks, Plotly and the page's own
    assert page.tags.count("img") == 0
    assert page.tags.count("section") == 4
    assert page.text.count(EVIL) == 26
    assert all(address.startswith(("#section-", "#verdict-")) for address in page.addresses)
    assert not {"link", "iframe", "object"} & set(page.tags)


def test_only_the_page_s_own_scripts_are_allowed():
    text = hostile_page()
    policy = re.search('<meta http-equiv="Content-Security-Policy" content="(.*?)">', text)[1]
    assert policy.startswith("default-src 'none'; img-src data: blob:; ")
    scripts = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    for inside in scripts:
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    still = Report("still").to_html()
    assert "script-src 'none'" in still
    assert len(still) < 20_000


def test_the_page_says_its_encoding_language_and_width():
    text = Report("Größe → 1").to_html()
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">')
    assert "width=device-width" in text
    assert "<title>Größe → 1</title>" in text
    assert "<h1>a?b</h1>" in Report("a\udc80b").to_html()


def test_a_verdict_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match=r"Unknown status of a verdict 'passed'. Did you mean 'pass'"):
        Report("r", verdicts=[Verdict(1, "a", "passed", 1.0, "r", "s")]).to_html()


def test_each_axis_has_a_badge_that_leads_to_what_decides_it():
    checks = ((1, "a", "pass"), (1, "b", "fail"), (1, "<c>", "unknown"), (2, "d", "unknown"), (3, "e", "pass"))
    text = Report("r", verdicts=[Verdict(axis, name, status, 1.0, "r", "s") for axis, name, status in checks]).to_html()
    pattern = 'class="badge (.*?)" href="#verdict-(.)">.*?class="judged">(.*?)<.*?"why">(.*?)<'
    assert re.findall(pattern, text, re.DOTALL) == [
        ("fail", "1", "1 local probabilistic", "decided by b; unknown: &lt;c&gt;"),
        ("unknown", "3", "2 stochastic free run", "decided by d"),
        ("pass", "4", "3 deterministic core", "all checks pass"),
    ]
    # Cards follow, the worst first, and each can be led to.
    found = re.findall('<li class="card (.*?)" id="verdict-(.)" tabindex="-1">', text)
    assert found == [("fail", "1"), ("unknown", "2"), ("unknown", "3"), ("pass", "0"), ("pass", "4")]
    assert "An axis is as good as its worst check: 1 fail, 2 unknown, 2 pass." in text


def test_long_pages_have_a_list_of_sections_and_end_with_their_origin():
    page = Report("r", [Section("one"), Section("two")], provenance={"seed": 7}).to_html()
    titles = [("#section-0", "one"), ("#section-1", "two"), ("#section-2", "Provenance")]
    assert re.findall('href="(.*?)">(.*?)<', page) == titles
    assert page.index("<dt>seed</dt><dd>7</dd>") > page.index("two</h2>")


def test_the_numbers_of_a_figure_share_their_x_and_are_thinned():
    curves = {"p": {"a": (range(300), range(300)), "b": (range(300), range(300)), "c": ([0, 1], [5, 6])}}
    both, other = _tabulate_numbers(plot_curves(curves, x="t"))
    assert both.columns == ["t", "a", "b"]
    assert both.title == " (every 3 of 300 rows)"
    assert list(both.rows[1]) == [3, 3.0, 3.0]
    assert (other.columns, list(map(list, other.rows)), other.title) == (["t", "c"], [[0, 5.0], [1, 6.0]], "c")


def test_a_whole_page_is_small_and_closed():
    text = lay_out_certificate(with_page(certificate(), EVIL)).to_html()
    assert Page(text).open == []
    assert 4e6 < len(text.encode()) < 5.6e6
