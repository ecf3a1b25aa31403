// The data of the page. It has one list for each rank; all that is looked up often is in typed arrays.

const byId = (id) => document.getElementById(id);
const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const FORWARD = 0, BACKWARD = 1, DIRECTIONS = ["forward", "backward", "effect", "update"];
const DIFFERS = 1, NOT_FINITE = 2, FAILED = 4, ABSENT = 8, CONTROL = 2, NONBLOCKING = 1;
const LABELS = { __proto__: null,
  R: ["#9ecae9", "R", "Replicated: equal copies"], I: ["#c9ccd1", "I", "Invariant: one value, repeated"],
  P: ["#ffbf79", "P", "Partial: addends"], S: ["#8fd682", "S", "Shard: parts"], V: ["#d9afd0", "V", "Varying: own values"],
  X: ["#f0d25f", "Rooted", "on one rank"], C: ["#f1f1ee", "C", "constant"], D: ["#dfe6c8", "D", "drawn: random, equal"],
};
const LINKS = { __proto__: null,
  all_reduce: ["#c22121", "dot"], all_gather: ["#1f6fb2", "square"], reduce_scatter: ["#7a4fb5", "open"],
  all_to_all: ["#0e8a99", "diamond"], broadcast: ["#23852b", "out"], scatter: ["#23852b", "out"],
  reduce: ["#8a5a44", "in"], gather: ["#8a5a44", "in"], scan: ["#a0660b", "triangle"], get: ["#555", "ring"],
  accumulate: ["#555", "ring"], send: ["#c0398b", "arrow"], recv: ["#c0398b", "arrow"], lend: ["#c0398b", "arrow"],
};
const OTHER_LINK = ["#777", "tick"];
const MESSAGES = new Set(["send", "recv", "lend"]);
const WIDTHS = [26, 66, 118, 178], ROW = 58, CELL = 46, LEFT = 62, GAP = 15, LEVEL = 17;

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function summed(row, Type = Int32Array) {
  const found = new Type(row.length);
  let last = 0;
  for (let i = 0; i < row.length; i++) found[i] = last += row[i];
  return found;
}

/** Where the entries of each owner begin, and the entries in order of their owner. */
function grouped(owners, count) {
  const start = new Int32Array(count + 1), items = new Int32Array(owners.length);
  for (const k of owners) start[k + 1]++;
  for (let k = 0; k < count; k++) start[k + 1] += start[k];
  const next = start.slice();
  for (let i = 0; i < owners.length; i++) items[next[owners[i]]++] = i;
  return { start, items, of: (k) => items.subarray(start[k], start[k + 1]) };
}

