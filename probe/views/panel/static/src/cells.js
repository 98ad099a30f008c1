// The sums of one group of rows, and the number that they give.

/** What stays right in a step of which rows were dropped. */
export const TOLERANT = new Set(["max", "min", "last"]);

export function newCell() {
  return { sum: 0, second: 0, top: -Infinity, low: Infinity, last: NaN, count: 0, each: null, row: -1 };
}

export function add(cell, value, second, each, row) {
  if (Number.isNaN(value)) return;
  cell.sum += value;
  cell.second += Number.isNaN(second) ? 0 : second;
  cell.count += 1;
  cell.last = value;
  if (value > cell.top) {
    cell.top = value;
    cell.row = row;
  }
  if (value < cell.low) cell.low = value;
  if (each !== null) {
    cell.each ??= new Map();
    cell.each.set(each, (cell.each.get(each) || 0) + value);
  }
}

export function merge(into, cell) {
  into.sum += cell.sum;
  into.second += cell.second;
  into.count += cell.count;
  into.last = Number.isNaN(cell.last) ? into.last : cell.last;
  if (cell.top > into.top) [into.top, into.row] = [cell.top, cell.row];
  into.low = Math.min(into.low, cell.low);
  for (const [each, value] of cell.each || []) {
    into.each ??= new Map();
    into.each.set(each, (into.each.get(each) || 0) + value);
  }
}

/** The number of a cell. */
export function reduced(cell, how) {
  if (!cell || !cell.count) return how === "count" && cell ? 0 : NaN;
  if (how === "ratio") return cell.second ? cell.sum / cell.second : NaN;
  const parts = cell.each ? [...cell.each.values()] : null;
  if (how === "imbalance") return imbalance(parts || []);
  if (how === "max") return parts ? Math.max(...parts) : cell.top;
  if (how === "min") return parts ? Math.min(...parts) : cell.low;
  if (how === "mean") return cell.sum / (parts ? parts.length : cell.count);
  if (how === "last") return cell.last;
  if (how === "count") return cell.count;
  return cell.sum;
}

function imbalance(parts) {
  const sum = parts.reduce((total, one) => total + one, 0);
  return sum > 0 ? (Math.max(...parts) * parts.length) / sum : NaN;
}
