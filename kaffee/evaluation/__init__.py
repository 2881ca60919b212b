"""Three-axis evaluation: local probabilistic behaviour, stochastic dynamics, deterministic dynamics (section 4.2)."""

from kaffee.evaluation.card import ReportCard as ReportCard
from kaffee.evaluation.card import evaluate as evaluate
from kaffee.evaluation.protocol import Protocol as Protocol
from kaffee.evaluation.reference import Reference as Reference
from kaffee.evaluation.reference import simulate_reference as simulate_reference
