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
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import RFE
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

from kofn.feature_selection import SoftTopKSelector, screening
from kofn.feature_selection.choices import Choice, choice_of
from kofn.feature_selection.targets import find_task

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


@pytest.mark.parametrize("unit", [1e-320, 1e-200, 1e200])
def test_targets_may_be_in_any_unit(unit):
    X, y = planted("regression")
    fit = quick(task="regression").fit
    expected = fit(X, y).get_support(indices=True)
    np.testing.assert_array_equal(fit(X, y * unit).get_support(indices=True), expected)


def test_rounding_of_a_mean_makes_no_target():
    X, _ = planted()
    with pytest.raises(ValueError, match=r"every value is 0\.1"):
        quick(task="regression").fit(X, np.full(len(X), 0.1))


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
    with pytest.raises(ImportError, match=r'pip install "kofn\[cli,torch\]"'):
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


def test_sparse_input_is_refused_by_name():
    X, y = planted(rows=60)
    assert not quick().__sklearn_tags__().input_tags.sparse
    with pytest.raises(
        TypeError, match=r"X must be a dense array; got a sparse csr_array; .*toarr"
    ):
        quick(steps=5).fit(csr_array(X), y)
    with pytest.raises(TypeError, match="y must be a dense array"):
        quick(steps=5).fit(X, csr_array(np.ones((60, 2))))


def interacting(rows=1000, n=100, seed=0):
    """Two pairs of columns matter only together; alone, only column 4 tells anything."""
    X = np.random.default_rng(seed).normal(size=(rows, n))
    return X, np.sign(X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3] + X[:, 4])


def test_finds_pairs_that_tell_nothing_alone_among_100_columns():
    X, y = interacting()
    fixed = SoftTopKSelector(5, elimination=0, random_state=0).fit(X, y)
    falling = SoftTopKSelector(5, random_state=0).fit(X, y)
    assert falling.get_support(indices=True).tolist() == [0, 1, 2, 3, 4]
    assert fixed.support_[:5].sum() < 5


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("rows", "n", "options"),
    [
        (1000, 100, {"elimination": 0.8}),
        (2000, 100, {}),
        (500, 100, {}),
        (1000, 300, {"screen": None}),
        (1000, 300, {"screen": None, "steps": 1000}),
        (1000, 1000, {}),
        (1000, 10_000, {}),
    ],
)
def test_finds_pairs_in_wide_tables(rows, n, options, seed):
    X, y = interacting(rows, n, seed)
    selector = SoftTopKSelector(5, random_state=seed, **options).fit(X, y)
    assert selector.get_support(indices=True).tolist() == [0, 1, 2, 3, 4]


def limits(monkeypatch, **options):
    """The limit of the choice at each step of a fit."""
    seen = []
    real = Choice.weights

    def record(self, scores, limit, link, temperature):
        seen.append(limit)
        return real(self, scores, limit, link, temperature)

    monkeypatch.setattr(Choice, "weights", record)
    quick(**options).fit(*planted())
    return np.array(seen[:-1])  # the last call weighs the trained scores


def test_k_falls_exponentially_over_a_share_of_the_steps(monkeypatch):
    seen = limits(monkeypatch, steps=20, elimination=0.8)
    assert seen[0] == 8
    np.testing.assert_allclose(np.diff(np.log(seen[:17])), np.log(2 / 8) / 16, rtol=1e-9)
    assert (seen[16:] == 2).all()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"elimination": 0.0, "steps": 3}, [2, 2, 2]),
        ({"elimination": 1.0, "steps": 3}, [8, 4, 2]),
        ({"steps": 1}, [2]),
        ({"k": "all", "steps": 3}, [8, 8, 8]),
        ({"k": None, "groups": list("aabbccdd"), "steps": 3, "elimination": 1}, [4, 8**0.5, 2]),
        ({"k": None, "costs": [3.0] * 8, "budget": 6, "steps": 3, "elimination": 1}, [24, 12, 6]),
    ],
)
def test_the_last_step_is_at_the_limit(monkeypatch, options, expected):
    np.testing.assert_allclose(limits(monkeypatch, **options), expected, rtol=1e-6)


