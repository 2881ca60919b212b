"""`kaffee.Surrogate`: same kind in, same kind out, and the numbers of the functions behind it."""

import copy
import inspect
import pickle

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from small import SETTINGS, rotation, same_arrays

import kaffee
from kaffee import Surrogate
from kaffee.certification.certificate import CertificationSettings, certify
from kaffee.errors import CheckpointError, ConfigError, DataError, KaffeeError
from kaffee.fitting.config import parse_override
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.run import Loaded, Run, Source
from kaffee.inference.ensembles import forecast, simulate
from kaffee.inference.results import Estimate
from kaffee.surrogate.estimator import NotFittedError

# One shape for all, since compiling is slow: 60 rows of two columns, alone or in pairs.
T, H, MEMBERS, DT = 60, 5, 30, 600.0
DATES = pd.date_range("2024-01-01", periods=T, freq="10min", name="when")
FEW = {"adaptation.calibration": None, "adaptation.confine": None} | {
    text.partition("=")[0]: parse_override(f"x={text.partition('=')[2]}")["x"] for text in SETTINGS
}


def values(seed=0):
    rows = rotation(T, seed=seed)
    rows[[5, 17, 40], [0, 1, 0]] = np.nan
    rows[30] = np.nan
    return rows


def table(seed=0):
    return pd.DataFrame(values(seed), index=DATES, columns=["left", "right"])


def labelled(seed=0):
    coords = {"time": DATES.rename("time"), "sensor": ["left", "right"]}
    return xr.DataArray(values(seed), coords=coords, dims=("time", "sensor"), name="lab")


def series(*seeds):
    recordings = [values(seed) for seed in seeds or (0,)]
    return kaffee.Series.from_arrays(recordings, columns=["left", "right"], times=DATES.to_numpy())


def dataset(seed=0):
    return labelled(seed).to_dataset("sensor")


KINDS = {"table": table, "array": values, "labelled": labelled, "dataset": dataset, "series": series}


@pytest.fixture(scope="module")
def surrogate():
    """Fitted to a table with dates."""
    return Surrogate(settings=FEW).fit(table())


@pytest.fixture(scope="module")
def unnamed():
    """Fitted to an array."""
    return Surrogate(settings=FEW).fit(values(), dt=DT)


def numbers(result, name):
    """A variable of any kind of result as an array (T, N)."""
    if isinstance(result, pd.DataFrame):
        return result[[f"left_{name}", f"right_{name}"]].to_numpy()
    if isinstance(result, xr.Dataset):
        return result[name].to_numpy()
    if isinstance(result, kaffee.Series):
        return result.select([f"left_{name}", f"right_{name}"]).recordings[0]
    return result.quantile(int(name[1:]) / 100) if name.startswith("q") else getattr(result, name)


KIND_OF_RESULT = {"table": pd.DataFrame, "labelled": xr.Dataset, "dataset": xr.Dataset, "series": kaffee.Series}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_numbers_of_the_functions(surrogate, kind):
    model, X = surrogate.reconstruction_, KINDS[kind]()
    found = surrogate.filter(X)
    expected = kaffee.filter_recordings(model, series())
    for name in ("mean", "std", "predicted_mean", "predicted_std"):
        np.testing.assert_array_equal(numbers(found, name), getattr(expected[0], name))
    found, expected = surrogate.smooth(X, quantiles=(0.1,)), kaffee.smooth(model, series())
    np.testing.assert_array_equal(numbers(found, "mean"), expected[0].mean)
    np.testing.assert_allclose(numbers(found, "q10"), expected[0].mean - 1.28155 * expected[0].std, rtol=1e-5)
    found = surrogate.forecast(H, X, members=MEMBERS, seed=3)
    expected = forecast(model, series(), H, members=MEMBERS, seed=3)
    np.testing.assert_array_equal(numbers(found, "mean"), expected[0].mean)
    np.testing.assert_array_equal(numbers(found, "q95"), expected[0].quantile(0.95))
    assert isinstance(found, KIND_OF_RESULT.get(kind, Estimate))
    assert surrogate.score(X) == kaffee.filter_recordings(model, series()).describe()["log_likelihood_per_entry"]


