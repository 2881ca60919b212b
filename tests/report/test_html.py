"""The page: one file without network or scripts, in which every text is escaped."""

from html.parser import HTMLParser

from matplotlib.figure import Figure

from kaffee.report.html import Report, Section, png
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
