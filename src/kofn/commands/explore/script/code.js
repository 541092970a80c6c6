// Python that computes what the page shows, for PyTorch, JAX and NumPy.

const NAMES = "KSubset, hard_topk, links, soft_topk, soft_topk_sum, soft_topk_threshold";

export const float = (x) =>
  !Number.isFinite(x) ? (x > 0 ? "inf" : "-inf") : Number.isInteger(x) ? `${x}.0` : String(x);
export const truth = (each) => (each ? "True" : "False");
export const linkText = ({ link, alpha }) => (link === "entmax" ? `links.entmax(${alpha})` : `links.${link}`);

/** What all three have in common: texts for the values of the state. */
function parts(state) {
  const masked = state.off.some(Boolean);
  const infinite = state.scores.some((x) => !Number.isFinite(x));
  return {
    masked,
    infinite,
    whole: Number.isInteger(state.k),
    scores: `[${state.scores.map(float).join(", ")}]`,
    mask: `[${state.off.map((each) => truth(!each)).join(", ")}]`,
    inf: infinite ? ['inf = float("inf")'] : [],
    beside: masked ? ", mask=mask" : "",
  };
}

const imported = (part, more = "") => {
  const names = part.whole ? NAMES : NAMES.replace("KSubset, ", "");
  return `from kofn import ${names}${more}`;
};

const subset = (state, part, scores = "scores") =>
  part.whole
    ? [`marginals = KSubset(${scores} / ${float(state.T)}, ${state.k}${part.beside}).marginals()`]
    : [];

export function torchCode(state) {
  const part = parts(state);
  const number = (x) => `torch.tensor(${float(x)}, dtype=torch.float64, requires_grad=True)`;
  return [
    "import torch",
    imported(part),
    "",
    ...part.inf,
    `scores = torch.tensor(${part.scores}, dtype=torch.float64, requires_grad=True)`,
    `k = ${number(state.k)}`,
    `temperature = ${number(state.T)}`,
    ...(part.masked ? [`mask = torch.tensor(${part.mask})`] : []),
    `options = dict(link=${linkText(state)}, temperature=temperature${part.beside})`,
    "",
    "weights = soft_topk(scores, k, **options)",
    "threshold = soft_topk_threshold(scores, k, **options)",
    "smoothed_sum = soft_topk_sum(scores, k, **options)",
    `hard = hard_topk(scores, ${state.k}${part.beside})`,
    ...subset(state, part, "scores.detach()"),
    "by_scores, by_k, by_temperature = torch.autograd.grad(",
    `    weights[${state.entry}], (scores, k, temperature)`,
    ")",
    "print(weights)",
  ];
}

export function jaxCode(state) {
  const part = parts(state);
  return [
    "import jax",
    "import jax.numpy as jnp",
    imported(part),
    "",
    'jax.config.update("jax_enable_x64", True)',
    ...part.inf,
    `scores = jnp.array(${part.scores})`,
    `k, temperature = ${float(state.k)}, ${float(state.T)}`,
    ...(part.masked ? [`mask = jnp.array(${part.mask})`] : []),
    `options = dict(link=${linkText(state)}${part.beside})`,
    "",
    "",
    "def soft(scores, k, temperature):",
    "    return soft_topk(scores, k, temperature=temperature, **options)",
    "",
    "",
    "weights = soft(scores, k, temperature)",
    "threshold = soft_topk_threshold(scores, k, temperature=temperature, **options)",
    "smoothed_sum = soft_topk_sum(scores, k, temperature=temperature, **options)",
    `hard = hard_topk(scores, k${part.beside})`,
    ...subset(state, part),
    "by_scores, by_k, by_temperature = jax.grad(",
    `    lambda *given: soft(*given)[${state.entry}], argnums=(0, 1, 2)`,
    ")(scores, k, temperature)",
    "print(weights)",
  ];
}

/** NumPy has no automatic gradients; the formula of them is short. */
function numpyGradient(state, part) {
  const live = part.masked ? "mask & np.isfinite(scores)" : "np.isfinite(scores)";
  const z = "(scores - threshold) / temperature";
  const top = state.scores.map((x, i) => x === Infinity && !state.off[i]);
  const sure = top.filter(Boolean).length;
  const simple = [`z = ${z}`];
  const careful = ['with np.errstate(invalid="ignore"):', `    z = np.where(${live}, ${z}, -inf)`];
  const among = part.masked ? "np.isposinf(scores) & mask" : "np.isposinf(scores)";
  // More scores of +inf than k share k evenly.
  const share =
    sure && sure >= state.k
      ? [`share = (${among}) / np.sum(${among})`, ...(state.k ? [] : ["share = 0 * share"])]
      : ["share = softmax(link.log_pdf(z))"];
  return [
    ...(part.infinite || part.masked ? careful : simple),
    ...share,
    `by_scores = link.pdf(z)[${state.entry}] * (np.eye(len(scores))[${state.entry}] - share) / temperature`,
    `by_k = share[${state.entry}]`,
    "by_temperature = -np.sum(by_scores * np.where(by_scores == 0, 0, z))",
  ];
}

export function numpyCode(state) {
  const part = parts(state);
  const inf = part.infinite || part.masked ? ['inf = float("inf")'] : [];
  return [
    "import numpy as np",
    imported(part, ", softmax"),
    "",
    ...inf,
    `scores = np.array(${part.scores})`,
    `k, temperature, link = ${state.k}, ${state.T}, ${linkText(state)}`,
    ...(part.masked ? [`mask = np.array(${part.mask})`] : []),
    `options = dict(link=link, temperature=temperature${part.beside})`,
    "",
    "weights = soft_topk(scores, k, **options)",
    "threshold = soft_topk_threshold(scores, k, **options)",
    "smoothed_sum = soft_topk_sum(scores, k, **options)",
    `hard = hard_topk(scores, k${part.beside})`,
    ...subset(state, part),
    "",
    `# The gradient of weight ${state.entry}, by its formula.`,
    ...numpyGradient(state, part),
    "print(weights)",
  ];
}

/** The code of a row for a framework, line by line. */
export const rowCode = (framework, state) =>
  ({ torch: torchCode, jax: jaxCode, numpy: numpyCode })[framework](state);