def test_a_wide_table_is_screened_by_columns_and_by_pairs():
    X, y = interacting(400, 60)
    X = X[:, ::-1]  # an order that says nothing would put the first columns first
    selector = SoftTopKSelector(5, screen=12, steps=150, random_state=0).fit(X, y)
    assert selector.screened_.sum() == 12
    assert selector.get_support(indices=True).tolist() == [55, 56, 57, 58, 59]
    left = ~selector.screened_
    assert np.isneginf(selector.scores_[left]).all()
    assert not selector.weights_[left].any()
    assert selector.weights_.sum() == pytest.approx(5, rel=1e-5)
    assert sorted(selector.order_) == list(range(60))
    assert selector.ranking_[left].min() == 12 - 5 + 2


@pytest.mark.parametrize(
    ("n", "options", "trained"),
    [
        (128, {}, 128),
        (129, {"screen": None}, 129),
        (129, {}, 64),
        (161, {"k": 20}, 80),
        (160, {"k": 20}, 160),
        (129, {"k": 9, "screen": 3}, 9),
        (129, {"groups": np.arange(129) // 2}, 129),
        (300, {"groups": np.arange(300) // 2}, 128),
    ],
)
def test_how_many_columns_are_screened(n, options, trained):
    X = np.random.default_rng(0).normal(size=(30, n))
    selector = quick(**{"steps": 1} | options).fit(X, X[:, 1] * X[:, 4])
    assert selector.screened_.sum() == trained


@pytest.mark.parametrize("target", ["classes", "numbers", "weighted"])
def test_screening_puts_columns_and_pairs_first(target, monkeypatch):
    monkeypatch.setattr(screening, "BLOCK", 7)
    X, y = interacting(600, 50)
    columns = ((X - X.mean(0)) / X.std(0)).astype(np.float32)[:, ::-1]
    importance = None
    if target == "numbers":
        y = X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3] + X[:, 4]
    elif target == "weighted":  # the other half of the rows says the opposite, at no weight
        y[300:] *= -1
        importance = np.where(np.arange(600) < 300, 2, 0).astype(np.float32)
    signal = ((y - y.mean()) / y.std()).astype(np.float32)[:, None]
    rng = np.random.RandomState(0)
    order = screening.screening_order(columns, signal, importance, np.arange(50), rng)
    assert set(range(45, 50)) <= set(order[:10])
    assert sorted(order) == list(range(50))
    # One column at a time does not see the pairs: this is what the second mark is for.
    alone = np.argsort(-np.abs(signal[:, 0] @ columns))
    assert not set(range(45, 50)) <= set(alone[:10])


def test_no_budget_is_exceeded_and_cheap_columns_are_preferred():
    X, y = planted(rows=300)
    X = np.column_stack([X, X[:, 1]])  # the same as column 1, at a tenth of its price
    costs = np.array([2.0, 10, 2, 2, 3, 2, 2, 2, 1])
    selector = quick(k=None, costs=costs, budget=4.5, steps=100).fit(X, y)
    assert selector.get_support(indices=True).tolist() == [4, 8]
    assert selector.n_features_ == 2
    assert selector.weights_[1] == 0  # it costs more than the whole budget
    assert not selector.screened_[1]
    rich = quick(k=None, costs=costs, budget=100, steps=3).fit(X, y)
    assert rich.support_.all()


def test_costs_count_in_any_unit_and_may_be_zero():
    X, y = planted()
    costs = np.array([0.0, 2, 2, 2, 2, 2, 2, 2])
    one = quick(k=None, costs=costs, budget=4).fit(X, y)
    other = quick(k=None, costs=costs * 2.0**140, budget=2.0**142).fit(X, y)
    np.testing.assert_array_equal(one.scores_, other.scores_)
    assert set(PLANTED) <= set(one.get_support(indices=True))
    assert costs[one.support_].sum() == 4
    assert one.support_[0] == (one.weights_[0] > 0.5)


def test_where_only_free_columns_are_affordable_their_weights_decide():
    X, y = planted()
    selector = quick(k=None, costs=[0.0] * 7 + [1.0], budget=0.5).fit(X, y)
    np.testing.assert_array_equal(selector.support_, selector.weights_ > 0.5)
    assert set(PLANTED) <= set(selector.get_support(indices=True))


def test_a_free_column_is_chosen_where_no_other_is_affordable():
    X, y = planted()
    X[:, 3] = np.random.default_rng(1).normal(size=len(X))
    for noise in (0.5, 5.0):
        costs = [9, 9, 9, 0, 9, 9, 9, 9]
        selector = quick(k=None, costs=costs, budget=1, noise=noise).fit(X, y)
        assert selector.get_support(indices=True).tolist() == [3]
    choice = Choice(np.arange(3), np.zeros(3), 1.0)
    order, chosen = choice.ranked(np.array([1.0, 3, 2]), np.array([0.1, 0.4, 0.3]))
    assert (order.tolist(), chosen) == ([1, 2, 0], 1)


@pytest.mark.parametrize(
    ("groups", "members"),
    [
        ([None, "None", None, "a"], [0, 1, 0, 2]),
        ([1, "1", 1.0, np.int64(1)], [0, 1, 0, 0]),
        ([True, 1, "True", True], [0, 1, 2, 0]),
        ([np.nan, "nan", float("nan"), 2], [0, 1, 0, 2]),
        (np.array(["b", "a", "b", "b"]), [0, 1, 0, 0]),
        (pd.Series(["b", pd.NA, "b", pd.NA]), [0, 1, 0, 1]),
        (pd.Categorical(["b", "a", "b", "c"]), [0, 1, 0, 2]),
    ],
)
def test_labels_of_different_types_are_different_groups(groups, members):
    assert choice_of(1, None, None, groups, 4).members.tolist() == members


@pytest.mark.parametrize("seed", range(3))
def test_what_is_bought_fits_whatever_the_costs(seed):
    rng = np.random.default_rng(seed)
    X, y = planted()
    costs = rng.uniform(0.1, 3, size=8)
    for budget in (costs.min(), costs.sum() / 2, costs.sum()):
        selector = quick(k=None, costs=costs, budget=budget, steps=4).fit(X, y)
        spent = costs[selector.support_].sum()
        assert 0 < spent <= budget * (1 + 1e-9)
        # Nothing else would have fitted.
        assert (costs[~selector.support_] > budget - spent - 1e-9).all()
    assert selector.support_.all()


def test_groups_are_in_or_out_together():
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, size=(300, 4))
    X = (kinds[:, :, None] == np.arange(3)).reshape(300, 12).astype(float)
    y = (kinds[:, 1] + kinds[:, 3]) % 3
    groups = np.repeat(["a", "b", "c", "d"], 3)
    selector = quick(2, groups=groups, hidden=32, steps=100).fit(X, y)
    assert selector.support_.tolist() == ([False] * 3 + [True] * 3) * 2
    assert selector.n_features_ == 6
    assert selector.weights_.reshape(4, 3).sum(0) == pytest.approx([2, 2, 2], rel=1e-5)
    assert selector.order_[:6].tolist() in ([3, 4, 5, 9, 10, 11], [9, 10, 11, 3, 4, 5])
    renamed = quick(2, groups=list(np.repeat([9, 2, 4, 1], 3)), hidden=32, steps=100).fit(X, y)
    np.testing.assert_array_equal(renamed.scores_, selector.scores_)
    knapsack = quick(None, groups=groups, costs=np.ones(12), budget=7, hidden=32, steps=100)
    assert knapsack.fit(X, y).support_.tolist() == selector.support_.tolist()


def test_columns_of_an_encoder_are_grouped_by_the_name_before_it():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.choice(["x", "y_z", "w"], size=(300, 3)), columns=["a", "plan", "c"])
    frame["plan_b"], frame["size"] = rng.choice(["u", "v"], 300), rng.normal(size=300)
    encoded = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["a", "plan", "c", "plan_b"]), remainder="passthrough"
    ).set_output(transform="pandas")
    selector = quick(1, groups={"a", "plan", "plan_b"}, hidden=32, steps=60)
    pipeline = clone(make_pipeline(encoded, selector))
    chosen = pipeline.fit(frame, frame["plan"])[-1].get_feature_names_out()
    assert [*chosen] == [f"onehotencoder__plan_{value}" for value in ("w", "x", "y_z")]
    names = pipeline[:-1].get_feature_names_out()
    members = choice_of(1, None, None, "plan_b", len(names), names).members
    assert members.max() + 2 == len(names) == 12  # two columns are one group
    plain = frame[["plan", "size"]].assign(plan_x=1.0)
    assert choice_of(1, None, None, "plan", 3, plain.columns).members.tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match=r"groups='plan' are names, .* set_output"):
        quick(1, groups="plan").fit(*planted())
    with pytest.raises(ValueError, match=r"none of 'plan', .* is 'plans' or begins with 'plans_'"):
        choice_of(1, None, None, {"plans"}, 3, plain.columns)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_several_targets_share_the_columns(task):
    X = np.random.default_rng(0).normal(size=(200, 8))
    signals = X[:, [1, 4]]
    y = signals if task == "regression" else np.where(signals > 0, ["a", "c"], ["b", "d"])
    selector = quick(steps=80, hidden=32).fit(X, y)
    assert selector.task_ == task
    assert selector.get_support(indices=True).tolist() == PLANTED
    one = quick(steps=5).fit(X, y[:, 0])
    column = quick(steps=5).fit(X, y[:, :1])
    np.testing.assert_array_equal(one.scores_, column.scores_)


