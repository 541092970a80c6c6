// What the margins of a matrix decide: whether weights from 0 to 1 have them, and which of these
// are 0 or 1 in all such matrices.
//
// Rows send their k to columns, at most 1 through each cell. A cell's part can change if its row
// and its column reach each other where the flow has room, forwards or back; else it is settled.
// kofn settles rows and columns by their own margins, again and again; so the two check each other.

const LEAST = 1e-9; // less room is rounding

/** The flow through each cell that fills the margins; null if there is none. */
function flow(live, rows, columns) {
  const through = live.map((row) => row.map(() => 0));
  const [supply, demand] = [[...rows], [...columns]];
  for (;;) {
    const path = shortest(live, through, supply, demand);
    if (!path) break;
    const most = path.map(([i, j, sign]) => (sign > 0 ? 1 - through[i][j] : through[i][j]));
    const [first, last] = [path[0][0], path[path.length - 1][1]];
    const amount = Math.min(supply[first], demand[last], ...most);
    path.forEach(([i, j, sign]) => (through[i][j] += sign * amount));
    supply[first] -= amount;
    demand[last] -= amount;
  }
  return [...supply, ...demand].some((rest) => Math.abs(rest) > 1e-6) ? null : through;
}

/** The shortest path of cells from a row that has something left to a column that has room. */
function shortest(live, through, supply, demand) {
  const rows = new Map();
  const columns = new Map();
  supply.forEach((rest, i) => rest > LEAST && rows.set(i, []));
  const queue = [...rows.keys()];
  while (queue.length) {
    const i = queue.shift();
    for (let j = 0; j < demand.length; j++) {
      if (columns.has(j) || !live[i][j] || through[i][j] > 1 - LEAST) continue;
      const path = [...rows.get(i), [i, j, 1]];
      if (demand[j] > LEAST) return path;
      columns.set(j, path);
      for (let h = 0; h < supply.length; h++) {
        if (rows.has(h) || through[h][j] < LEAST) continue;
        rows.set(h, [...path, [h, j, -1]]);
        queue.push(h);
      }
    }
  }
  return null;
}

/** Which of the rows, and of the columns after them, reach which. */
function reached(live, through) {
  const m = live.length;
  const size = m + live[0].length;
  const reach = Array.from({ length: size }, (_, a) => Array.from({ length: size }, (_, b) => a === b));
  live.forEach((row, i) => row.forEach((open, j) => {
    if (open && through[i][j] < 1 - LEAST) reach[i][m + j] = true;
    if (open && through[i][j] > LEAST) reach[m + j][i] = true;
  }));
  for (let by = 0; by < size; by++) {
    for (let from = 0; from < size; from++) {
      if (reach[from][by]) reach[by].forEach((there, to) => (reach[from][to] ||= there));
    }
  }
  return reach;
}

/**
 * The cells that the margins settle at 1, and the parts that they leave open, each with its rows
 * and columns; all other cells are 0. null if no weights have these margins.
 */
export function settled(live, rows, columns) {
  const through = flow(live, rows, columns);
  if (!through) return null;
  const m = live.length;
  const reach = reached(live, through);
  const joined = (a, b) => reach[a][b] && reach[b][a];
  const full = live.map((row, i) => row.map((open, j) => open && !joined(i, m + j) && through[i][j] > 0.5));
  const parts = [];
  rows.forEach((_, i) => {
    if (parts.some((part) => part.rows.includes(i))) return;
    const mine = columns.map((_, j) => j).filter((j) => joined(i, m + j));
    if (mine.length) parts.push({ rows: rows.map((_, h) => h).filter((h) => joined(i, h)), columns: mine });
  });
  return { full, parts };
}
