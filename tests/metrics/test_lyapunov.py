"""Lyapunov spectra: exact cases, known attractors, coverage of the standard errors, divergence."""

import doctest

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kaffee.metrics.lyapunov
from kaffee.errors import ConfigError
from kaffee.metrics.lyapunov import LyapunovSpectrum, lyapunov_spectrum
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate
from kaffee.systems.system import System


class Core(eqx.Module):
    """A map with its own Jacobian, as trained cores have."""

    W: jax.Array

    def __call__(self, z):
        return jnp.tanh(self.W @ z)

    def jacobian(self, z):
        return (1 - jnp.tanh(self.W @ z) ** 2)[:, None] * self.W


def core(M=6, gain=2.0, dtype=np.float64):
    return Core(jnp.asarray(gain / np.sqrt(M) * np.random.default_rng(1).standard_normal((M, M)), dtype))


def iterate(step, z, T):
    """T states, z being the first."""
    return jax.lax.scan(lambda z, _: (step(z), z), z, length=T)[1]


@pytest.mark.parametrize("every", [1, 3])
def test_linear_map_gives_log_of_eigenvalues(every, x64):
    eigenvalues = np.array([1.7, 1.2, 0.9, 0.4])
    V = np.random.default_rng(0).standard_normal((4, 4))
    A = jnp.asarray(V @ np.diag(eigenvalues) @ np.linalg.inv(V))
    spectrum = lyapunov_spectrum(lambda z: A @ z, jnp.zeros(4), num_steps=300, reorthonormalise_every=every)
    np.testing.assert_allclose(spectrum.exponents, np.log(eigenvalues), atol=1e-10)
    assert spectrum.sum_positive == pytest.approx(np.log(1.7 * 1.2), abs=1e-10)
    assert (spectrum.standard_errors < 1e-10).all()


def test_axes_that_are_invariant_do_not_hide_growth(x64):
    # a frame that starts as the first unit vector would stay on the contracting axis for ever
    leading = lyapunov_spectrum(lambda z: z * jnp.array([0.5, 2.0]), jnp.zeros(2), num_steps=50, num_exponents=1)
    assert leading.maximal == pytest.approx(np.log(2.0), abs=1e-12)


def test_damping_of_the_linear_spiral():
    spectrum = lyapunov_spectrum(get_system("linear_spiral"), num_steps=100)
    np.testing.assert_allclose(spectrum.exponents, -0.2, atol=2e-5)  # RK4 is exact to dt^4 only
    assert spectrum.kaplan_yorke_dimension == 0.0


@pytest.mark.parametrize("every", [1, 4])
def test_sum_is_mean_log_determinant(every, x64):
    model, T = core(), 2000
    states = iterate(model, jnp.full(6, 0.3), T)
    log_det = jnp.linalg.slogdet(jax.vmap(model.jacobian)(states))[1]
    along = lyapunov_spectrum(model, states, transient=0, reorthonormalise_every=every)
    assert along.num_steps == T
    assert along.exponents.sum() == pytest.approx(float(log_det.mean()), abs=1e-8)


def test_rollout_trajectory_and_autodiff_agree(x64):
    model, z = core(), jnp.full(6, 0.3)
    rollout = lyapunov_spectrum(model, z, num_steps=400, transient=100)
    along = lyapunov_spectrum(model, iterate(model, z, 500), transient=100)
    autodiff = lyapunov_spectrum(lambda z: model(z), z, num_steps=400, transient=100)
    np.testing.assert_allclose(along.exponents, rollout.exponents, atol=1e-8)
    np.testing.assert_allclose(autodiff.exponents, rollout.exponents, atol=1e-8)


def test_leading_exponents_and_unit_of_time(x64):
    system = get_system("lorenz96", N=5)
    full = lyapunov_spectrum(system, num_steps=1000)
    leading = lyapunov_spectrum(system, num_steps=1000, num_exponents=3)
    np.testing.assert_allclose(leading.exponents, full.exponents[:3], atol=1e-8)
    per_step = lyapunov_spectrum(system, num_steps=1000, dt=1.0)  # the same program
    np.testing.assert_allclose(per_step.exponents, full.exponents * system.dt, atol=1e-12)