def test_targets_of_two_tasks_are_refused():
    X, _ = planted(rows=60)
    frame = pd.DataFrame({"kind": ["a", "b"] * 30, "size": np.linspace(0, 1, 60)})
    with pytest.raises(ValueError, match="one task; got classification, regression"):
        quick().fit(X, frame)
    with pytest.raises(ValueError, match="y must be numbers"):
        quick(task="regression").fit(X, frame)
    with pytest.raises(ValueError, match="at least 2 classes; got 1 class, 'x'"):
        quick().fit(X, np.array([["x", "a"], ["x", "b"]] * 30))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"costs": [1.0] * 8}, ValueError, "costs needs budget as well"),
        ({"budget": 3.0}, ValueError, "budget needs costs as well"),
        ({"costs": [1.0] * 8, "budget": 3.0}, ValueError, "k or budget, not both; got k=2"),
        (
            {"k": 0.5, "costs": [1.0] * 8, "budget": 3.0},
            ValueError,
            "k or budget, not both; got k=0.5",
        ),
        ({"k": None, "costs": [1.0] * 7, "budget": 3.0}, ValueError, r"one number per column, .*8"),
        ({"k": None, "costs": 1.0, "budget": 3.0}, ValueError, "one number per column"),
        ({"k": None, "costs": ["x"] * 8, "budget": 3.0}, TypeError, "costs must be numbers"),
        (
            {"k": None, "costs": [1.0] * 7 + [-2.0], "budget": 3.0},
            ValueError,
            "finite and ≥ 0; got -2",
        ),
        ({"k": None, "costs": [1.0] * 7 + [np.nan], "budget": 3.0}, ValueError, "≥ 0; got nan"),
        ({"k": None, "costs": [0.0] * 8, "budget": 3.0}, ValueError, "must not be 0 for every"),
        ({"k": None, "costs": [2.0] * 8, "budget": 1.0}, ValueError, "pay for one column, 2; got"),
        ({"k": None, "costs": [2.0] * 8, "budget": 0.0}, ValueError, "budget must be .* got 0.0"),
        ({"k": None, "costs": [2.0] * 8, "budget": np.nan}, ValueError, "budget .* got nan"),
        ({"k": None, "costs": [2.0] * 8, "budget": "x"}, TypeError, "budget .* got 'x'"),
        ({"groups": [1, 2]}, ValueError, r"one label per column, shape \(8,\); got \(2,\)$"),
        (
            {"groups": ["plan", "city"]},
            ValueError,
            r"got \(2,\); names of .* are a set, as \{'plan'",
        ),
        ({"k": 5, "groups": list("aabbccdd")}, ValueError, r"1..n_groups \(here 1..4\), .* got 5"),
        ({"elimination": 1.5}, ValueError, r"elimination must be a number in \[0, 1\]; got 1.5"),
        ({"elimination": -0.1}, ValueError, "elimination must be .* got -0.1"),
        ({"elimination": None}, TypeError, "elimination must be .* got None"),
        ({"screen": 0}, ValueError, 'screen must be .* None or "auto"; got 0'),
        ({"screen": "pairs"}, TypeError, "screen must be .* got 'pairs'"),
    ],
)
def test_refuses_choices_that_cannot_be_made(options, error, words):
    X, y = planted()
    with pytest.raises(error, match=words):
        quick(**options).fit(X, y)
