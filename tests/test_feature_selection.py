"""SoftTopKSelector: what it promises, as a scikit-learn estimator and as a choice of columns."""

import builtins
import itertools
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import RFE
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from kofn.feature_selection import SoftTopKSelector
from kofn.feature_selection.selector import find_task

PLANTED = [1, 4]


def planted(task="classification", rows=200, n=8, seed=0):
    """Columns 1 and 4, in different units, decide y; the others are noise."""
    X = np.random.default_rng(seed).normal(size=(rows, n))
    signal = X[:, 1] - X[:, 4]
    X[:, 4] *= 1000
    return X, signal if task == "regression" else np.where(signal > 0, "up", "down")


def quick(k=2, **options):
    return SoftTopKSelector(
        k, **{"steps": 40, "ensemble": 2, "hidden": 8, "random_state": 0} | options
    )


@parametrize_with_checks([SoftTopKSelector(steps=3, ensemble=1, hidden=2, random_state=0)])
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


@pytest.mark.full
@parametrize_with_checks([SoftTopKSelector()])
def test_is_a_scikit_learn_estimator_as_it_comes(estimator, check):
    check(estimator)


def test_needs_a_target_and_says_so():
    X, _ = planted()
    assert quick().__sklearn_tags__().target_tags.required
    with pytest.raises(ValueError, match="requires y to be passed"):
        quick().fit(X, None)


@pytest.mark.parametrize("hidden", [0, 8])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_finds_the_columns_that_matter(task, hidden):
    X, y = planted(task)
    selector = quick(hidden=hidden).fit(X, y)
    assert selector.task_ == task
    assert selector.get_support(indices=True).tolist() == PLANTED
    np.testing.assert_array_equal(selector.transform(X), X[:, PLANTED])


def test_sees_what_no_linear_model_and_no_single_column_can():
    X = np.random.default_rng(0).normal(size=(300, 6))
    y = (X[:, 1] * X[:, 4] > 0).astype(int)
    assert quick(hidden=32, steps=150).fit(X, y).get_support(indices=True).tolist() == PLANTED


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("link", ["logistic", "linear"])
def test_keeps_exactly_k_and_the_weights_sum_to_k(k, link):
    X, y = planted()
    selector = quick(k, link=link, steps=5).fit(X, y)
    assert selector.support_.dtype == bool
    assert selector.support_.sum() == k
    assert selector.weights_.sum() == pytest.approx(k, rel=1e-5)
    left, kept = selector.weights_[~selector.support_], selector.weights_[selector.support_]
    assert left.max() <= kept.min()


def test_twin_columns_are_not_both_kept_or_both_dropped():
    X, y = planted()
    X[:, 0] = X[:, 1]
    support = quick().fit(X, y).support_
    assert support[4]
    assert support[0] + support[1] == 1


def test_same_seed_same_selection_and_no_trace_in_the_global_generators():
    X, y = planted()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = quick(steps=5).fit(X, y).scores_
    assert torch.equal(torch.random.get_rng_state(), before)
    np.testing.assert_array_equal(quick(steps=5).fit(X, y).scores_, first)
    assert (quick(steps=5, random_state=1).fit(X, y).scores_ != first).any()


def test_trains_on_one_thread_and_gives_the_others_back():
    X, y = planted()
    threads, seen = torch.get_num_threads(), set()
    try:
        torch.set_num_threads(2)
        quick(steps=2, callback=lambda *now: seen.add(torch.get_num_threads())).fit(X, y)
        assert seen == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_pipeline_names_clone_and_pickle():
    X, y = planted()
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])
    model = make_pipeline(quick(), LogisticRegression()).fit(frame, y)
    assert model.score(frame, y) > 0.95
    assert model[0].get_feature_names_out().tolist() == ["c1", "c4"]
    fresh = clone(model[0])
    assert fresh.get_params() == model[0].get_params()
    with pytest.raises(NotFittedError):
        fresh.transform(X)
    again = pickle.loads(pickle.dumps(model[0]))
    np.testing.assert_array_equal(again.get_support(), model[0].get_support())


def test_grid_search_over_k():
    X, y = planted()
    model = make_pipeline(quick(steps=20), LogisticRegression())
    search = GridSearchCV(model, {"softtopkselector__k": [1, 2]}, cv=2).fit(X, y)
    assert search.best_params_ == {"softtopkselector__k": 2}


