"""How a series is told apart: a colour, and a dash or symbol for those who do not see colours."""

from dataclasses import dataclass, field

from kaffee.errors import ConfigError, unknown
from kaffee.report.style import COLOURS

DASHES = ("solid", "dashed", "dotted", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "triangle", "diamond", "cross")
GREY = "grey"
# The truth's black is left to what is called so.
CYCLE = ("kaffee", "prior", "frozen_core", "core_collapse", "noise_masking", "blind")
# The same in all figures, as the colours are.
DASH_OF = {"kaffee": "solid", "truth": "dashed", "prior": "longdash", GREY: "dotted"}
ALIASES = {"data": "truth", "reference": "truth", "ideal": GREY, "expected": GREY, "observation": GREY}


def check_choice(kind: str, given: str | None, allowed: tuple[str, ...]) -> None:
    """Raise unless a name is one of those allowed, or None."""
    if given is not None and given not in allowed:
        raise ConfigError(unknown(kind, given, allowed))


def colour_names() -> tuple[str, ...]:
    """The colours a series may have: what they stand for in every figure of kaffee, and grey."""
    return (*COLOURS, GREY)


@dataclass
class Styles:
    """Gives every name its colour, dash and symbol, in the order in which the names come.

    A name that says what it is (`prior`, `the truth`) has the colour that it has everywhere.

    >>> styles = Styles()
    >>> styles.colour("prior"), styles.colour("run 1"), styles.colour("run 2"), styles.colour("run 1")
    ('prior', 'kaffee', 'frozen_core', 'kaffee')
    """

    _colours: dict[str, str] = field(default_factory=dict)
    _dashes: dict[str, str] = field(default_factory=dict)
    _symbols: dict[str, str] = field(default_factory=dict)

    def colour(self, name: str, wanted: str | None = None) -> str:
        if name not in self._colours:
            self._colours[name] = wanted or _by_name(name) or self._next()
        return self._colours[name]

    def dash(self, name: str, wanted: str | None = None) -> str:
        usual = DASH_OF.get(_by_name(name) or "")
        return _assigned(self._dashes, DASHES, name, wanted, usual)

    def symbol(self, name: str, wanted: str | None = None) -> str:
        return _assigned(self._symbols, SYMBOLS, name, wanted)

    def _next(self) -> str:
        used = list(self._colours.values())
        return min(CYCLE, key=used.count)


def _by_name(name: str) -> str | None:
    lower = name.lower()
    named = {**{key: key for key in COLOURS}, **ALIASES}
    return next((colour for key, colour in named.items() if key in lower), None)


def _assigned(
    known: dict[str, str], choices: tuple[str, ...], name: str, wanted: str | None, usual: str | None = None
) -> str:
    if name not in known:
        used = list(known.values())
        known[name] = wanted or (usual if usual and usual not in used else min(choices, key=used.count))
    return known[name]
