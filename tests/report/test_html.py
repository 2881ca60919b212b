"""The page: one file without network or foreign scripts, in which every text is escaped."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure
from nasty_page import nasty_page, verdict

from kaffee.errors import ConfigError
from kaffee.report.page import Report, Section, png
from kaffee.tables import Table

EVIL = "<script>alert('1')</script> & \"quotes\""
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


def figure():
    made = Figure(figsize=(1, 1))
    made.subplots().plot([0, 1])
    return made


def hostile_page():
    table = Table(EVIL, (EVIL,), [[EVIL]], note=EVIL)
    section = Section(EVIL, EVIL, tables=[table], figures=[(figure(), EVIL)], code=EVIL)
    return Report(EVIL, [section, Section("empty")]).to_html()


def test_no_text_becomes_a_tag():
    page = Page(hostile_page())
    assert page.open == []
    assert "script" not in page.tags
    assert page.tags.count("section") == 2
    assert page.text.count(EVIL) == 10


def test_nothing_is_loaded_from_elsewhere():
    text = hostile_page()
    page = Page(text)
    assert len(page.addresses) == 1
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert not {"link", "script", "iframe", "object"} & set(page.tags)


def test_the_page_says_its_encoding_language_and_width():
    text = Report("Größe → 1").to_html()
    assert text.startswith("<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'>")
    assert "width=device-width" in text
    assert "<title>Größe → 1</title>" in text


def test_equal_figures_are_equal_bytes():
    assert png(figure()) == png(figure())


def interactive_page():
    return nasty_page().to_html()


def test_an_interactive_page_is_closed_and_loads_nothing_either():
    page = Page(interactive_page())
    assert page.open == []
    assert page.tags.count("script") == page.tags.count("figure") + 1 == 12
    assert page.tags.count("li") == 3 + 1 + 4
    assert all(address.startswith(("#section-", "#verdict-")) for address in page.addresses)
    assert "http://" not in interactive_page()


def test_only_the_page_s_own_script_and_style_are_allowed():
    text = interactive_page()
    policy = re.search('<meta http-equiv="Content-Security-Policy" content="(.*?)">', text)[1]
    assert policy.startswith("default-src 'none'; img-src data:; ")
    for name in ("script", "style"):
        inside = re.search(f"<{name}>(.*?)</{name}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert "script-src 'none'" in Report("still").to_html()


def test_a_verdict_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match=r"Unknown status of a verdict 'passed'. Did you mean 'pass'"):
        Report("r", verdicts=[verdict("a", "c", "n", "passed", "1", "r", "s")]).to_html()


def test_each_axis_has_a_badge_that_leads_to_what_decides_it():
    checks = (("1 x", "a", "pass"), ("1 x", "b", "fail"), ("1 x", "c", "unknown"), ("2 <y>", "d", "unknown"))
    verdicts = [verdict(axis, check, "n", status, "1", "r", "s") for axis, check, status in checks]
    text = Report("r", verdicts=[*verdicts, verdict("3 z", "e", "n", "pass", "1", "r", "s")]).to_html()
    badges = re.findall("<a class='badge (.*?)' href='#verdict-(.)'>.*?class='judged'>(.*?)<.*?'why'>(.*?)<", text)
    assert badges == [
        ("fail", "1", "1 x", "decided by b; unknown: c"),
        ("unknown", "3", "2 &lt;y&gt;", "decided by d"),
        ("pass", "4", "3 z", "all checks pass"),
    ]
    # Cards follow, the worst first, and each can be led to.
    assert re.findall("<li class='card (.*?)' id='verdict-(.)' tabindex='-1'>", text) == [
        ("fail", "1"),
        ("unknown", "2"),
        ("unknown", "3"),
        ("pass", "0"),
        ("pass", "4"),
    ]
    assert "An axis is as good as its worst check: 1 fail, 2 unknown, 2 pass." in text


def test_long_pages_have_a_list_of_sections_and_end_with_their_origin():
    page = Report("r", [Section("one"), Section("two")], provenance={"seed": 7}).to_html()
    assert re.findall("href='(.*?)'>(.*?)<", page) == [
        ("#section-0", "one"),
        ("#section-1", "two"),
        ("#section-2", "Provenance"),
    ]
    assert page.endswith("<dt>seed</dt><dd>7</dd></div></dl></section></main></body></html>\n")


def test_names_that_are_no_unicode_can_be_written():
    assert "<h1>a?b</h1>" in Report("a\udc80b").to_html()
