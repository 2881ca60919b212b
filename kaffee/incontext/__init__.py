"""In-context adaptation: a foundation model and a context become a calibrated filter (section 5.2, appendix C.5)."""

from kaffee.incontext.adaptation import CALIBRATED as CALIBRATED
from kaffee.incontext.adaptation import HELD_OUT as HELD_OUT
from kaffee.incontext.adaptation import IN_CONTEXT as IN_CONTEXT
from kaffee.incontext.adaptation import adapt_in_context as adapt_in_context
from kaffee.incontext.adaptation import fewest_rows as fewest_rows
from kaffee.incontext.adaptation import lyapunov_window as lyapunov_window
from kaffee.incontext.conditioning import ContextModel as ContextModel
from kaffee.incontext.conditioning import condition as condition
from kaffee.incontext.conditioning import read_all as read_all
from kaffee.incontext.surrogate import adapt_foundation_model as adapt_foundation_model
