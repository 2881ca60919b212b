"""Imputation: recorded readings stay bit for bit, missing ones get bands that cover."""

import numpy as np
import pytest

from inference.problems import COLUMNS, LENGTHS, linear_model, reconstruct, recordings
from kaffee.data.series import Series
from kaffee.inference.recordings import impute, smooth


@pytest.fixture(scope="module")
def reconstruction():
    return reconstruct(linear_model(dtype=np.float32))


@pytest.fixture(scope="module")
def imputed(reconstruction):
    return impute(reconstruction, recordings())


def test_recorded_readings_stay_and_gaps_are_filled(reconstruction, imputed):
    series, smoothed = recordings(), smooth(reconstruction, recordings())
    for r, seen in enumerate(series.mask):
        np.testing.assert_array_equal(imputed[r].values[seen], series.recordings[r][seen])
        np.testing.assert_array_equal(imputed[r].values[~seen], smoothed[r].mean[~seen])
        assert (imputed[r].std[seen] == 0.0).all()
        noise = np.sqrt(np.asarray(reconstruction.model.shell.observation_variance())) * reconstruction.scaler.scale
        least = np.broadcast_to(noise * (1 - 1e-6), seen.shape)
        assert (imputed[r].std[~seen] > least[~seen]).all()
    assert imputed.filled.missing_fraction == 0.0
    assert imputed.filled.lengths == LENGTHS


def test_the_table_has_bands_that_meet_where_a_reading_was_recorded(imputed):
    table = imputed.to_series([0.05, 0.95])
    assert table.columns == ("left", "right", "left_std", "left_q05", "left_q95", "right_std", "right_q05", "right_q95")
    left, low, high = (table.select([name]).recordings[0][:, 0] for name in ("left", "left_q05", "left_q95"))
    seen = recordings().mask[0][:, 0]
    np.testing.assert_array_equal(low[seen], left[seen])
    assert (low[~seen] < left[~seen]).all()
    assert (high[~seen] > left[~seen]).all()
    np.testing.assert_array_equal(table.times[2], recordings().times[2])
    assert imputed.describe()["imputed"] == sum(int((~seen).sum()) for seen in recordings().mask)


def test_nine_in_ten_of_the_withheld_readings_lie_in_their_bands(reconstruction):
    """Data of the model itself, 30 % withheld at random and a block of 5 % of the time."""
    model, rng = reconstruction.model, np.random.default_rng(3)
    A, h = np.asarray(model.core.A), np.asarray(model.core.h)
    process, noise = (
        np.sqrt(np.asarray(v())) for v in (model.shell.process_variance, model.shell.observation_variance)
    )
    z, rows = np.zeros(5), []
    for _ in range(1500):
        z = A @ z + h + process * rng.standard_normal(5)
        rows.append(z[:2] + noise * rng.standard_normal(2))
    truth = reconstruction.scaler.inverse(np.array(rows[300:]))
    withheld = rng.uniform(size=truth.shape) < 0.3
    withheld[600:660] = True
    found = impute(reconstruction, Series.from_arrays(np.where(withheld, np.nan, truth), columns=COLUMNS))
    inside = np.abs(truth - found[0].values)[withheld] < 1.6448536 * found[0].std[withheld]
    spread = 3.0 * np.sqrt(0.9 * 0.1 / inside.size)  # three standard errors of a share
    assert abs(inside.mean() - 0.9) < spread < 0.05
