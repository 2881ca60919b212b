"""Choose settings of a surrogate by cross-validation in time: scikit-learn's GridSearchCV on kaffee.Surrogate.

    python examples/grid_search.py

Needs scikit-learn. The score is the mean log-likelihood of a reading given all rows before it, on rows after those that
the surrogate was fitted to; higher is better.
"""

from sklearn.model_selection import GridSearchCV, TimeSeriesSplit

import kaffee


def main(
    num_steps: int = 3_000,
    latent_dims: tuple[int, ...] = (6, 12),
    num_pretraining: int = 2_000,
    num_adaptation: int = 300,
) -> GridSearchCV:
    """Search over the number of latent coordinates, and forecast with the best."""
    system = kaffee.get_system("lorenz63")
    data = kaffee.simulate(system, num_steps, process_noise=0.02, observation_noise=0.1, seed=1)
    surrogate = kaffee.Surrogate(
        settings={
            "rung": "scratch",
            "pretraining.schedule.num_updates": num_pretraining,
            "adaptation.schedule.num_updates": num_adaptation,
            "adaptation.calibration": num_adaptation // 10,
        }
    )
    # Windows of one length, so that programs are compiled once for all folds.
    test = num_steps // 6
    folds = TimeSeriesSplit(n_splits=2, test_size=test, max_train_size=num_steps - 2 * test)
    # Two underscores descend into the settings: core.latent_dim.
    search = GridSearchCV(surrogate, {"settings__core__latent_dim": list(latent_dims)}, cv=folds)
    search.fit(data.observations, dt=data.dt)
    for tried, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
        print(f"{tried}: {score:.3f} nats per reading on later rows")
    print(f"kept: {search.best_params_}; five steps ahead: {search.best_estimator_.forecast(5).mean[-1].round(1)}")
    return search


if __name__ == "__main__":
    main()