def test_tables_are_those_of_the_functions(surrogate):
    model = surrogate.reconstruction_
    pairs = [
        (surrogate.filter(table()), kaffee.filter_recordings(model, series()).to_series()),
        (surrogate.smooth(table()), kaffee.smooth(model, series()).to_series()),
        (surrogate.forecast(H, table(), members=MEMBERS), forecast(model, series(), H, members=MEMBERS).to_series()),
    ]
    for found, expected in pairs:
        assert tuple(found.columns) == expected.columns
        np.testing.assert_array_equal(found.to_numpy(), expected.recordings[0])
    assert pairs[0][0].index.equals(DATES)
    assert pairs[2][0].index.equals(pd.date_range(DATES[-1], periods=H + 1, freq="10min")[1:])
    own = surrogate.filter(series(0, 1))
    assert own == kaffee.filter_recordings(model, series(0, 1)).to_series()


@pytest.mark.parametrize("kind", KINDS)
def test_imputing_gives_the_same_object_without_gaps(surrogate, kind):
    X = KINDS[kind]()
    filled, std = surrogate.impute(X, return_std=True)
    expected = kaffee.impute(surrogate.reconstruction_, series())
    for result, wanted in ((filled, expected[0].values), (std, expected[0].std)):
        assert type(result) is type(X)
        if kind == "dataset":
            result = result.to_array("sensor").transpose()
        found = result.recordings[0] if kind == "series" else np.asarray(result)
        np.testing.assert_array_equal(found, wanted)
    if kind == "table":
        assert filled.columns.equals(X.columns)
        pd.testing.assert_frame_equal(filled.where(X.notna()), X)
    assert kind == "series" or type(surrogate.impute(X)) is type(X)


def test_dates_that_are_left_out_come_back_with_rows(surrogate):
    kept = table().drop(DATES[[10, 11, 30]])
    filled = surrogate.impute(kept)
    assert filled.index.equals(DATES)
    assert filled.notna().all(axis=None)


def test_several_recordings_give_a_list(surrogate):
    both = surrogate.filter([table(), table(1)])
    assert [type(part) for part in both] == [pd.DataFrame] * 2
    pd.testing.assert_frame_equal(both[0], surrogate.filter(table()), rtol=1e-4, check_exact=False)
    arrays = surrogate.filter(np.stack([values(), values(1)]))
    np.testing.assert_array_equal(arrays[1].mean, numbers(both[1], "mean"))
    assert [part.times for part in arrays] == [None, None]


def test_a_forecast_without_data_goes_on_from_what_was_fitted(surrogate, unnamed):
    pd.testing.assert_frame_equal(
        surrogate.forecast(H, members=MEMBERS), surrogate.forecast(H, table(), members=MEMBERS)
    )
    found = unnamed.forecast(H, members=MEMBERS)
    assert found.members.shape == (MEMBERS, H, 2)
    np.testing.assert_allclose(found.times, DT * np.arange(T, T + H))
    np.testing.assert_array_equal(found.mean, np.mean(found.members, axis=0))
    assert repr(found) == "Estimate(x1, x2; shape (5, 2))"


def test_a_surrogate_of_arrays_takes_tables_by_position_and_keeps_their_names(unnamed):
    with pytest.warns(UserWarning, match="X: 'left', 'right' are taken for the model's 'x1', 'x2', by their position"):
        assert list(unnamed.smooth(table(), quantiles=()))[:2] == ["left_mean", "left_std"]
    with pytest.warns(UserWarning, match="by their position"):
        found = unnamed.filter(table())
    np.testing.assert_array_equal(unnamed.filter(values()).mean, numbers(found, "mean"))
    unnamed.filter(pd.DataFrame(values()))  # pandas named these, nobody else did
    with pytest.raises(DataError, match="the model needs 'x1', 'x2', but 'x1' is not among 'x2', 'y'"):
        unnamed.filter(table().set_axis(["x2", "y"], axis=1))