def test_callback_follows_the_annealing():
    seen = []
    X, y = planted()
    options = {"steps": 30, "temperature": 2.0, "final_temperature": 0.5}
    selector = quick(callback=lambda *now: seen.append(now), **options).fit(X, y)
    steps, losses, scores, temperatures = np.array(seen).T
    assert steps.tolist() == list(range(1, 31))
    assert losses[-1] == selector.loss_ < losses[0]
    assert scores[-1] > scores[0]
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (temperatures[0], temperatures[-1]) == (2.0, pytest.approx(0.5))
    np.testing.assert_allclose(np.diff(np.log(temperatures)), np.log(0.25) / 29, rtol=1e-6)


def test_more_rows_than_a_batch_are_all_seen():
    # Only the last rows tell anything; a trainer that kept to its first batch would miss them.
    X, y = planted(rows=300)
    X[:100] = np.random.default_rng(1).normal(size=(100, 8))
    selector = quick(batch_size=32, steps=80).fit(X, y)
    assert selector.get_support(indices=True).tolist() == PLANTED


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (["a", "b", "a"], "classification"),
        ([True, False, True], "classification"),
        ([0, 1, 2, 1], "classification"),
        ([0.0, 1.0, 2.0], "classification"),
        ([0.5, 1.0, 2.0], "regression"),
        (list(range(20)), "classification"),
        (list(range(21)), "regression"),
        ([f"name {i}" for i in range(30)], "classification"),
    ],
)
def test_task_is_found_from_the_target(y, task):
    assert find_task(np.array(y)) == task


def test_task_can_be_said():
    X, _ = planted()
    y = np.arange(len(X)) % 3
    assert quick(steps=2).fit(X, y).task_ == "classification"
    assert quick(steps=2, task="regression").fit(X, y).task_ == "regression"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"k": 0}, ValueError, r"k must be an integer in 1..n_features \(here 1..8\), .* got 0"),
        ({"k": 9}, ValueError, r"k must be .* got 9"),
        ({"k": 2.0}, ValueError, r"k must be .* a share in \(0, 1\), .* got 2.0"),
        ({"k": 0.0}, ValueError, r"k must be .* got 0.0"),
        ({"k": float("nan")}, ValueError, r"k must be .* got nan"),
        ({"k": "most"}, TypeError, r"k must be .* or \"all\"; got 'most'"),
        ({"k": True}, TypeError, r"k must be .* got True"),
        ({"task": "ranking"}, ValueError, r"task must be one of 'auto'.* got 'ranking'"),
        ({"hidden": -1}, ValueError, r"hidden must be .* got -1"),
        ({"ensemble": 0}, ValueError, r"ensemble must be .* got 0"),
        ({"steps": 0}, ValueError, r"steps must be .* got 0"),
        ({"steps": "many"}, TypeError, r"steps must be .* got 'many'"),
        ({"batch_size": 0}, ValueError, r"batch_size must be .* got 0"),
        ({"temperature": 0.0}, ValueError, r"temperature must be .* > 0; got 0.0"),
        ({"final_temperature": float("nan")}, ValueError, r"final_temperature .* got nan"),
        ({"final_temperature": float("inf")}, ValueError, r"final_temperature .* got inf"),
        ({"learning_rate": -1}, ValueError, r"learning_rate must be .* got -1"),
        ({"score_learning_rate": None}, TypeError, r"score_learning_rate .* got None"),
        ({"noise": -0.1}, ValueError, r"noise must be .* got -0.1"),
        ({"dropout": 1.0}, ValueError, r"dropout must be .* got 1.0"),
        ({"link": "gaussian"}, ValueError, r"link"),
        ({"callback": 3}, TypeError, r"callback must be .* got 3"),
    ],
)
def test_refuses_arguments_by_name_value_and_what_is_allowed(options, error, words):
    X, y = planted()
    with pytest.raises(error, match=words):
        quick(**options).fit(X, y)


@pytest.mark.parametrize(
    ("y", "task", "words"),
    [
        (["a"] * 200, "auto", "at least 2 classes; got 1 class, 'a'"),
        ([3.0] * 200, "regression", "y must have at least two .* every value is 3"),
        (["a", "b"] * 100, "regression", "y must be numbers for regression"),
        ([0.5, 1.5] * 100, "classification", "Unknown label type"),
    ],
)
def test_refuses_targets_that_cannot_be_learned(y, task, words):
    X, _ = planted()
    with pytest.raises(ValueError, match=words):
        quick(task=task).fit(X, np.array(y))


def test_a_constant_column_is_never_worth_keeping():
    X, y = planted()
    X[:, 0] = 7.0
    assert quick().fit(X, y).get_support(indices=True).tolist() == PLANTED


def test_without_torch_fit_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without_torch(name, *rest, **named):
        if name == "torch":
            raise ImportError(name)
        return real(name, *rest, **named)

    X, y = planted()
    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(ImportError, match=r'pip install "kofn\[cli\]"'):
        quick().fit(X, y)