def test_lorenz63_reference_values():
    spectrum = lyapunov_spectrum(get_system("lorenz63"), num_steps=200_000)
    assert spectrum.maximal == pytest.approx(0.90, rel=0.03)
    assert abs(spectrum.exponents[1]) < 5e-3  # along the flow
    assert spectrum.exponents.sum() == pytest.approx(-(10 + 1 + 8 / 3), rel=1e-3)  # divergence of the field
    assert spectrum.kaplan_yorke_dimension == pytest.approx(2.06, abs=0.01)


def test_lorenz96_reference_values():
    spectrum = lyapunov_spectrum(get_system("lorenz96"), num_steps=100_000)
    assert spectrum.sum_positive == pytest.approx(4.9, rel=0.03)
    assert spectrum.maximal == pytest.approx(1.55, rel=0.03)
    assert spectrum.exponents.sum() == pytest.approx(-20, rel=1e-3)
    np.testing.assert_allclose(spectrum.exponents[:6], [1.55, 1.23, 0.93, 0.66, 0.41, 0.15], atol=0.05)


# The paper's values are from 1e4 steps, whose standard error is 3-17 % here, so a range around both its value
# and that of 1e5 steps. Hadley, Halvorsen and Nose-Hoover are all but periodic at the paper's parameters:
# their exponent only has to be near zero.
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("aizawa", 0.07, 0.13),
        ("burke_shaw", 0.62, 0.76),
        ("chen", 1.85, 2.15),
        ("chua", 0.37, 0.47),
        ("dadras", 0.32, 0.42),
        ("genesio_tesi", 0.085, 0.12),
        ("hadley", -0.03, 0.03),
        ("halvorsen", -0.03, 0.03),
        ("nose_hoover", -0.03, 0.03),
        ("qi_chen", 3.6, 4.3),
        ("rabinovich_fabrikant", 0.17, 0.27),
        ("sprott_b", 0.195, 0.225),
    ],
)
def test_leading_exponents_of_the_benchmark(name, low, high):
    spectrum = lyapunov_spectrum(get_system(name), num_steps=50_000)
    assert low < spectrum.maximal < high
    assert spectrum.diverged_at is None


def test_noise_raises_the_growth_of_lorenz96():
    system = get_system("lorenz96")
    noisy = simulate(system, 40_000, process_noise=0.1)
    assert 4.85 < lyapunov_spectrum(system, noisy.states, num_exponents=8).sum_positive < 5.25


def test_standard_errors_cover(x64):
    # Slopes of the skew tent map are independent draws, so the exponent is known: the entropy of (a, 1 - a).
    a = 0.3
    truth = -a * np.log(a) - (1 - a) * np.log(1 - a)

    def tent(z):
        return jnp.where(z < a, z / a, (1 - z) / (1 - a))

    scores = []
    for z0 in np.random.default_rng(0).uniform(0.05, 0.95, 60):
        spectrum = lyapunov_spectrum(tent, jnp.array([z0]), num_steps=2000, transient=20)
        scores.append((spectrum.maximal - truth) / spectrum.standard_errors[0])
    # 95 % expected for Student's t with 19 degrees of freedom; four binomial standard errors of 60 runs
    assert np.mean(np.abs(scores) < 2.093) > 0.95 - 4 * np.sqrt(0.95 * 0.05 / 60)
    assert 0.6 < np.std(scores) < 1.5


@pytest.mark.parametrize("every", [1, 5])
def test_divergence_is_a_result_not_a_crash(every):
    # z -> z^2 from 2: z_t = 2^(2^t), finite in float32 up to t = 6
    spectrum = lyapunov_spectrum(
        lambda z: z**2, jnp.array([2.0]), num_steps=100, transient=0, reorthonormalise_every=every
    )
    assert spectrum.diverged_at == 7
    assert np.isnan(spectrum.exponents).all()
    assert np.isnan(spectrum.standard_errors).all()
    assert np.isnan([spectrum.maximal, spectrum.sum_positive, spectrum.kaplan_yorke_dimension]).all()


