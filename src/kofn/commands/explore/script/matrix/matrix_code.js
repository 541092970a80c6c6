// Python that computes the matrix that the page shows, for PyTorch, JAX and NumPy.

import { float, linkText, rowCode, truth } from "../code.js";

const row = (values, write) => `[${values.map(write).join(", ")}]`;

/** A matrix as text, a row on each line. */
function block(name, maker, rows, write, end) {
  return [`${name} = ${maker}([`, ...rows.map((each) => `    ${row(each, write)},`), `]${end})`];
}

const KINDS = {
  torch: { imports: ["import torch"], maker: "torch.tensor", end: ", dtype=torch.float64" },
  jax: { imports: ["import jax", "import jax.numpy as jnp"], maker: "jnp.array", end: "" },
  numpy: { imports: ["import numpy as np"], maker: "np.array", end: "" },
};

function matrixCode(framework, state) {
  const { imports, maker, end } = KINDS[framework];
  const { scores, off, rows, columns } = state.matrix;
  const n = scores[0].length;
  const masked = off.some(Boolean);
  const mask = scores.map((_, i) => off.slice(i * n, (i + 1) * n));
  return [
    ...imports,
    "from kofn import links, soft_assignment, soft_assignment_prices",
    "",
    ...(framework === "jax" ? ['jax.config.update("jax_enable_x64", True)'] : []),
    ...block("scores", maker, scores, float, end),
    `k = ${maker}(${row(rows, float)}${end})`,
    `capacity = ${maker}(${row(columns, float)}${end})`,
    ...(masked ? block("mask", maker, mask, (each) => truth(!each), "") : []),
    `options = dict(link=${linkText(state)}, temperature=${float(state.T)}${masked ? ", mask=mask" : ""})`,
    "",
    "weights = soft_assignment(scores, k, capacity, **options)",
    "alpha, beta = soft_assignment_prices(scores, k, capacity, **options)",
    "hard = soft_assignment(scores, k, capacity, hard=True, **options)",
    "print(weights)",
  ];
}

/** The code for what is shown, by a framework, as text. */
export const codeFor = (framework, state) => {
  const lines = state.view === "matrix" ? matrixCode : rowCode;
  return `${lines(framework, state).join("\n")}\n`;
};