@pytest.mark.parametrize("number", [2.5, "5", None, 0, True])
def test_numbers_of_steps_are_whole_and_positive(unnamed, number):
    for use in (unnamed.forecast, unnamed.simulate, lambda n: unnamed.forecast(3, members=n)):
        with pytest.raises(ConfigError, match=r"use [12] or more"):
            use(number)
    with pytest.raises(ConfigError, match=r"seed = 0.5 is no whole number"):
        unnamed.simulate(3, seed=0.5)


def test_free_runs_have_the_form_of_the_data(surrogate, unnamed):
    found = surrogate.simulate(20, transient=5, start=[10.0, 13.0])
    expected = simulate(surrogate.reconstruction_, 20, transient=5, start=[10.0, 13.0])
    assert list(found.columns) == ["left", "right"]
    np.testing.assert_array_equal(found, expected[0].values)
    np.testing.assert_allclose(found.index, DT * np.arange(1, 21))
    listed = unnamed.simulate(20, transient=5, runs=1)
    assert [part.shape for part in listed] == [(20, 2)]


def test_online_is_the_same_filter(surrogate):
    online = surrogate.online(gate=0.9999)
    beliefs = np.array([online.step(row).mean for row in values()[:8]])
    np.testing.assert_allclose(beliefs, surrogate.filter(values()).mean[:8], rtol=1e-5)
    assert online.gate == 0.9999


def test_certifying_hands_over_what_was_held_out(surrogate, monkeypatch):
    def handed(model, train, test, *, prior, settings, any_step):
        inspect.signature(certify).bind(model, train, test, prior=prior, settings=settings, any_step=any_step)
        return model, train, test, prior, settings

    monkeypatch.setattr("kaffee.certification.certificate.certify", handed)
    fit, settings = surrogate.fit_, CertificationSettings()
    expected = (surrogate.reconstruction_, fit.train, fit.test, surrogate.prior_, settings)
    assert surrogate.certify(settings=settings) == expected
    assert surrogate.certify(table(1))[2] == series(1)


# --- as scikit-learn expects it ---


def test_arguments_are_kept_as_they_came_and_make_the_same_again():
    given = {"method": "blind", "seed": 3, "settings": FEW, "progress": True, "observation": "learned:3"}
    first = Surrogate(**given)
    again = Surrogate(**first.get_params())
    assert all(again.get_params()[name] is value for name, value in given.items())
    assert first.get_params(deep=False) == given
    assert first.set_params(seed=4) is first
    assert first.seed == 4
    assert copy.deepcopy(first).get_params() == first.get_params()
    with pytest.raises(ConfigError, match=r"Unknown parameter 'sed'. Did you mean 'seed'\?"):
        first.set_params(sed=1)


def test_single_settings_are_arguments_of_their_own():
    first = Surrogate(settings={"core.latent_dim": 9}).set_params(settings__core__num_gates=2)
    assert first.settings == {"core": {"latent_dim": 9, "num_gates": 2}}
    assert first.set_params(settings__core__latent_dim=5, settings={"seed": 1}).settings == {
        "seed": 1,
        "core": {"latent_dim": 5},
    }
    complete = Surrogate(settings=kaffee.FitSettings()).set_params(settings__core__latent_dim=7)
    assert complete.settings.core.latent_dim == 7
    with pytest.raises(ConfigError, match=r"Unknown setting 'core.latent_dimm'"):
        complete.set_params(settings__core__latent_dimm=7)


