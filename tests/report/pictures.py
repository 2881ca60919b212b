"""Pictures of the sample pages, to look at: python tests/report/pictures.py FOLDER"""

import sys
import tempfile
from pathlib import Path

from chromium import Chromium
from fair_page import fair_page
from nasty_page import nasty_page


def take(folder):
    """Both pages as HTML, and as PNG at the width of a screen, of a phone, and in the dark."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Chromium(profile)
        for name, page in (("fair", fair_page()), ("nasty", nasty_page())):
            path = folder.resolve() / f"{name}.html"
            path.write_text(page.to_html(), encoding="utf-8")
            for width, dark in ((1400, False), (400, False), (1400, True)):
                browser.open(path, width=width, dark=dark)
                taken = browser.evaluate("document.documentElement.dataset.milliseconds")
                print(f"{name} {width}: {path.stat().st_size / 1e6:.2f} MB, {taken} ms", *browser.problems)
                browser.screenshot(folder / f"{name}-{width}{'-dark' if dark else ''}.png")
        browser.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