def test_gap_in_a_trajectory_is_located():
    states = simulate(get_system("lorenz63"), 200).states.copy()
    states[123, 1] = np.nan
    assert lyapunov_spectrum(get_system("lorenz63"), states).diverged_at == 123


def test_singular_maps_have_minus_infinity(x64):
    spectrum = lyapunov_spectrum(lambda z: jnp.array([2.0, 0.0]) * z, jnp.zeros(2), num_steps=40)
    assert spectrum.diverged_at is None
    assert spectrum.maximal == pytest.approx(np.log(2))
    assert spectrum.exponents[1] < -30  # zero up to rounding of the frame
    nothing = lyapunov_spectrum(lambda z: 0 * z, jnp.ones(2), num_steps=40)
    assert nothing.diverged_at is None
    assert (nothing.exponents == -np.inf).all()
    assert (nothing.sum_positive, nothing.kaplan_yorke_dimension) == (0.0, 0.0)


def test_float32_maps_stay_float32():
    model = core(dtype=np.float32)
    single = lyapunov_spectrum(model, np.full(6, 0.3), num_steps=500)
    assert np.isfinite(single.exponents).all()
    with jax.enable_x64(True):
        kept = lyapunov_spectrum(model, jnp.full(6, 0.3, jnp.float32), num_steps=500)
    np.testing.assert_array_equal(kept.exponents, single.exponents)


def test_kaplan_yorke_dimension_by_hand():
    def dimension(exponents, dim=3):
        exponents = np.array(exponents)
        return LyapunovSpectrum(
            exponents, np.zeros_like(exponents), exponents[None], 1, 1.0, dim
        ).kaplan_yorke_dimension

    assert dimension([1.0, 0.0, -2.0]) == 2.5
    assert dimension([-1.0, -2.0, -3.0]) == 0.0
    assert dimension([1.0, 0.0, -0.5]) == 3.0
    assert dimension([1.0, 0.0, -np.inf]) == 2.0
    assert np.isnan(dimension([1.0, 0.5]))  # would need the third exponent


def test_exponents_are_the_means_of_equal_blocks():
    spectrum = lyapunov_spectrum(get_system("lorenz63"), num_steps=1007)
    assert spectrum.num_steps == 1000  # twenty equal blocks, the rest lengthens the transient
    assert spectrum.block_exponents.shape == (20, 3)
    np.testing.assert_allclose(spectrum.block_exponents.mean(axis=0), spectrum.exponents)


def test_compiles_once():
    traces = 0

    def f(z):
        nonlocal traces
        traces += 1
        return -z

    system = System(f, [1.0], 0.1)
    lyapunov_spectrum(system, num_steps=50)
    before = traces
    lyapunov_spectrum(system, np.array([2.0]), num_steps=50)
    assert traces == before


@pytest.mark.parametrize(
    ("states", "arguments", "words"),
    [
        (None, {"num_steps": 10}, "only a System brings its own"),
        (np.zeros(2), {}, "Give num_steps"),
        (np.zeros((2, 2, 2)), {}, r"shape \(2, 2, 2\)"),
        (
            np.zeros(2),
            {"num_steps": 10, "num_exponents": 3},
            "num_exponents = 3. The state has 2 coordinates",
        ),
        (np.zeros(2), {"num_steps": 10, "reorthonormalise_every": 0}, "reorthonormalise_every = 0"),
        (np.zeros(2), {"num_steps": 10, "reorthonormalise_every": 11}, "Give more steps"),
        (np.zeros(2), {"num_steps": 10, "dt": 0.0}, "dt = 0.0"),
        (np.zeros((9, 2)), {"num_steps": 10}, "9 states is too short"),
        (np.zeros(2), {"num_steps": 10, "transient": -1}, "transient = -1"),
    ],
)
def test_errors_say_what_is_allowed(states, arguments, words):
    with pytest.raises(ConfigError, match=words):
        lyapunov_spectrum(lambda z: z, states, **arguments)


def test_examples_in_docstrings():
    assert doctest.testmod(kaffee.metrics.lyapunov).failed == 0