def test_scikit_learn_clones_searches_and_asks_for_a_fit(surrogate):
    sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'kaffee[dev]'")
    from sklearn.model_selection import GridSearchCV, TimeSeriesSplit
    from sklearn.pipeline import make_pipeline
    from sklearn.utils import get_tags
    from sklearn.utils.validation import check_is_fitted

    again = sklearn.base.clone(surrogate)
    assert again.get_params() == surrogate.get_params()
    with pytest.raises(sklearn.exceptions.NotFittedError):
        check_is_fitted(again)
    check_is_fitted(surrogate)
    assert get_tags(surrogate).input_tags.allow_nan
    X, folds = rotation(T + 20), TimeSeriesSplit(2, test_size=10, max_train_size=T)
    few = {**FEW, "rung": "scratch"}
    search = GridSearchCV(Surrogate(settings=few), {"settings__seed": [0, 1]}, cv=folds, refit=False).fit(X)
    train, test = next(folds.split(X))
    own = Surrogate(seed=1, settings=few).fit(X[train]).score(X[test])
    assert search.cv_results_["split0_test_score"][1] == pytest.approx(own)
    assert make_pipeline(surrogate).score(values()) == surrogate.score(values())
    assert pickle.loads(pickle.dumps(surrogate)).score(values()) == surrogate.score(values())


def test_it_says_what_it_is(surrogate):
    assert repr(Surrogate()) == "Surrogate()"
    assert repr(Surrogate("blind", seed=1)) == "Surrogate(method='blind', seed=1)"
    assert repr(surrogate).endswith("fitted to left, right at steps of 600")


def test_settings_may_be_complete_or_say_what_differs():
    complete = kaffee.override(kaffee.FitSettings(method="blind", seed=2), ["core.latent_dim=9"])

    def resolved(*args, **kwargs):
        return Surrogate(*args, **kwargs)._resolved_settings(series())

    assert resolved(settings=complete) == complete
    assert resolved("kaffee", seed=5, settings=complete).method == "kaffee"
    assert resolved(settings={"core.latent_dim": 9, "core": {"num_gates": 2}}).core.num_gates == 2
    assert resolved(settings={"core": {"num_gates": 2}, "core.latent_dim": 9}).core.num_gates == 2
    assert resolved() == settings_for(series())
    assert resolved(seed=4).seed == 4
    with pytest.raises(ConfigError, match=r"Unknown setting 'core.latent_dimm'. Did you mean 'core.latent_dim'"):
        resolved(settings={"core.latent_dimm": 9})
    with pytest.raises(ConfigError, match="settings is str; give a FitSettings, or a dictionary"):
        resolved(settings="core.latent_dim=9")
    with pytest.raises(ConfigError, match="Unknown method 'kafee'"):
        resolved("kafee")


def test_the_same_arguments_give_the_same_model(surrogate):
    again = Surrogate(**surrogate.get_params()).fit(labelled(), None)
    assert same_arrays(again.reconstruction_.model, surrogate.reconstruction_.model)
    assert again.settings_.core.latent_dim == 4
    assert again.fit_.fitted.completed


def test_progress_is_shown_if_asked(capsys):
    Surrogate(settings=FEW, progress=True).fit(values())
    assert "Pretraining" in capsys.readouterr().err


# --- stored ---


def test_a_stored_surrogate_goes_on(surrogate, tmp_path):
    back = Surrogate.load(surrogate.save(tmp_path / "model"))
    assert same_arrays(back.reconstruction_.model, surrogate.reconstruction_.model)
    assert same_arrays(back.prior_.model, surrogate.prior_.model)
    assert back.settings_ == surrogate.settings_
    assert (back.fit_, back.settings) == (None, surrogate.settings_)
    pd.testing.assert_frame_equal(back.forecast(H, table(), members=MEMBERS), surrogate.forecast(H, members=MEMBERS))
    assert back.simulate(20, transient=5).shape == (20, 2)
    with pytest.raises(ConfigError, match="does not keep the data it was fitted to"):
        back.forecast(H)
    with pytest.raises(ConfigError, match="which a stored model does not keep"):
        back.certify()


def test_the_folder_of_a_run_is_a_surrogate(surrogate, tmp_path):
    Run.start(tmp_path, surrogate.settings_, Source(paths=("x.csv",)), Loaded(surrogate.fit_.train))
    with pytest.raises(CheckpointError, match="has no finished model yet"):
        Surrogate.load(tmp_path)
    for name, model in (("prior", surrogate.prior_), ("kaffee", surrogate.reconstruction_)):
        model.save(tmp_path / name)
    back = Surrogate.load(tmp_path)
    assert back.reconstruction_.method == "kaffee"
    assert back.prior_.method == "prior"
    assert Surrogate.load(tmp_path / "prior").reconstruction_.method == "prior"
    with pytest.raises(CheckpointError, match="There is no run at"):
        Surrogate.load(tmp_path / "elsewhere")


