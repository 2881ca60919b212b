"""Put measured tables into the docs: `python docs/fill.py`, or `--check` to see whether they are up to date.

Between `<!-- begin: ARGUMENTS -->` and `<!-- end -->` stands what `kaffee bench table ARGUMENTS --markdown` prints. If
the arguments are the name of a benchmark (`benchmarks.defaults`), its table of committed results does.
"""

import importlib
import re
import sys
from pathlib import Path

from typer.testing import CliRunner

from kaffee.cli.main import app

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))
BLOCK = re.compile(r"(<!-- begin: (?P<arguments>[^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(arguments: str) -> str:
    """The Markdown of a table from the committed results."""
    if arguments.startswith("benchmarks."):
        return importlib.import_module(arguments).table().to_markdown().strip()
    results = FOLDER.parent / "results"
    call = ["bench", "table", *arguments.split(), "--markdown", "--results", str(results)]
    outcome = CliRunner().invoke(app, call)
    if outcome.exit_code:
        raise SystemExit(f"kaffee {' '.join(call)}: {outcome.exception}")
    return outcome.stdout.strip()


def filled(text: str) -> str:
    """A page with every table as the results at hand have it."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{table(found['arguments'])}\n\n{found[3]}", text)


def main() -> int:
    stale = []
    for page in sorted(FOLDER.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = filled(text)
        if new != text:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    print(f"{'stale' if '--check' in sys.argv else 'filled'}: {', '.join(stale) or 'nothing'}")
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
