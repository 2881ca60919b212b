"""The self-test of an installation."""

import json

from kaffee.filtering import selftest


def test_the_gradient_is_exact_here():
    assert 0.0 <= selftest.gradient_error() < selftest.TOLERANCE


def test_facts_are_json_and_problems_are_told(monkeypatch):
    monkeypatch.setattr(selftest, "update_seconds", lambda: 0.01)
    monkeypatch.setattr(selftest, "gradient_error", lambda: 1e-12)
    facts, problems = selftest.examine()
    assert problems == []
    assert json.loads(json.dumps(facts)) == facts
    assert facts["gradient error (float64)"] == 1e-12
    assert "cpu" in facts["devices"].lower()


def test_a_wrong_gradient_is_a_problem_also_if_it_is_nan(monkeypatch):
    monkeypatch.setattr(selftest, "update_seconds", lambda: 0.01)
    for error in (1e-3, float("nan")):
        monkeypatch.setattr(selftest, "gradient_error", lambda error=error: error)
        assert "hand-derived gradient differs" in selftest.examine()[1][0]