def test_months_are_steps_also_after_storing(tmp_path):
    months = pd.date_range("2000-01-01", periods=T, freq="MS")
    X = table().set_index(months)
    fitted = Surrogate(settings=FEW).fit(X)
    assert fitted.reconstruction_.dt == 1.0
    expected = pd.date_range(months[-1], periods=H + 1, freq="MS")[1:]
    assert fitted.forecast(H, members=MEMBERS).index.equals(expected)
    back = Surrogate.load(fitted.save(tmp_path))
    assert back.forecast(H, X, members=MEMBERS).index.equals(expected)
    assert len(back.impute(X.drop(months[7:9]))) == T


# --- errors ---


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.filter(values()),
        lambda s: s.smooth(values()),
        lambda s: s.impute(values()),
        lambda s: s.forecast(3),
        lambda s: s.simulate(3),
        lambda s: s.score(values()),
        lambda s: s.online(),
        lambda s: s.certify(),
        lambda s: s.save("nowhere"),
        lambda s: s.reconstruction_,
    ],
)
def test_before_a_fit_everything_says_to_fit(use):
    with pytest.raises(NotFittedError, match=r"not fitted yet. Call fit\(X\) first"):
        use(Surrogate())
    assert not hasattr(Surrogate(), "fit_")
    assert issubclass(NotFittedError, KaffeeError)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda X: X.rename(columns={"left": "lift"}), "the model needs 'left', 'right', but 'left' is not"),
        (lambda X: X[["left"]], "'right' is not among 'left'"),
        (lambda X: values()[:, :1], "the model needs 'left', 'right'"),
        (lambda X: np.ones((T, 3)), "the model needs 'left', 'right'"),
        (lambda X: X.assign(left="text"), "column 'left': values of type .* are not numbers"),
        (lambda X: X[:0], "is empty"),
        (lambda X: X.assign(left=np.nan, right=np.nan), "no value is observed, all are missing"),
        (lambda X: X.set_index(DATES[0] + 2 * (DATES - DATES[0])), "a row every 1200, but one step .* is 600"),
    ],
)  # fmt: skip
def test_data_that_do_not_fit_are_named(surrogate, change, words):
    with pytest.raises(DataError, match=words):
        surrogate.filter(change(table()))


def test_data_that_cannot_be_fitted_are_named():
    for X, words in (
        (table().assign(right="text"), "column 'right'"),
        (table().assign(right=np.nan), "column 'right' without any observed value"),
        (table().assign(right=1.0), "constant column 'right'"),
        (pd.DataFrame(), "is empty"),
    ):
        with pytest.raises(DataError, match=words):
            Surrogate(settings=FEW).fit(X)
    with pytest.raises(ConfigError, match="dt=2 beside times"):
        Surrogate(settings=FEW).fit(table(), dt=2.0)
    with pytest.raises(ConfigError, match="times= is for arrays"):
        Surrogate(settings=FEW).fit(table(), times=np.arange(T))


def test_other_steps_are_accepted_if_asked(surrogate):
    slow = table().set_index(DATES[0] + 2 * (DATES - DATES[0]))
    assert len(surrogate.filter(slow, any_step=True)) == T


def test_the_climate_scores_a_first_row(surrogate):
    rows = values()
    rows[1:] = np.nan
    assert np.isfinite(surrogate.score(rows))


def test_recordings_too_short_for_a_window_are_reported(monkeypatch):
    monkeypatch.setattr("kaffee.surrogate.estimator.fit", lambda *args, **kwargs: 1 / 0)
    with (
        pytest.warns(UserWarning, match="adaptation does not use recording 1: shorter than its windows of 8 rows"),
        pytest.raises(ZeroDivisionError),
    ):
        Surrogate(settings=FEW).fit([values(), values()[:9]])