class Run {
  constructor(data) {
    Object.assign(this, data);
    this.size = data.ranks.length;
    const of = data.records;
    this.rank = data.ranks.map((_, r) => {
      const count = of.name[r].length, cause = of.cause[r], root = new Int32Array(count);
      for (let k = 0; k < count; k++) root[k] = cause[k] >= 0 && cause[k] < k ? root[cause[k]] : k;
      const rank = {
        count, root, cause, direction: of.direction[r], name: of.name[r], scope: of.scope[r], site: of.site[r],
        layout: of.layout[r], value: of.value[r], adjoint: of.adjoint[r], tape: of.tape[r], place: of.place[r],
        duration: of.duration[r], flags: of.flags[r], bytes: summed(of.tape_bytes[r], Float64Array),
        begin: summed(of.begin[r], Float64Array), moment: summed(of.moment[r]), column: summed(of.column[r]),
        forward: new Int32Array(data.columns).fill(-1), backward: new Int32Array(data.columns).fill(-1),
        at: new Int32Array(data.moments).fill(-1), pair: new Int32Array(count).fill(-1),
      };
      const roots = [];
      for (let k = 0; k < count; k++) {
        const forward = rank.adjoint[k];
        if (rank.direction[k] === BACKWARD && forward >= 0) {
          rank.pair[k] = forward;
          if (rank.pair[forward] < 0) rank.pair[forward] = k;
        }
        if (root[k] !== k) continue;
        roots.push(k);
        rank.at[rank.moment[k]] = k;
        (rank.direction[k] === BACKWARD ? rank.backward : rank.forward)[rank.column[k]] = k;
      }
      rank.roots = Int32Array.from(roots);
      const calls = data.calls;
      rank.calls = {
        record: summed(calls.record[r]), link: summed(calls.link[r]), call: calls.call[r], axis: calls.axis[r],
        channel: calls.channel[r], number: calls.number[r], bytes: calls.bytes[r], peer: calls.peer[r], kind: calls.kind[r],
        algorithm: calls.algorithm[r], reason: calls.reason[r], begin: summed(calls.begin[r], Float64Array),
        duration: calls.duration[r],
      };
      rank.callsOf = grouped(rank.calls.record, count);
      rank.callsAt = grouped(rank.calls.record.map((k) => root[k]), count);
      const inner = [];
      for (let k = 0; k < count; k++) inner.push(root[k]);
      rank.inside = grouped(inner, count);
      const operands = data.operands, owner = summed(operands.record[r]), counts = operands.count[r];
      const start = new Int32Array(owner.length + 1);
      for (let i = 0; i < owner.length; i++) start[i + 1] = start[i] + counts[i];
      const index = new Map();
      owner.forEach((k, i) => index.set(k, i));
      rank.operands = (k) => {
        const i = index.get(k), found = [];
        if (i !== undefined) for (let j = start[i]; j < start[i + 1]; j++)
          found.push({ to: operands.to[r][j], name: this.texts[operands.name[r][j]], layout: operands.layout[r][j] });
        return found;
      };
      const given = summed(data.contributions.record[r]);
      const gives = grouped(given, count);
      rank.gives = (k) => Array.from(gives.of(k), (j) => ({ to: data.contributions.to[r][j], value: data.contributions.value[r][j] }));
      return rank;
    });
    const owners = [], members = [];
    this.rank.forEach((rank, r) => rank.calls.link.forEach((link, c) => { owners.push(link); members.push([r, c]); }));
    const links = grouped(owners, data.links.ranks.length);
    this.members = (link) => Array.from(links.of(link), (i) => members[i]);
    this.rank.forEach((rank) => { rank.arrivals = new Map(); });
    this.incomplete = new Set();
    data.links.arrival.forEach((k, link) => {
      const found = this.members(link);
      if (k >= 0) {
        const { arrivals } = this.rank[found[1][0]];
        arrivals.set(k, [...(arrivals.get(k) || []), link]);
      }
      const shown = this.texts[data.links.ranks[link]].split(" ").filter((world) => data.ranks.includes(+world));
      if (new Set(found.map(([r]) => r)).size < shown.length) this.incomplete.add(link);
    });
    this.linkRanks = (link) => this.texts[data.links.ranks[link]].split(" ").map(Number);
    this.row = new Map(data.ranks.map((world, r) => [world, r]));
    this.errorOf = new Map(data.errors.map(([r, k, text]) => [r + " " + k, text]));
    this.labels = this.texts.map(() => null);
    this.lead = Array.from({ length: data.columns }, (_, c) => this.leading(c));
    this.scopeOf = Int32Array.from(this.lead, (one) => (one ? this.rank[one[0]].scope[one[1]] : 0));
    this.scopeDepth = data.scopes.map(() => 0);
    data.scopes.forEach(([parent], s) => { this.scopeDepth[s] = parent < 0 ? 0 : this.scopeDepth[parent] + 1; });
    this.depth = Math.max(0, ...this.scopeOf.map((s) => this.scopeDepth[s]));
    this.hasBackward = this.rank.some((rank) => rank.direction.includes(BACKWARD));
    this.memory = this.curves();
    this.checks = this.comparisons();
  }

  /** The columns and moments in which ranks only compare what they do, as no operation of the program. */
  comparisons() {
    const isOne = (rank, k) => {
      const calls = Array.from(rank.callsAt.of(k)), name = this.texts[rank.name[k]];
      return calls.length > 0 && !(rank.flags[k] & FAILED) && calls.every((c) => rank.calls.kind[c] & CONTROL && this.texts[rank.calls.call[c]] === name);
    };
    const column = new Uint8Array(this.columns).fill(1), moment = new Uint8Array(this.moments).fill(1);
    for (const rank of this.rank)
      for (const k of rank.roots) if (!isOne(rank, k)) column[rank.column[k]] = moment[rank.moment[k]] = 0;
    return { column, moment, count: column.reduce((sum, is) => sum + is, 0) };
  }

