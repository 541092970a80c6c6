// Marginals of the k-subset distribution, P(S) ∝ exp Σ logits: coins that give k heads.
//
// Tables over the first and the last coins, all of whose terms are positive: O(nk) numbers, and
// no digits lost. kofn takes O(n) by other means, so the two check each other.

import { linkOf } from "./links.js";
import { threshold } from "./solver.js";

/** Pr(the number of heads is 0, 1, …, k) after each coin. */
function counts(coins, k) {
  const table = [[1, ...Array(k).fill(0)]];
  for (const { p, q } of coins) {
    const before = table[table.length - 1];
    table.push(before.map((each, j) => q * each + (j ? p * before[j - 1] : 0)));
  }
  return table;
}

export function marginals(logits, k) {
  const top = logits.filter((each) => each === Infinity).length;
  if (top > k) return logits.map((each) => (each === Infinity ? k / top : 0));
  const certain = logits.map((each) => Number(each === Infinity));
  const places = logits.map((_, i) => i).filter((i) => Number.isFinite(logits[i]));
  const left = k - top;
  if (left <= 0) return certain;
  if (left >= places.length) return logits.map((each) => Number(each !== -Infinity));

  const link = linkOf("logistic");
  // Any coins with these odds serve; with these k is their mean.
  const { y } = threshold(link, places.map((i) => logits[i]), left, 1);
  const coins = y.map((each) => ({ p: link.cdf(each), q: link.sf(each) }));
  const first = counts(coins, left);
  const last = counts([...coins].reverse(), left).reverse();
  const total = first[coins.length][left];
  const pairs = (one, other, heads) => {
    let sum = 0;
    for (let j = 0; j <= heads; j++) sum += one[j] * other[heads - j];
    return sum;
  };
  places.forEach((place, i) => {
    certain[place] = (coins[i].p * pairs(first[i], last[i + 1], left - 1)) / total;
  });
  return certain;
}