def test_equal_votes_are_settled_by_score_and_not_by_the_order_of_columns():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 6))
    y = (X[:, 1] + X[:, 4] > 0).astype(int)
    selector = SoftTopKSelector(2, ensemble=2, steps=5, random_state=0).fit(X, y)
    votes = np.round(selector.weights_, 3)
    for first, second in itertools.pairwise(selector.order_):
        assert (votes[first], selector.scores_[first]) > (votes[second], selector.scores_[second])
    assert set(np.flatnonzero(selector.support_)) == set(selector.order_[:2])


@pytest.mark.parametrize(
    ("k", "kept"), [(3, 3), (8, 8), (0.5, 4), (0.3, 2), (0.01, 1), (None, 4), ("all", 8)]
)
def test_k_is_a_number_a_share_half_or_all_as_in_scikit_learn(k, kept):
    X, y = planted()
    selector = quick(k, steps=3).fit(X, y)
    assert selector.n_features_ == selector.support_.sum() == kept
    assert selector.weights_.sum() == pytest.approx(kept, rel=1e-5)
    assert sorted(selector.order_) == list(range(8))
    if k != "all" and k != 0.01:  # RFE has no word for all, and rounds a small share to nothing
        rfe = RFE(LogisticRegression(), n_features_to_select=k).fit(X, y)
        assert rfe.n_features_ == kept
        assert sorted(rfe.ranking_) == sorted(selector.ranking_)
    one = quick(k if k in (None, "all", 0.5) else 1, steps=2).fit(X[:, :1], y)
    assert one.support_.tolist() == [True]


def test_ranks_are_1_where_chosen_and_then_follow_the_order():
    X, y = planted()
    selector = quick(3).fit(X, y)
    np.testing.assert_array_equal(selector.ranking_ == 1, selector.support_)
    np.testing.assert_array_equal(selector.ranking_[selector.order_], [1, 1, 1, 2, 3, 4, 5, 6])
    assert selector.support_[selector.order_[:3]].all()


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_weights_of_rows_are_as_if_rows_were_repeated_or_left_out(task, rng):
    X, y = planted(task, rows=60)
    weights = rng.integers(0, 4, size=60)
    options = {"steps": 6, "batch_size": 16}
    weighted = quick(**options).fit(X, y, sample_weight=weights)
    repeated = quick(**options).fit(X.repeat(weights, axis=0), y.repeat(weights))
    np.testing.assert_array_equal(weighted.scores_, repeated.scores_)
    scaled = quick(**options).fit(X, y, sample_weight=8.0 * weights)
    np.testing.assert_array_equal(weighted.scores_, scaled.scores_)
    plain = quick(**options).fit(X, y)
    assert (plain.scores_ != weighted.scores_).any()
    equal = quick(**options).fit(X, y, sample_weight=np.full(60, 0.5))
    np.testing.assert_array_equal(plain.scores_, equal.scores_)


def test_rows_that_weigh_more_decide():
    # Half of the rows tell of columns 1 and 4, the others, ten times as heavy, of 0 and 2.
    X = np.random.default_rng(0).normal(size=(400, 6))
    first = np.arange(400) < 200
    y = np.where(first, X[:, 1] - X[:, 4], X[:, 0] - X[:, 2])
    for weight, columns in ((0.1, [1, 4]), (10.0, [0, 2])):
        weights = np.where(first, 1.0, weight)
        selector = quick(hidden=0, steps=80).fit(X, y, sample_weight=weights)
        assert selector.get_support(indices=True).tolist() == columns


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.zeros(200), "(?i)weight.*zero"),
        (np.full(200, -1.0), "sample_weight must be ≥ 0; got -1"),
    ],
)
def test_weights_that_leave_nothing_are_refused(weights, words):
    X, y = planted()
    with pytest.raises(ValueError, match=words):
        quick().fit(X, y, sample_weight=weights)


def test_weights_find_their_way_through_a_pipeline():
    X, y = planted(rows=60)
    weights = np.arange(60) % 3
    with config_context(enable_metadata_routing=True):
        model = make_pipeline(
            quick(steps=5).set_fit_request(sample_weight=True),
            LogisticRegression().set_fit_request(sample_weight=False),
        ).fit(X, y, sample_weight=weights)
    alone = quick(steps=5).fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(model[0].scores_, alone.scores_)


def test_a_sparse_table_is_as_its_dense_one():
    X, y = planted(rows=60)
    dense = quick(steps=5).fit(X, y)
    sparse = quick(steps=5).fit(csr_array(X), y)
    np.testing.assert_array_equal(dense.scores_, sparse.scores_)
    assert sparse.transform(csr_array(X)).shape == (60, 2)
