"""The certificate's own test: the true system passes, a cycle in place of chaos fails; more in `benchmarks.truth`."""

from benchmarks.truth import make_case
from certification.glass import CHAOTIC, PERIODIC, glass_surrogate, read_glass
from kaffee.certification.certificate import CertificationSettings, certify
from kaffee.certification.free_runs import agreement
from kaffee.certification.verdicts import _judge_core, _judge_run


def test_the_true_system_raises_no_alarm_on_few_rows():
    case = make_case("lorenz63", 300, 0)
    settings = CertificationSettings(num_starts=150, members=50, divergence_runs=8, divergence_steps=3_000)
    found = certify(case.surrogate, case.train, case.test, settings=settings)
    assert {v.name: v.sentence for v in found.verdicts if v.status in ("warn", "fail")} == {}
    passed = {v.name for v in found.verdicts if v.status == "pass"}
    assert {"calibration", "whiteness", "skill", "stochastic run", "core"} <= passed
    assert "Good for: filtering and smoothing, forecasts up to" in found.purpose.sentence
    assert not found.drift.drifts


def test_a_cycle_in_place_of_mackey_and_glass_chaos_fails():
    """Its marginal, its D_stsp and its D_H are close to those of the data; but it repeats itself, and they do not."""
    train, test = read_glass(1200, 300)
    right, cycle = (
        agreement(glass_surrogate(train, power), train, test, runs=4, steps=4_000) for power in (CHAOTIC, PERIODIC)
    )
    assert right.core.lost == right.stochastic.lost == 0
    assert cycle.core.periodic == cycle.stochastic.periodic == 4
    assert cycle.core.period == 48
    assert cycle.delays.copies == 3
    assert cycle.core.typical.d_h < 0.1
    for verdict in (_judge_core(cycle), _judge_run("stochastic run", cycle, cycle.stochastic)):
        assert verdict.status == "fail"
        assert "4 repeat themselves after 48 steps, where data do not" in verdict.sentence
