"""What the examples are made of."""

import numpy as np

X = np.array(
    [[1.3, -0.4, 0.6, -1.7, 0.1], [0.2, 0.9, -1.1, 1.6, -0.5], [-0.8, 2.1, 0.4, -0.3, 1.2]]
)
K = np.array([2.0, 1.5, 2.4])
T = np.array([0.75, 1.0, 1.4])  # no score is at the end of a support
ALPHA = np.array([1.5, 1.7, 2.3])
MASK = np.array([[True] * 5, [True, True, False, True, True], [True] * 5])
COSTS = np.array([[1.0, 0.5, 2.0, 1.5, 1.0], [0.7, 1.2, 1.0, 0.4, 2.0], [1.0, 1.5, 0.8, 1.1, 0.6]])
WEIGHTS = np.array(
    [[0.5, 0.1, 0.2, 0.05, 0.15], [0.2, 0.3, 0.0, 0.4, 0.1], [0.1, 0.6, 0.05, 0.1, 0.15]]
)
LABELS = np.array([0, 3, 1])
TARGET = np.array([[0, 0, 1, 0, 0], [0, 1.0, 0, 0, 0], [0, 0, 0, 0, 1]])
K_HOT = np.array([[1.0, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 1, 0, 0, 1]])
PER_CLASS = np.array([1.0, 2.0, 0.5, 1.5, 0.8])
WHOLE_K = np.array([2, 1, 3])
Q = np.array([0.3, 0.8])
KEPT = ([0, 2, 1, 3, 4, 0, 1, 2], [0, 2, 5, 8])
SCORES = {"scores": X}
OF_ROWS = {"temperature": T, "mask": MASK}
TOPK = {"scores": X, "k": K, **OF_ROWS}
BUDGET = {"scores": X, "costs": COSTS, "budget": np.array([2.0, 1.5, 2.2]), **OF_ROWS}
MATRICES = {
    "scores": np.stack([X[:, :4], X[:, 1:]]),
    "k": np.array([[1.2, 1.0, 0.9], [1.1, 0.8, 1.3]]),
    "capacity": np.array([[0.9, 0.7, 0.8, 0.7], [0.6, 1.0, 0.7, 0.9]]),
    "temperature": np.array([0.7, 1.2]),
    "mask": np.stack([MASK[:, :4], MASK[::-1, :4]]),
}
IDS = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
FLAT = np.array([1.3, -0.4, 0.6, -1.7, 0.2, 0.9, -1.1, -0.8, 2.1, 0.4])
PTR = np.array([0, 4, 7, 10])
OF_SEGMENTS = {"segment_ids": IDS, "num_segments": 3, "temperature": T, "mask": FLAT != -1.1}
SEGMENTS = {"scores": FLAT, "k": np.array([2.0, 0.5, 1.4]), **OF_SEGMENTS}
BY_PTR = {name: SEGMENTS[name] for name in ("scores", "k", "temperature", "mask")} | {"ptr": PTR}
LOSS = {
    "scores": X,
    "target": LABELS,
    **OF_ROWS,
    "weight": PER_CLASS,
    "label_smoothing": 0.1,
    "reduction": "none",
}
UNSMOOTHED = {name: value for name, value in LOSS.items() if name != "label_smoothing"}
LAWS = {"logits": X, "mask": MASK}
OTHER = {"other": X[:, ::-1].copy()}
ONE_HOT = {"sample": np.eye(5)[LABELS]}
BITS = {"sample": K_HOT}
NOISY = {"perturbed": X + TARGET}
TOKENS = np.stack([X[:2, :4], X[1:, 1:]])
HEADS = {"query": np.stack([X, X[::-1]])[:, None]}
HEADS |= {"key": HEADS["query"] / 2, "value": HEADS["query"] / 3}

TEACHER = {
    "scores": X,
    "ids": np.array([[0, 2], [3, 1], [1, -1]]),
    "log_probs": np.log([[0.5, 0.2], [0.6, 0.3], [0.4, 1.0]]),
}
SETS = {"several": {"k": 4, "p": 0.9, "min_p": 0.1}, "kept": {"kept": KEPT}}

LEARNED = ("scores", "k", "temperature")
SOFT = ("scores", "temperature")
OF_BUDGET = ("scores", "costs", "budget", "temperature")