  /** The first record of a column: its name, scope and line stand for the column. */
  leading(column) {
    for (const field of ["forward", "backward"])
      for (let r = 0; r < this.size; r++) {
        const k = this.rank[r][field][column];
        if (k >= 0) return [r, k];
      }
    return null;
  }

  curves() {
    const curve = { forward: new Float64Array(this.columns), backward: new Float64Array(this.columns), most: 0 };
    for (const field of ["forward", "backward"])
      for (let c = 0; c < this.columns; c++) {
        let most = 0;
        for (const rank of this.rank) { const k = rank[field][c]; if (k >= 0) most = Math.max(most, rank.bytes[k]); }
        curve[field][c] = most;
        curve.most = Math.max(curve.most, most);
      }
    return curve;
  }

  /** [axis, label, letter of the label] for each axis of a layout, from the number of its text. */
  layout(text) {
    if (!this.labels[text]) {
      const found = [];
      for (const [, axis, label] of this.texts[text].matchAll(/(\w+): (\w+(?:\([^)]*\))?)/g)) {
        const letter = label.startsWith("Shard") ? "S" : label.startsWith("Rooted") ? "X" : label;
        found.push([axis, label.replace("Shard", "S"), letter]);
      }
      this.labels[text] = found;
    }
    return this.labels[text];
  }

  scopePath(s) {
    const names = [];
    for (; s > 0; s = this.scopes[s][0]) names.unshift(this.texts[this.scopes[s][1]]);
    return names;
  }

  callWord(r, c) { return this.texts[this.rank[r].calls.call[c]].split(" ")[0]; }
}

// -- texts of values ---------------------------------------------------------------------------------------------------

const digits = (x, n) => (typeof x === "number" ? String(+x.toPrecision(n)) : x === true ? "True" : x === false ? "False" : String(x));
function bytes(n) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (n >= size) return +(n / size).toPrecision(3) + " " + unit;
  return n + " B";
}
function time(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) if (ns >= size) return +(ns / size).toPrecision(3) + " " + unit;
  return Math.round(ns) + " ns";
}
const elements = (shape) => (shape ? shape.split(",").reduce((n, each) => n * each, 1) : 1);
const cut = (text, most) => (text.length > most ? text.slice(0, Math.max(1, most - 1)) + "…" : text);

function brief(run, v, most) {
  if (v < 0) return "";
  const s = run.summaries, shape = "[" + run.texts[s.shape[v]] + "]";
  if (s.absent[v]) return "not here";
  const values = s.values[v], facts = s.facts[v];
  if (values && values.length === 1 && shape === "[]") return digits(values[0], 5);
  if (values) return cut(shape + " " + values.slice(0, 6).map((x) => digits(x, 3)).join(" "), most);
  return cut(shape + (facts ? " μ " + digits(facts[1], 3) : ""), most);
}

/** A value in full, or its first values. */
function whole(run, v, most = 64) {
  if (v < 0) return "–";
  const s = run.summaries, head = run.texts[s.dtype[v]] + "[" + run.texts[s.shape[v]] + "]";
  if (s.absent[v]) return '<span class="quiet">not on this rank</span>';
  const values = s.values[v], facts = s.facts[v];
  let text = '<span class="quiet">' + escaped(head) + "</span> ";
  if (values) text += values.slice(0, most).map((x) => escaped(digits(x, run.digits))).join(" ") + (Math.min(most, values.length) < elements(run.texts[s.shape[v]]) ? " …" : "");
  else if (facts) text += "least " + digits(facts[0], 5) + ", mean " + digits(facts[1], 5) + ", greatest " + digits(facts[2], 5) + ", deviation " + digits(facts[3], 5);
  if (s.not_finite[v]) text += ' <span class="alarm">' + s.not_finite[v] + " not finite</span>";
  return text;
}
