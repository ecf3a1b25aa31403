"use strict";
// One page of a program's ranks. Only what is visible is in the document: groups of columns are made and removed
// while the view moves. The data has one list for each rank; all that is looked up often is in typed arrays.

const byId = (id) => document.getElementById(id);
const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const FORWARD = 0, BACKWARD = 1, DIRECTIONS = ["forward", "backward", "effect", "update"];
const DIFFERS = 1, NOT_FINITE = 2, FAILED = 4, ABSENT = 8, CONTROL = 2, NONBLOCKING = 1;
const LABELS = {
  R: ["#9ecae9", "R", "Replicated: equal copies"], I: ["#c9ccd1", "I", "Invariant: one value, repeated"],
  P: ["#ffbf79", "P", "Partial: addends"], S: ["#8fd682", "S", "Shard: parts"], V: ["#d9afd0", "V", "Varying: own values"],
  X: ["#f0d25f", "Rooted", "on one rank"], C: ["#f1f1ee", "C", "constant"], D: ["#dfe6c8", "D", "drawn: random, equal"],
};
const LINKS = {
  all_reduce: ["#c22121", "dot"], all_gather: ["#1f6fb2", "square"], reduce_scatter: ["#7a4fb5", "open"],
  all_to_all: ["#0e8a99", "diamond"], broadcast: ["#23852b", "out"], scatter: ["#23852b", "out"],
  reduce: ["#8a5a44", "in"], gather: ["#8a5a44", "in"], scan: ["#a0660b", "triangle"], get: ["#555", "ring"],
  accumulate: ["#555", "ring"], send: ["#c0398b", "arrow"], recv: ["#c0398b", "arrow"], lend: ["#c0398b", "arrow"],
};
const OTHER_LINK = ["#777", "tick"];
const MESSAGES = new Set(["send", "recv", "lend"]);
const WIDTHS = [26, 66, 118, 178], ROW = 58, CELL = 46, LEFT = 62, GAP = 15, LEVEL = 17;

// -- the data --------------------------------------------------------------------------------------------------------

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

// -- drawing -----------------------------------------------------------------------------------------------------------

const NS = "http://www.w3.org/2000/svg";
const PATTERNS = `<defs>
<pattern id="P" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="7" height="7" fill="${LABELS.P[0]}"/><path d="M0 0V7" stroke="#0003" stroke-width="2.4"/></pattern>
<pattern id="S" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" fill="${LABELS.S[0]}"/><path d="M0 3H6" stroke="#0003"/></pattern>
<pattern id="V" width="8" height="8" patternUnits="userSpaceOnUse"><rect width="8" height="8" fill="${LABELS.V[0]}"/><circle cx="2" cy="2" r="1.1" fill="#0004"/><circle cx="6" cy="6" r="1.1" fill="#0004"/></pattern>
<pattern id="X" width="9" height="9" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="9" height="9" fill="${LABELS.X[0]}"/><path d="M0 4H9M4 0V9" stroke="#0002"/></pattern>
<pattern id="C" width="9" height="9" patternUnits="userSpaceOnUse"><rect width="9" height="9" fill="${LABELS.C[0]}"/></pattern>
<pattern id="D" width="10" height="10" patternUnits="userSpaceOnUse"><rect width="10" height="10" fill="${LABELS.D[0]}"/><path d="M2 5h3" stroke="#0003"/></pattern>
</defs>`;
const fillOf = (letter) => ("PSVXCD".includes(letter) ? `url(#${letter})` : (LABELS[letter] || ["var(--empty)"])[0]);

/** The rectangle of a cell: one stripe for each mesh axis, rounded where the value is one value on every axis. */
function frame(labels, x, y, w, h, absent) {
  const round = labels.length && labels.every(([, , letter]) => letter === "I") ? 11 : 1.5;
  let text = "";
  if (!labels.length) text = `<rect x="${x}" y="${y}" width="${w}" height="${h}" rx="${round}" fill="var(--empty)"/>`;
  labels.forEach(([, , letter], i) => {
    const wide = w / labels.length;
    text += `<rect x="${x + i * wide}" y="${y}" width="${wide}" height="${h}" rx="${labels.length > 1 ? (letter === "I" ? 8 : 0) : round}" fill="${fillOf(letter)}"${absent ? ' opacity=".35"' : ""}/>`;
  });
  return text + `<rect class="frame" x="${x}" y="${y}" width="${w}" height="${h}" rx="${round}"${absent ? ' stroke-dasharray="4 3"' : ""}/>`;
}

function signs(flags, x, y) {
  let text = "";
  if (flags & DIFFERS) { text += `<circle class="halo" cx="${x - 9}" cy="${y + 9}" r="8"/><text class="sign" x="${x - 13}" y="${y + 14}" style="fill:#c8102e">≠</text>`; x -= 18; }
  if (flags & NOT_FINITE) { text += `<circle cx="${x - 9}" cy="${y + 9}" r="6" fill="#c8102e" stroke="#fff" stroke-width="1.5"/>`; x -= 18; }
  if (flags & FAILED) text += `<circle class="halo" cx="${x - 9}" cy="${y + 9}" r="8"/><text class="sign" x="${x - 13.5}" y="${y + 14}" style="fill:#c8102e">✕</text>`;
  return text;
}

function marker(kind, colour, x, y, ground) {
  if (kind === "dot") return `<circle cx="${x}" cy="${y}" r="4.2" fill="${colour}"/>`;
  if (kind === "ring") return `<circle cx="${x}" cy="${y}" r="4" fill="${ground}" stroke="${colour}" stroke-width="2"/>`;
  if (kind === "square") return `<rect x="${x - 4}" y="${y - 4}" width="8" height="8" fill="${colour}"/>`;
  if (kind === "open") return `<rect x="${x - 4}" y="${y - 4}" width="8" height="8" fill="${ground}" stroke="${colour}" stroke-width="2"/>`;
  if (kind === "diamond") return `<path d="M${x - 6} ${y}l6 -6l6 6l-6 6z" fill="${colour}"/>`;
  if (kind === "triangle") return `<path d="M${x - 5} ${y - 4}h10l-5 9z" fill="${colour}"/>`;
  return `<path d="M${x - 4} ${y}h8" stroke="${colour}" stroke-width="2"/>`;
}

function arrow(colour, x1, y1, x2, y2, bend, classes = "") {
  const middle = bend ? `C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` : `L${x2} ${y2}`;
  const turn = bend ? (bend > 0 ? 0 : Math.PI) : Math.atan2(y2 - y1, x2 - x1), c = Math.cos, s = Math.sin;
  return `<path class="link ${classes}" stroke="${colour}" d="M${x1} ${y1}${middle}"/>` +
    `<path fill="${colour}" d="M${x2} ${y2}l${-9 * c(turn - 0.42)} ${-9 * s(turn - 0.42)}L${x2 - 9 * c(turn + 0.42)} ${y2 - 9 * s(turn + 0.42)}z"/>`;
}

class View {
  constructor(run) {
    this.run = run;
    this.moment = -1;
    this.chosen = 0;
    this.zoom = 2;
    this.axis = "order";
    this.scale = 0;
    this.base = 0;
    this.groups = new Map();
    this.folded = new Set();
    this.depth = run.depth;
    this.found = new Set();
    this.matches = [];
    this.rowsShown = [0, 0];
    this.scroll = byId("scroll");
    this.svg = document.createElementNS(NS, "svg");
    this.svg.innerHTML = PATTERNS + '<g id="lanes"></g><g id="moving"><g id="brackets"></g><g id="columns"></g><g id="links"></g><g id="front"></g></g><g id="names"></g>';
    this.scroll.append(this.svg);
    for (const id of ["lanes", "moving", "brackets", "columns", "links", "front", "names"]) this[id] = this.svg.querySelector("#" + id);
    this.prepareTimes();
    this.foldTo(this.firstDepth());
  }

  // Blocks: a column, or several columns of one folded scope.
  firstDepth() {
    for (let depth = this.run.depth; depth >= 1; depth--) if (this.countBlocks(depth) <= 250) return depth;
    return this.run.depth && this.run.columns > 250 ? 1 : this.run.depth;
  }
  countBlocks(depth) {
    let count = 0, last = -1;
    for (let c = 0; c < this.run.columns; c++) {
      const s = this.run.scopeOf[c], at = this.run.scopeDepth[s] >= depth && depth < this.run.depth ? this.ancestor(s, depth) : -1;
      if (at < 0 || at !== last) count++;
      last = at;
    }
    return count;
  }
  ancestor(s, depth) {
    while (this.run.scopeDepth[s] > depth) s = this.run.scopes[s][0];
    return s;
  }
  foldTo(depth) {
    this.depth = Math.max(0, Math.min(this.run.depth, depth));
    this.folded = new Set();
    if (this.depth < this.run.depth)
      this.run.scopes.forEach((_, s) => { if (this.run.scopeDepth[s] === Math.max(1, this.depth)) this.folded.add(s); });
    if (this.depth < this.run.depth && this.depth === 0) this.depth = 1;
    this.layOut();
  }
  layOut() {
    const run = this.run, start = [], scope = [], of = new Int32Array(run.columns), under = run.scopes.map(() => -1);
    run.scopes.forEach(([parent], s) => { under[s] = parent >= 0 && under[parent] >= 0 ? under[parent] : this.folded.has(s) ? s : -1; });
    let last = -1;
    for (let c = 0; c < run.columns; c++) {
      const s = under[run.scopeOf[c]];
      if (s < 0 || s !== last || !start.length) { start.push(c); scope.push(s); }
      last = s;
      of[c] = start.length - 1;
    }
    start.push(run.columns);
    this.blocks = { count: start.length - 1, start, scope, of };
    this.clear();
    this.drawOverview();
    byId("depth").textContent = run.depth ? `scopes ${this.folded.size ? this.depth : "all"}/${run.depth}` : "no scopes";
  }
  clear() {
    this.groups.clear();
    this.columns.replaceChildren();
    this.range = null;
    this.resize();
  }

  // Sizes.
  get pitch() { return WIDTHS[this.zoom]; }
  get cell() { return this.pitch - (this.pitch > 40 ? GAP : 6); }
  get top() { return 30 + LEVEL * Math.min(3, Math.max(1, this.run.depth)); }
  get bandHeight() { return this.run.size * ROW; }
  get second() { return this.run.hasBackward ? this.top + this.bandHeight + 44 : this.top; }
  get bottom() { return this.second + this.bandHeight; }
  get width() {
    if (this.axis === "order") return LEFT + this.blocks.count * this.pitch + 40;
    return LEFT + this.times.span * this.scale + 60;
  }
  get height() { return this.bottom + (this.axis === "order" && this.run.memory.most ? 66 : 8); }
  y(direction, r) { return (direction === BACKWARD ? this.second : this.top) + r * ROW + 4; }
  blockX(b) { return (b - this.base) * this.pitch; }

  resize() {
    const w = this.scroll.clientWidth, h = this.scroll.clientHeight;
    byId("extent").style.width = this.width + "px";
    byId("extent").style.height = Math.max(this.height, 1) + "px";
    this.svg.setAttribute("width", w);
    this.svg.setAttribute("height", Math.max(h, 0));
    this.range = null;
    this.show();
  }

  // The visible part.
  show() {
    const sx = this.scroll.scrollLeft, sy = this.scroll.scrollTop, w = this.scroll.clientWidth, h = this.scroll.clientHeight;
    if (this.axis === "order") {
      const first = Math.max(0, Math.floor((sx - LEFT) / this.pitch) - 1);
      const last = Math.min(this.blocks.count, Math.ceil((sx + w - LEFT) / this.pitch) + 1);
      if (Math.abs(first - this.base) > 5000) { this.base = first; this.groups.clear(); this.columns.replaceChildren(); this.range = null; }
      this.moving.setAttribute("transform", `translate(${LEFT + this.base * this.pitch - sx} ${-sy})`);
      this.showRows(sy, h);
      const range = first + " " + last + " " + this.rows;
      if (range !== this.range) { this.range = range; this.showColumns(first, last); }
      this.showBrackets(first, last, sx);
    } else {
      this.moving.setAttribute("transform", `translate(0 ${-sy})`);
      this.showRows(sy, h);
      this.showTimes(sx, w);
    }
    this.showFront(sx, sy, w, h);
    this.drawWindow();
  }
  /** The rows that are visible in either band; a far row is not drawn. */
  showRows(sy, h) {
    const rows = [];
    for (const top of this.run.hasBackward ? [this.top, this.second] : [this.top]) {
      const first = Math.max(0, Math.floor((sy - top) / ROW) - 1), last = Math.min(this.run.size, Math.ceil((sy + h - top) / ROW) + 1);
      rows.push([Math.min(first, this.run.size), Math.max(0, last)]);
    }
    if (rows.length < 2) rows.push([0, 0]);
    const key = rows.join(" ");
    if (key !== this.rows) { this.rows = key; this.rowRange = rows; this.groups.clear(); this.columns.replaceChildren(); this.range = null; }
  }
  showColumns(first, last) {
    for (const [b, group] of this.groups) if (b < first || b >= last) { group.remove(); this.groups.delete(b); }
    for (let b = first; b < last; b++) if (!this.groups.has(b)) {
      const group = document.createElementNS(NS, "g");
      group.innerHTML = this.block(b);
      this.columns.append(group);
      this.groups.set(b, group);
    }
    const links = new Set();
    for (let b = first; b < last; b++) this.collectLinks(b, links);
    this.links.innerHTML = this.drawLinks(links) + this.memoryCurve(first, last);
    this.mark();
  }

  cellText(r, k, x, y, w) {
    const run = this.run, rank = run.rank[r], labels = run.layout(rank.layout[k]), most = Math.floor((w - 8) / 6.7);
    let text = frame(labels, x, y, w, CELL, rank.flags[k] & ABSENT);
    if (w > 34) {
      const room = rank.flags[k] & 7 ? most - 3 : most;
      text += `<text class="in name" x="${x + 5}" y="${y + 13}">${escaped(cut(run.texts[rank.name[k]], room))}</text>`;
      text += `<text class="in" x="${x + 5}" y="${y + 27}">${escaped(brief(run, rank.value[k], most))}</text>`;
      const wide = w / Math.max(1, labels.length);
      labels.forEach(([axis, label], i) => {
        const shown = axis + " " + label, fits = shown.length * 5.8 < wide - 6;
        text += `<text class="in small" x="${x + i * wide + 5}" y="${y + 41}">${escaped(fits ? shown : cut(label, Math.floor((wide - 4) / 5.8)))}</text>`;
      });
    }
    return this.inCell(r, k, text + signs(rank.flags[k], x + w, y), "");
  }
  inCell(r, k, text, classes) {
    return `<g class="cell ${classes}" data-r="${r}" data-k="${k}" data-m="${this.run.rank[r].moment[k]}">${text}</g>`;
  }

  block(b) {
    const run = this.run, { start, scope } = this.blocks, first = start[b], last = start[b + 1] - 1, x = this.blockX(b);
    let text = "";
    ["forward", "backward"].forEach((field, band) => {
      const [r0, r1] = this.rowRange[band];
      for (let r = r0; r < r1; r++) {
        const rank = run.rank[r], y = this.y(band ? BACKWARD : FORWARD, r);
        if (scope[b] < 0) {
          const k = rank[field][first];
          if (k >= 0) text += this.cellText(r, k, x, y, this.cell);
          continue;
        }
        text += this.foldedCell(field, r, first, last, x, y);
      }
    });
    return text;
  }
  foldedCell(field, r, first, last, x, y) {
    const run = this.run, rank = run.rank[r], totals = new Map(), w = this.cell;
    let count = 0, flags = 0, shown = -1, sum = 0, calls = 0;
    for (let c = first; c <= last; c++) {
      const k = rank[field][c];
      if (k < 0) continue;
      count++;
      flags |= rank.flags[k] & ~ABSENT;
      if (shown < 0 || field === "forward") shown = k;
      for (const at of rank.callsAt.of(k)) {
        if (rank.calls.kind[at] & CONTROL) continue;
        calls++;
        sum += rank.calls.bytes[at];
        const word = run.callWord(r, at);
        totals.set(word, (totals.get(word) || 0) + 1);
      }
    }
    if (!count) return "";
    const labels = run.layout(rank.layout[shown]), most = Math.floor((w - 8) / 6.7);
    const name = run.texts[run.scopes[this.blocks.scope[this.blocks.of[first]]][1]];
    let text = `<rect class="sheet" x="${x + 3}" y="${y - 3}" width="${w}" height="${CELL}"/>` + frame(labels, x, y, w, CELL, false);
    if (w > 34) {
      text += `<text class="in name" x="${x + 5}" y="${y + 13}">${escaped(cut(name, most - String(count).length - 2))} ×${count}</text>`;
      const kinds = [...totals].map(([word, n]) => (n > 1 ? n + " " : "") + word).join(", ");
      text += `<text class="in" x="${x + 5}" y="${y + 27}">${escaped(cut(kinds, most))}</text>`;
      text += `<text class="in small" x="${x + 5}" y="${y + 41}">${calls ? bytes(sum) + ", " + calls + (calls > 1 ? " calls" : " call") : ""}</text>`;
    }
    return this.inCell(r, shown, text + signs(flags, x + w, y), "folded");
  }

  // Links.
  collectLinks(b, into) {
    const { start, scope } = this.blocks;
    if (scope[b] >= 0 && start[b + 1] - start[b] > 400) return;
    for (let c = start[b]; c < start[b + 1]; c++)
      for (const rank of this.run.rank)
        for (const k of [rank.forward[c], rank.backward[c]])
          if (k >= 0) {
            for (const at of rank.callsAt.of(k)) {
              const link = rank.calls.link[at];
              if (!(rank.calls.kind[at] & CONTROL) || (rank.flags[k] & FAILED && this.run.incomplete.has(link))) into.add(link);
            }
            for (const link of rank.arrivals.get(k) || []) into.add(link);
          }
  }
  /** The place of a call: its block, row and band. */
  placeOf([r, c], arrival = -1) {
    const rank = this.run.rank[r], k = arrival < 0 ? rank.root[rank.calls.record[c]] : arrival, b = this.blocks.of[rank.column[k]];
    return { r, c, k, b, x: this.blockX(b), y: this.y(rank.direction[k], r) + CELL / 2, backward: rank.direction[k] === BACKWARD };
  }
  drawLinks(links) {
    let text = "";
    const heads = new Map(), lanes = new Map();
    for (const link of links) {
      const arrival = this.run.links.arrival[link], ends = this.run.members(link).map((member, i) => this.placeOf(member, i ? arrival : -1)), first = ends[0];
      const inFold = this.blocks.scope[first.b] >= 0 && ends.every((end) => end.b === first.b);
      if (inFold) continue;
      const word = this.run.callWord(first.r, first.c), rank = this.run.rank[first.r];
      const ranks = this.run.linkRanks(link);
      const missing = ranks.filter((world) => this.run.row.has(world) && !ends.some((end) => this.run.ranks[end.r] === world));
      const mixed = ends.some((end) => !MESSAGES.has(word) && this.run.callWord(end.r, end.c) !== word);
      const key = first.b + (first.backward ? "b" : "f");
      const sameLane = lanes.get(key) || [];
      const rows = [...ends.map((end) => end.r), ...missing.map((world) => this.run.row.get(world))], low = Math.min(...rows), high = Math.max(...rows);
      let lane = sameLane.findIndex((used) => used.every(([a, z]) => z < low || a > high));
      if (lane < 0) { lane = sameLane.length; sameLane.push([]); }
      sameLane[lane].push([low, high]);
      lanes.set(key, sameLane);
      text += this.drawLink(word, ends, missing, mixed, lane);
      const axis = this.run.texts[rank.calls.axis[first.c]], head = heads.get(key) || new Map();
      const name = (this.run.texts[rank.calls.call[first.c]] + " " + axis).trim();
      const known = head.get(name) || { word, size: 0, x: first.x, backward: first.backward, broken: false };
      known.size = Math.max(known.size, ...ends.map((end) => this.run.rank[end.r].calls.bytes[end.c]));
      known.broken = known.broken || missing.length > 0 || mixed;
      head.set(name, known);
      heads.set(key, head);
    }
    for (const head of heads.values()) {
      let line = 0;
      for (const [name, { word, size, x, backward, broken }] of head) {
        if (this.pitch < 60 || line > 1) break;
        const [colour] = LINKS[word] || OTHER_LINK, y = this.y(backward ? BACKWARD : FORWARD, 0) - 6 - 11 * line++;
        const shown = cut(name, Math.floor(this.pitch / 6) - 6) + " " + bytes(size);
        text += `<text class="small" x="${x + this.cell + GAP - 3}" y="${y}" text-anchor="end" style="fill:${broken ? "var(--alarm)" : colour};font-weight:600;paint-order:stroke;stroke:var(--ground);stroke-width:3px">${escaped(shown)}</text>`;
      }
    }
    return text;
  }
  drawLink(word, ends, missing, mixed, lane) {
    const [colour, kind] = LINKS[word] || OTHER_LINK, w = this.cell, first = ends[0], gap = this.pitch > 40 ? GAP : 6;
    const right = (end) => end.x + w + gap / 2 + lane * 4;
    const broken = missing.length || mixed ? "broken" : "";
    let text = "";
    if (kind === "arrow") return this.drawMessage(colour, ends, missing, right);
    const missed = missing.map((world) => ({ x: first.x, y: this.y(first.backward ? BACKWARD : FORWARD, this.run.row.get(world)) + CELL / 2, missing: true }));
    const all = [...ends, ...missed].sort((a, b) => a.y - b.y);
    const root = this.run.rank[first.r].calls.peer[first.c], rootEnd = ends.find((end) => this.run.ranks[end.r] === root);
    if ((kind === "out" || kind === "in") && rootEnd) {
      for (const end of ends) {
        if (end === rootEnd) continue;
        const x = right(end), down = end.y > rootEnd.y ? 1 : -1;
        text += kind === "out" ? arrow(colour, right(rootEnd), rootEnd.y + 5 * down, x, end.y - 3 * down, 0, broken) : arrow(colour, x, end.y, right(rootEnd), rootEnd.y + 6 * down, 0, broken);
        if (kind === "in") text += marker("dot", colour, x, end.y);
      }
      text += `<circle cx="${right(rootEnd)}" cy="${rootEnd.y}" r="5.5" fill="var(--ground)" stroke="${colour}" stroke-width="2.5"/>`;
    } else {
      text += `<path class="link ${broken}" stroke="${colour}" d="M${all.map((end) => right(end) + " " + end.y).join("L")}"/>`;
      const shape = kind === "out" || kind === "in" ? "dot" : kind;
      for (const end of ends) text += marker(shape, colour, right(end), end.y, "var(--ground)");
    }
    for (const end of missed) text += `<text class="sign" x="${right(end) - 5}" y="${end.y + 5}">✕</text>`;
    return text;
  }
  /** A message. Ends that are far apart have stubs with the other rank, and a whole arrow only while one end is now. */
  drawMessage(colour, ends, missing, right, isNow = false) {
    if (ends.length === 2 && ends[0].r !== ends[1].r) {
      const [from, to] = ends, w = this.cell;
      if (!isNow && (Math.abs(from.b - to.b) > 3 || from.backward !== to.backward)) {
        const name = (end) => `<tspan>${this.run.ranks[end.r]}</tspan>`, down = (a, b) => (b.r > a.r ? 1 : -1);
        const stub = (x, y, turn, other) => `<path class="link" stroke="${colour}" d="M${x} ${y}v${9 * turn}"/><text class="small" x="${x - 3}" y="${y + (turn > 0 ? 19 : -11)}" style="fill:${colour};font-weight:700">${name(other)}</text>`;
        const x1 = from.x + w + 5, x2 = to.x - 5;
        return `<circle cx="${x1}" cy="${from.y}" r="3.5" fill="${colour}"/>` + stub(x1, from.y, down(from, to), to) +
          `<path d="M${x2 + 5} ${to.y}l-8 -5v10z" fill="${colour}"/>` + stub(x2, to.y, down(to, from), from);
      }
      if (from.b === to.b && from.backward === to.backward) {
        const down = to.y > from.y ? 1 : -1;
        return arrow(colour, right(from) - 4, from.y + 4 * down, right(to) - 4, to.y - 12 * down, 0) ;
      }
      const ahead = to.x > from.x || (to.x === from.x && to.backward);
      const x1 = ahead ? from.x + w : from.x, x2 = ahead ? to.x : to.x + w;
      const bend = (ahead ? 1 : -1) * Math.max(12, Math.min(60, Math.abs(x2 - x1) / 2));
      return `<circle cx="${x1}" cy="${from.y}" r="3.5" fill="${colour}"/>` + arrow(colour, x1, from.y, x2, to.y, bend);
    }
    if (ends.length > 1) return "";
    const [end] = ends, sent = this.run.callWord(end.r, end.c) !== "recv", world = missing[0];
    const x = right(end), row = this.run.row.get(world === undefined ? this.run.rank[end.r].calls.peer[end.c] : world);
    if (row === undefined) return arrow(colour, sent ? x - 6 : x + 14, end.y, sent ? x + 14 : x - 6, end.y, 0);
    const y = this.y(end.backward ? BACKWARD : FORWARD, row) + CELL / 2, down = y > end.y ? 1 : -1;
    const drawn = sent ? arrow("var(--alarm)", x, end.y, x, y - 8 * down, 0, "broken") : arrow("var(--alarm)", x, y, x, end.y + 6 * down, 0, "broken");
    return drawn + `<text class="sign" x="${x - 5}" y="${y + 5}">✕</text>`;
  }

  memoryCurve(first, last) {
    const { memory } = this.run;
    if (!memory.most) return "";
    const floor = this.bottom + 58, points = { forward: [], backward: [] };
    for (let b = first; b < last; b++) {
      const c = this.blocks.start[b + 1] - 1, x = this.blockX(b) + this.cell / 2;
      for (const field of ["forward", "backward"]) if (memory[field][c]) points[field].push(x + " " + (floor - 44 * memory[field][c] / memory.most));
    }
    let text = "";
    for (const field of ["forward", "backward"]) if (points[field].length) text += `<path class="memory ${field}" d="M${points[field].join("L")}"/>`;
    return text;
  }

  showBrackets(first, last, sx) {
    const run = this.run, { start, scope } = this.blocks, levels = Math.min(3, Math.max(1, run.depth));
    const at = (b, level) => {
      const own = scope[b] >= 0 ? run.scopes[scope[b]][0] : run.scopeOf[start[b]];
      const whole = scope[b] >= 0 ? scope[b] : own;
      return run.scopeDepth[whole] >= level ? this.ancestor(whole, level) : -1;
    };
    let text = "";
    for (let level = 1; level <= levels; level++) {
      const y = 16 + (level - 1) * LEVEL;
      for (let b = first; b < last; ) {
        const s = at(b, level);
        let end = b + 1;
        while (end < last && at(end, level) === s) end++;
        if (s >= 0) {
          const x1 = this.blockX(b), x2 = this.blockX(end - 1) + this.cell;
          const left = Math.max(x1 + 5, sx - this.base * this.pitch + 6);
          const isFolded = this.folded.has(s), name = (isFolded ? "▸ " : "▾ ") + run.texts[run.scopes[s][1]];
          const most = Math.floor((x2 - left) / 6.7);
          text += `<g class="scope" data-s="${s}"><rect x="${x1}" y="${y - 11}" width="${Math.max(1, x2 - x1)}" height="${LEVEL}"/><path class="bracket" d="M${x1} ${y + 7}v-4H${x2}v4"/>`;
          if (most > 2) text += `<text class="quiet" x="${left}" y="${y}">${escaped(cut(name, most))}</text>`;
          text += "</g>";
        }
        b = end;
      }
    }
    if (text !== this.bracketText) { this.bracketText = text; this.brackets.innerHTML = text; }
  }

  /** Lanes, names of the ranks, and the line between an operation and its adjoint. */
  showFront(sx, sy, w, h) {
    const run = this.run;
    let lanes = "", names = `<rect class="margin" x="0" y="0" width="${LEFT - 6}" height="${h}"/>`;
    const bands = run.hasBackward ? [[this.top, "forward →"], [this.second, "← backward"]] : [[this.top, "forward →"]];
    bands.forEach(([top, title], band) => {
      const [r0, r1] = this.rowRange[band];
      names += `<text class="quiet small" x="4" y="${top - sy - 6}">${title.replace(/ ?[→←] ?/, "")}</text>`;
      for (let r = r0; r < r1; r++) {
        const y = top + r * ROW - sy;
        lanes += `<path class="lane" d="M0 ${y + ROW - 2.5}H${w}"/>`;
        names += `<text x="4" y="${y + 23}" style="font-weight:${r === this.chosen ? 700 : 400}">rank ${run.ranks[r]}</text>`;
        const at = (run.coordinates[r] || []).map((n, d) => (run.mesh.length > 1 ? run.mesh[d][0] + n : "")).join(" ");
        names += `<text class="quiet small" x="4" y="${y + 37}">${escaped(cut(at.trim(), 10))}</text>`;
        if (band === 0 && run.ends[r]) names += `<text class="alarm small" x="4" y="${y + 49}" style="fill:var(--alarm)">failed</text>`;
      }
    });
    if (this.axis === "order" && run.memory.most) {
      const y = this.bottom - sy;
      names += `<text class="quiet small" x="4" y="${y + 26}">tape</text><text class="quiet small" x="4" y="${y + 38}">≤ ${bytes(run.memory.most)}</text>`;
      lanes += `<path class="lane" d="M0 ${y + 59}H${w}"/>`;
    }
    const key = lanes + names;
    if (key !== this.frontText) { this.frontText = key; this.lanes.innerHTML = lanes; this.names.innerHTML = names; }
    this.showPair();
  }
  showPair() {
    let text = "";
    if (this.moment >= 0 && this.axis === "order")
      this.run.rank.forEach((rank, r) => {
        const k = rank.at[this.moment];
        if (k < 0) return;
        const other = rank.pair[k] < 0 ? -1 : rank.root[rank.pair[k]];
        if (other < 0 || rank.column[other] !== rank.column[k]) return;
        const b = this.blocks.of[rank.column[k]], x = this.blockX(b) + 9;
        if (r === this.run.size - 1 || r === this.chosen) text = `<path class="pair" d="M${x} ${this.y(FORWARD, this.run.size - 1) + CELL}V${this.y(BACKWARD, 0)}"/>`;
      });
    text += this.messagesNow();
    if (text !== this.pairText) { this.pairText = text; this.front.innerHTML = text; }
  }

  /** The whole arrows of the messages that are sent or arrive now. */
  messagesNow() {
    if (this.moment < 0 || this.axis !== "order") return "";
    const links = new Set(), w = this.cell;
    for (const rank of this.run.rank) {
      const k = rank.at[this.moment];
      if (k < 0) continue;
      for (const c of rank.callsAt.of(k)) if (!(rank.calls.kind[c] & CONTROL)) links.add(rank.calls.link[c]);
      for (const link of rank.arrivals.get(k) || []) links.add(link);
    }
    let text = "";
    for (const link of links) {
      const members = this.run.members(link), [r, c] = members[0], arrival = this.run.links.arrival[link];
      if (members.length !== 2 || !MESSAGES.has(this.run.callWord(r, c))) continue;
      const ends = members.map((member, i) => this.placeOf(member, i ? arrival : -1));
      if (Math.abs(ends[0].b - ends[1].b) > 3 || ends[0].backward !== ends[1].backward)
        text += this.drawMessage(LINKS.send[0], ends, [], (end) => end.x + w + 7, true);
    }
    return text;
  }

  /** Set the classes of the visible cells: which are now, and which come later. */
  mark() {
    for (const cell of this.columns.querySelectorAll(".cell")) {
      const m = +cell.dataset.m, r = +cell.dataset.r, k = +cell.dataset.k, rank = this.run.rank[r];
      const b = this.axis === "order" ? this.blocks.of[rank.column[k]] : -1;
      let now = m === this.moment, later = this.moment >= 0 && m > this.moment;
      if (b >= 0 && this.blocks.scope[b] >= 0 && this.moment >= 0) {
        const at = rank.at[this.moment];
        now = at >= 0 && this.blocks.of[rank.column[at]] === b && (rank.direction[at] === BACKWARD) === (rank.direction[k] === BACKWARD);
        later = later && !now;
      }
      let classes = "cell";
      if (now) classes += " now";
      else if (later) classes += " later";
      if (now && r === this.chosen) classes += " chosen";
      if (rank.flags[k] & FAILED) classes += " failed";
      if (this.found.has(r + " " + k)) classes += " found";
      if (cell.getAttribute("class") !== classes) cell.setAttribute("class", classes);
    }
  }

  // Time as the horizontal axis.
  prepareTimes() {
    const run = this.run;
    this.timesOf = (predicted) => {
      let begin = Infinity, end = 0;
      const rows = run.rank.map((rank, r) => {
        const starts = new Float64Array(rank.roots.length), ends = new Float64Array(rank.roots.length);
        rank.roots.forEach((k, i) => {
          starts[i] = predicted ? run.predicted[r][k][0] : rank.begin[k];
          ends[i] = starts[i] + (predicted ? run.predicted[r][k][1] : rank.duration[k]);
          begin = Math.min(begin, starts[i]);
          end = Math.max(end, ends[i]);
        });
        const order = Int32Array.from(starts.keys()).sort((a, b) => starts[a] - starts[b]);
        return { starts, ends, order };
      });
      return { rows, begin: begin === Infinity ? 0 : begin, span: Math.max(1, end - begin) };
    };
  }
  setAxis(axis) {
    const keep = this.moment;
    this.axis = axis;
    if (axis !== "order") {
      this.times = this.timesOf(axis === "predicted");
      this.scale = Math.max(1, this.scroll.clientWidth - LEFT - 80) / this.times.span;
    }
    this.links.innerHTML = this.brackets.innerHTML = this.front.innerHTML = "";
    this.bracketText = this.pairText = null;
    this.clear();
    if (keep >= 0) this.reveal();
    this.drawOverview();
  }
  showTimes(sx, w) {
    const run = this.run, { rows, begin } = this.times, from = (sx - 40) / this.scale + begin, to = (sx + w) / this.scale + begin;
    let text = "", grid = "";
    rows.forEach(({ starts, ends, order }, r) => {
      const rank = run.rank[r];
      let low = 0, high = order.length;
      while (low < high) { const middle = (low + high) >> 1; if (starts[order[middle]] < from) low = middle + 1; else high = middle; }
      while (low > 0 && ends[order[low - 1]] >= from) low--;
      const last = [-10, -10], narrow = ["", ""];
      for (let i = low; i < order.length && starts[order[i]] <= to; i++) {
        const k = rank.roots[order[i]], band = rank.direction[k] === BACKWARD ? 1 : 0;
        if (r < this.rowRange[band][0] || r >= this.rowRange[band][1]) continue;
        const x = LEFT + (starts[order[i]] - begin) * this.scale - sx, width = Math.max(2, (ends[order[i]] - starts[order[i]]) * this.scale);
        const y = this.y(band ? BACKWARD : FORWARD, r);
        if (width < 8 && k !== this.run.rank[r].at[this.moment]) {  // one path for all that are too narrow to be seen apart
          if (x + width >= last[band] + 1) { narrow[band] += `M${x.toFixed(1)} ${y}v${CELL}h${width.toFixed(1)}v${-CELL}z`; last[band] = x + width; }
          continue;
        }
        const labels = run.layout(rank.layout[k]);
        let inner = `<rect x="${x}" y="${y}" width="${width}" height="${CELL}" fill="${fillOf(labels.length ? labels[0][2] : "")}"/><rect class="frame" x="${x}" y="${y}" width="${width}" height="${CELL}"/>`;
        if (this.axis === "measured") for (const c of rank.callsAt.of(k)) {
          if (rank.calls.duration[c] < 0) continue;
          const [colour] = LINKS[run.callWord(r, c)] || OTHER_LINK;
          const left = LEFT + (rank.calls.begin[c] - begin) * this.scale - sx, wide = Math.max(1.5, rank.calls.duration[c] * this.scale);
          inner += `<rect x="${left}" y="${y + CELL - 12}" width="${wide}" height="9" fill="${colour}"/>`;
        }
        if (width > 30) inner += `<text class="in name" x="${Math.max(x, LEFT) + 3}" y="${y + 13}">${escaped(cut(run.texts[rank.name[k]], Math.floor((width - 4) / 6.7)))}</text>`;
        text += this.inCell(r, k, inner + signs(rank.flags[k] & 7, x + width, y), "");
      }
      for (const path of narrow) if (path) text += `<path d="${path}" fill="var(--quiet)" opacity=".75"/>`;
    });
    const step = 10 ** Math.floor(Math.log10(160 / this.scale)), unit = [1, 2, 5, 10].map((n) => n * step).find((n) => n * this.scale >= 90);
    for (let t = Math.ceil((sx / this.scale) / unit) * unit; t * this.scale - sx < w - LEFT; t += unit) {
      const x = LEFT + t * this.scale - sx;
      grid += `<path class="lane" d="M${x} ${this.top - 10}V${this.bottom}"/><text class="quiet small" x="${x + 3}" y="${this.top - 6}">${time(t)}</text>`;
    }
    this.brackets.innerHTML = grid;
    this.columns.innerHTML = text;
    this.mark();
  }

  // Moving.
  go(moment, r = this.chosen, reveal = true) {
    this.moment = Math.max(-1, Math.min(this.run.moments - 1, moment));
    this.chosen = Math.max(0, Math.min(this.run.size - 1, r));
    if (this.moment >= 0 && this.run.rank[this.chosen].at[this.moment] < 0) {
      const there = this.run.rank.findIndex((rank) => rank.at[this.moment] >= 0);
      if (there >= 0 && r === this.chosen && !this.keepRank) this.chosen = there;
    }
    if (reveal && this.moment >= 0) this.reveal();
    this.show();
    this.mark();
    this.describe();
  }
  record() {
    const k = this.moment < 0 ? -1 : this.run.rank[this.chosen].at[this.moment];
    return k;
  }
  reveal() {
    const k = this.record();
    if (k < 0) return;
    const rank = this.run.rank[this.chosen], w = this.scroll.clientWidth, sx = this.scroll.scrollLeft;
    let x, wide = this.pitch;
    if (this.axis === "order") x = LEFT + this.blocks.of[rank.column[k]] * this.pitch;
    else {
      const i = rank.roots.indexOf(k), row = this.times.rows[this.chosen];
      x = LEFT + (row.starts[i] - this.times.begin) * this.scale;
      wide = 60;
    }
    if (x < sx + LEFT || x + wide > sx + w - 20) this.scroll.scrollLeft = Math.max(0, x - w / 2);
    const y = this.y(rank.direction[k], this.chosen), sy = this.scroll.scrollTop, h = this.scroll.clientHeight;
    if (y < sy + 10 || y + ROW > sy + h) this.scroll.scrollTop = Math.max(0, y - h / 2);
  }
  resizeCells(by) {
    if (this.axis === "order") {
      const b = (this.scroll.scrollLeft - LEFT + this.scroll.clientWidth / 2) / this.pitch;
      this.zoom = Math.max(0, Math.min(WIDTHS.length - 1, this.zoom + by));
      this.clear();
      this.scroll.scrollLeft = LEFT + b * this.pitch - this.scroll.clientWidth / 2;
    } else {
      const middle = (this.scroll.scrollLeft + this.scroll.clientWidth / 2 - LEFT) / this.scale;
      this.scale = Math.min(this.scale * (by > 0 ? 2 : 0.5), 2e7 / this.times.span);
      this.clear();
      this.scroll.scrollLeft = middle * this.scale + LEFT - this.scroll.clientWidth / 2;
    }
    this.reveal();
    this.show();
  }
  toggleScope(s) {
    if (this.folded.has(s)) this.folded.delete(s);
    else this.folded.add(s);
    this.layOut();
    this.reveal();
    this.show();
  }

  // The overview.
  drawOverview() {
    const canvas = byId("overview"), ratio = window.devicePixelRatio || 1, w = canvas.clientWidth, h = 44, run = this.run;
    canvas.width = Math.max(1, w * ratio);
    canvas.height = h * ratio;
    const back = document.createElement("canvas");
    back.width = canvas.width;
    back.height = canvas.height;
    const g = back.getContext("2d"), style = getComputedStyle(document.documentElement), count = Math.max(1, this.blocks.count);
    g.scale(ratio, ratio);
    g.fillStyle = style.getPropertyValue("--panel");
    g.fillRect(0, 0, w, h);
    const xOf = (c) => LEFT + (this.blocks.of[c] / count) * (w - LEFT - 10), wide = Math.max(1, (w - LEFT - 10) / count);
    g.fillStyle = style.getPropertyValue("--quiet");
    g.font = "10px ui-monospace, monospace";
    g.fillText("all", 4, 26);
    const seen = new Set();
    for (let c = 0; c < run.columns; c++) {
      const x = xOf(c);
      for (const [field, y] of [["forward", 3], ["backward", 24]]) {
        const rank = run.rank.find((each) => each[field][c] >= 0);
        if (!rank) continue;
        const k = rank[field][c], pixel = field + Math.floor(x * ratio), at = rank.callsAt.of(k).find((i) => !(rank.calls.kind[i] & CONTROL));
        if (at === undefined && seen.has(pixel)) continue;
        seen.add(pixel);
        const labels = run.layout(rank.layout[k]);
        g.fillStyle = at === undefined ? (LABELS[labels.length ? labels[0][2] : "C"] || LABELS.C)[0] : (LINKS[run.texts[rank.calls.call[at]].split(" ")[0]] || OTHER_LINK)[0];
        g.fillRect(x, y, Math.max(1, wide * (wide > 4 ? 0.88 : 1)), 17);
      }
    }
    g.fillStyle = style.getPropertyValue("--alarm");
    for (const [, [r], k] of run.problems) g.fillRect(xOf(run.rank[r].column[k]) - 1, 0, 3, h);
    g.fillStyle = "#a15c00";
    const drawn = new Set();
    for (const [r, k] of this.matches) {
      const x = Math.round(xOf(run.rank[r].column[k]));
      if (!drawn.has(x)) { drawn.add(x); g.fillRect(x, h - 4, 3, 4); }
    }
    this.overview = { back, ratio, w, h, count, xOf };
    this.drawWindow();
  }
  drawWindow() {
    if (!this.overview) return;
    const { back, ratio, w, h, count, xOf } = this.overview, g = byId("overview").getContext("2d");
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.drawImage(back, 0, 0);
    g.scale(ratio, ratio);
    const style = this.style || (this.style = getComputedStyle(document.documentElement)), focus = style.getPropertyValue("--focus");
    if (this.axis === "order") {
      const part = (w - LEFT - 10) / (count * this.pitch), x = LEFT + Math.max(0, this.scroll.scrollLeft) * part;
      g.strokeStyle = focus;
      g.lineWidth = 1.5;
      g.strokeRect(x, 1, Math.max(4, Math.min(w - x - 2, (this.scroll.clientWidth - LEFT) * part)), h - 2);
    }
    const k = this.record();
    if (k >= 0) { g.fillStyle = focus; g.fillRect(xOf(this.run.rank[this.chosen].column[k]), 0, 2.5, h); }
  }
  scrubOverview(x) {
    const { w, count } = this.overview, b = Math.max(0, Math.min(count - 1, Math.floor(((x - LEFT) / (w - LEFT - 10)) * count)));
    const lead = this.run.lead[this.blocks.start[b]];
    if (lead) this.go(this.run.rank[lead[0]].moment[lead[1]], lead[0]);
  }

  // -- the panel -------------------------------------------------------------------------------------------------------

  describe() {
    const run = this.run, k = this.record(), position = byId("position");
    byId("scrub").value = this.moment;
    position.textContent = this.moment < 0 ? `${run.moments} moments` : `${this.moment + 1} / ${run.moments} ${k < 0 ? "" : DIRECTIONS[run.rank[this.chosen].direction[k]]}`;
    byId("panel").innerHTML = k < 0 ? (this.moment < 0 ? this.summary() : this.nothing()) : this.details(k);
    byId("panel").scrollTop = 0;
  }
  nothing() { return `<h1>rank ${this.run.ranks[this.chosen]}</h1><p>This rank has no operation in this moment.</p>`; }
  labelText(text) {
    const labels = this.run.layout(text);
    if (!labels.length) return this.run.texts[text] ? escaped(this.run.texts[text]) : "";
    return labels.map(([axis, label, letter]) => `<span class="label ${letter}" style="${this.chip(letter)}">${escaped(axis + " " + label)}</span>`).join("");
  }
  chip(letter) {
    const image = { P: "repeating-linear-gradient(45deg,#0003 0 2px,#0000 2px 6px)", S: "repeating-linear-gradient(0deg,#0002 0 1px,#0000 1px 5px)", V: "radial-gradient(#0004 1px,#0000 1.2px)", X: "repeating-linear-gradient(45deg,#0002 0 1px,#0000 1px 6px),repeating-linear-gradient(-45deg,#0002 0 1px,#0000 1px 6px)" }[letter];
    return `background-color:${(LABELS[letter] || ["#eee"])[0]};` + (image ? `background-image:${image};` + (letter === "V" ? "background-size:6px 6px;" : "") : "");
  }
  jump(r, k, text) {
    return `<button class="link-button" data-go="${r} ${k}">${escaped(text)}</button>`;
  }

  summary() {
    const run = this.run, rows = new Map();
    let inControl = 0;
    run.rank.forEach((rank) => rank.calls.call.forEach((call, c) => {
      if (rank.calls.kind[c] & CONTROL) { inControl++; return; }
      const backward = rank.direction[rank.root[rank.calls.record[c]]] === BACKWARD;
      const key = run.texts[rank.calls.axis[c]] + "\n" + run.texts[call] + "\n" + (backward ? "backward" : "forward");
      const row = rows.get(key) || [0, 0];
      row[0]++;
      row[1] += rank.calls.bytes[c];
      rows.set(key, row);
    }));
    const axes = new Map();
    for (const [key, [, size]] of rows) { const axis = key.split("\n")[0]; axes.set(axis, (axes.get(axis) || 0) + size); }
    let text = `<h1>${escaped(run.title || "A program on its ranks")}</h1><p>${run.size} ${run.size === 1 ? "rank" : "ranks"}`;
    if (run.mesh.length) text += `, mesh ${run.mesh.map(([axis, n]) => escaped(axis) + "=" + n).join(" × ")}`;
    text += `; ${run.rank.reduce((n, rank) => n + rank.count, 0)} records in ${run.moments} moments.</p>`;
    if (run.ends.some(Boolean)) text += run.ends.map((end, r) => (end && run.ends.indexOf(end) === r ? `<div class="error">rank ${run.ends.map((other, s) => (other === end ? run.ranks[s] : -1)).filter((s) => s >= 0).join(", ")}: ${escaped(end)}</div>` : "")).join("");
    if (rows.size) {
      text += "<h2>Communication of all shown ranks</h2><table><tr><th>axis<th>call<th>direction<th>calls<th>bytes</tr>";
      for (const [key, [count, size]] of [...rows].sort((a, b) => b[1][1] - a[1][1])) {
        const [axis, call, direction] = key.split("\n");
        text += `<tr><td>${escaped(axis)}<td>${escaped(call)}<td>${direction}<td class="number">${count}<td class="number">${bytes(size)}</tr>`;
      }
      text += "</table><h2>Bytes by axis</h2><table>" + [...axes].map(([axis, size]) => `<tr><td>${escaped(axis)}<td class="number">${bytes(size)}</tr>`).join("") + "</table>";
      if (inControl) text += `<p class="quiet">${inControl} calls of comparisons and headers are not counted.</p>`;
    } else text += "<p>The ranks did not communicate.</p>";
    if (run.memory.most) text += `<h2>Memory</h2><p>The tape keeps at most ${bytes(run.memory.most)} on a rank.</p>`;
    if (run.problems.length) text += "<h2>Problems</h2>" + run.problems.slice(0, 20).map(([kind, rows, k]) => `<p>${this.jump(rows[0], k, this.problemText(kind, rows, k))}</p>`).join("");
    text += this.legend();
    text += `<p class="quiet">${run.has_values ? `This file contains values of the program's arrays (to ${run.digits} digits) and lines of its source. Pass them on with care.` : "This file contains lines of the program's source, but no values of its arrays."}</p>`;
    return text + '<p class="quiet">Right arrow: the first operation. ?: all keys.</p>';
  }
  legend() {
    const used = new Set();
    this.run.rank.forEach((rank) => new Set(rank.layout).forEach((text) => this.run.layout(text).forEach(([, , letter]) => used.add(letter))));
    if (!used.size) return "";
    return "<h2>Layouts</h2>" + Object.entries(LABELS).filter(([letter]) => used.has(letter)).map(([letter, [, name, meaning]]) => `<div><span class="label ${letter}" style="${this.chip(letter)};min-width:22px;text-align:center">${name}</span> ${meaning}</div>`).join("");
  }
  problemText(kind, rows, k) {
    const run = this.run, r = rows[0], rank = run.rank[r], name = run.texts[rank.name[k]], [file, line] = run.sites[rank.site[k]];
    const at = line ? ` (${run.texts[file].split("/").pop()}:${line})` : "";
    const ending = rank.direction[k] === BACKWARD ? " in the backward direction" : "";
    if (kind === "differs") return `≠ copies of ${name} differ${ending}${at}`;
    const ranks = (rows.length > 1 ? "ranks " : "rank ") + this.ranksText(rows);
    if (kind === "not finite") return `● ${name} is not finite on ${ranks}${ending}${at}`;
    if (kind === "end") return `✕ ${ranks}, after ${name}: ${cut(run.ends[r].split("\n")[0], 110)}`;
    return `✕ ${ranks}: ${cut((run.errorOf.get(r + " " + k) || "").split("\n")[0], 110)}`;
  }

  source(site) {
    const run = this.run, [file, line] = run.sites[site];
    if (!line) return "";
    let text = `<p class="quiet">${escaped(run.texts[file])}:${line}</p>`;
    const part = run.source.find(([f, first, lines]) => f === file && line >= first && line < first + lines.length);
    if (!part) return text;
    const [, first, lines] = part;
    text += '<div class="source">';
    for (let n = Math.max(first, line - 4); n <= Math.min(first + lines.length - 1, line + 4); n++)
      text += `<div${n === line ? ' class="here"' : ""}>${String(n).padStart(4)}  ${escaped(lines[n - first])}</div>`;
    return text + "</div>";
  }
  /** A table of values by rank. Ranks with equal values share a row; `cells` has [rank, layout, value, record]. */
  byRank(cells, title) {
    const run = this.run, groups = [];
    for (const cell of cells) {
      const last = groups.find((g) => g.layout === cell.layout && g.value === cell.value && g.name === cell.name);
      if (last && cell.value >= 0) last.ranks.push(cell.r);
      else groups.push({ ranks: [cell.r], layout: cell.layout, value: cell.value, name: cell.name, flags: cell.flags });
    }
    const shown = groups.slice(0, 24);
    let text = `<table><tr><th>rank<th>${title}</tr>`;
    for (const g of shown) {
      const wrong = g.flags & DIFFERS ? ' <span class="alarm" title="the copies differ">≠</span>' : "";
      text += `<tr class="${g.ranks.includes(this.chosen) ? "chosen" : ""}"><td>${this.ranksText(g.ranks)}<td class="values">${g.name === undefined ? "" : escaped(g.name) + " "}${this.labelText(g.layout)}${wrong} ${whole(run, g.value, g.ranks.includes(this.chosen) ? 64 : 8)}</tr>`;
    }
    if (groups.length > shown.length) text += `<tr><td><td class="quiet">and ${groups.length - shown.length} more</tr>`;
    return text + "</table>";
  }
  ranksText(rows) {
    const ranks = rows.map((r) => this.run.ranks[r]), parts = [];
    for (let i = 0; i < ranks.length; ) {
      let j = i;
      while (j + 1 < ranks.length && ranks[j + 1] === ranks[j] + 1) j++;
      parts.push(i === j ? ranks[i] : j === i + 1 ? ranks[i] + ", " + ranks[j] : ranks[i] + "–" + ranks[j]);
      i = j + 1;
    }
    return parts.join(", ");
  }

  details(k) {
    const run = this.run, r = this.chosen, rank = run.rank[r], name = run.texts[rank.name[k]], backward = rank.direction[k] === BACKWARD;
    const path = run.scopePath(rank.scope[k]), error = run.errorOf.get(r + " " + k);
    let text = `<h1>${escaped(name)}${backward ? " *" : ""}</h1><p class="quiet">${backward ? "adjoint" : DIRECTIONS[rank.direction[k]]}`;
    if (rank.place[k] >= 0) text += `, place ${rank.place[k]}${rank.tape[k] ? " of tape " + rank.tape[k] : ""}`;
    if (path.length) text += `, in ${escaped(path.join(" / "))}`;
    text += "</p>";
    if (error) text += `<div class="error">${escaped(error)}</div>`;
    text += this.source(rank.site[k]);
    const cells = [];
    run.rank.forEach((other, s) => {
      const at = other.at[this.moment];
      if (at < 0) return;
      const same = other.name[at] === rank.name[k] && other.direction[at] === rank.direction[k];
      cells.push({ r: s, layout: other.layout[at], value: other.value[at], flags: other.flags[at], name: same ? undefined : run.texts[other.name[at]] });
    });
    if (!error || cells.some((cell) => cell.value >= 0)) text += `<h2>${backward ? "Cotangent that arrived" : "Result"}</h2>` + this.byRank(cells, "");
    text += this.operands(k) + this.callsText() + this.contributions(k) + this.insideText(k) + this.pairText_(k) + this.pairing(k);
    text += `<h2>Time on rank ${run.ranks[r]}</h2><p>${time(rank.duration[k])}, begun at ${time(rank.begin[k])}`;
    if (rank.bytes[k]) text += `; the tape keeps ${bytes(rank.bytes[k])}`;
    return text + "</p>";
  }
  operands(k) {
    const run = this.run, r = this.chosen, rank = run.rank[r], found = rank.operands(k);
    if (!found.length) return "";
    let text = `<h2>Operands on rank ${run.ranks[r]}</h2><table>`;
    found.forEach(({ to, name, layout }, i) => {
      const made = to >= 0 ? this.jump(r, rank.root[to], name || run.texts[rank.name[to]]) : escaped(name || "operand " + i);
      text += `<tr><td>${made}<td class="values">${this.labelText(layout)} ${to >= 0 ? whole(run, rank.value[to], 16) : ""}</tr>`;
    });
    return text + "</table>";
  }
  callsText() {
    const run = this.run, groups = new Map();
    let controls = 0;
    run.rank.forEach((rank, r) => {
      const k = rank.at[this.moment];
      if (k < 0) return;
      for (const c of rank.callsAt.of(k)) {
        const link = rank.calls.link[c];
        if (rank.calls.kind[c] & CONTROL && !run.incomplete.has(link)) { controls++; continue; }
        if (!groups.has(link)) groups.set(link, run.members(link));
      }
    });
    if (!groups.size && !controls) return "";
    let text = "<h2>Communication</h2>", shown = 0;
    for (const [link, members] of groups) {
      if (shown++ >= 12) { text += `<p class="quiet">and ${groups.size - 12} more</p>`; break; }
      const [r, c] = members[0], calls = run.rank[r].calls, word = run.callWord(r, c), ranks = run.linkRanks(link);
      const missing = ranks.filter((world) => run.row.has(world) && !members.some(([s]) => run.ranks[s] === world));
      const hidden = ranks.filter((world) => !run.row.has(world));
      const sizes = [...new Set(members.map(([s, i]) => run.rank[s].calls.bytes[i]))];
      const [colour] = LINKS[word] || OTHER_LINK;
      const names = [...new Set(members.map(([s, i]) => run.texts[run.rank[s].calls.call[i]]))];
      text += `<p><b style="color:${colour}">■</b> <b>${escaped(names.join(" / "))}</b> along <b>${escaped(run.texts[calls.axis[c]])}</b>, `;
      text += MESSAGES.has(word) ? `from rank ${ranks[0]} to rank ${ranks[1]}` : `ranks ${ranks.length > 16 ? ranks.length + " of them" : ranks.join(", ")}`;
      text += `, ${sizes.map(bytes).join(" or ")}${MESSAGES.has(word) ? "" : " a rank"}`;
      if (["broadcast", "scatter", "reduce", "gather"].includes(word)) text += `, root ${calls.peer[c]}`;
      text += `<br><span class="quiet">${calls.kind[c] & NONBLOCKING ? "nonblocking; " : ""}algorithm ${escaped(run.texts[calls.algorithm[c]])}${run.texts[calls.reason[c]] ? " (" + escaped(run.texts[calls.reason[c]]) + ")" : ""}; channel ${escaped(run.texts[calls.channel[c]])}, number ${calls.number[c]}</span>`;
      const begins = members.map(([s, i]) => run.rank[s].calls.begin[i]), latest = Math.max(...begins), first = begins.indexOf(Math.min(...begins)), last = begins.indexOf(latest);
      if (members.length > 1 && latest - begins[first] > 0 && !MESSAGES.has(word)) text += `<br><span class="quiet">rank ${run.ranks[members[last][0]]} came last, ${time(latest - begins[first])} after rank ${run.ranks[members[first][0]]}</span>`;
      if (missing.length) text += `<br><span class="alarm">rank ${missing.join(", ")} never made this call</span>`;
      if (hidden.length) text += `<br><span class="quiet">not shown: rank ${hidden.join(", ")}</span>`;
      if (names.length > 1 && !MESSAGES.has(word)) text += '<br><span class="alarm">the ranks made different calls</span>';
      text += "</p>";
    }
    if (controls) text += `<p class="quiet">and ${controls} calls of comparisons and headers</p>`;
    return text;
  }
  contributions(k) {
    const run = this.run, rank = run.rank[this.chosen], found = rank.gives(k);
    if (!found.length) return "";
    let text = "<h2>The adjoint gives</h2>";
    found.forEach(({ to }, i) => {
      const cells = [];
      run.rank.forEach((other, s) => {
        const at = other.at[this.moment];
        if (at < 0 || other.name[at] !== rank.name[k]) return;
        const one = other.gives(at)[i];
        if (one) cells.push({ r: s, layout: 0, value: one.value, flags: 0 });
      });
      text += `<p>to ${to >= 0 ? this.jump(this.chosen, rank.root[to], run.texts[rank.name[to]]) : "a value from outside"}</p>` + this.byRank(cells, "addend");
    });
    return text;
  }
  insideText(k) {
    const run = this.run, rank = run.rank[this.chosen], inner = Array.from(rank.inside.of(k)).filter((j) => j !== k);
    if (!inner.length) return "";
    let text = "<h2>Operations inside</h2><table>";
    for (const j of inner.slice(0, 30)) {
      const calls = Array.from(rank.callsOf.of(j)).filter((c) => !(rank.calls.kind[c] & CONTROL)).map((c) => run.texts[rank.calls.call[c]]).join(", ");
      text += `<tr><td>${escaped(run.texts[rank.name[j]])}${calls ? `<br><span class="quiet">${escaped(calls)}</span>` : ""}<td class="values">${this.labelText(rank.layout[j])} ${whole(run, rank.value[j], 16)}</tr>`;
      const error = run.errorOf.get(this.chosen + " " + j);
      if (error) text += `<tr><td colspan="2"><div class="error">${escaped(error)}</div></tr>`;
    }
    if (inner.length > 30) text += `<tr><td class="quiet">and ${inner.length - 30} more</tr>`;
    return text + "</table>";
  }
  pairText_(k) {
    const run = this.run, rank = run.rank[this.chosen], other = rank.pair[k];
    if (other < 0) return "";
    const backward = rank.direction[k] === BACKWARD, cells = [];
    run.rank.forEach((each, s) => {
      const at = each.at[this.moment];
      if (at < 0 || each.pair[at] < 0) return;
      const to = each.pair[at];
      cells.push({ r: s, layout: each.layout[to], value: each.value[to], flags: each.flags[to] });
    });
    return `<h2>${backward ? "Its forward operation" : "Its adjoint"}: ${this.jump(this.chosen, rank.root[other], run.texts[rank.name[other]])} (b)</h2>` + this.byRank(cells, backward ? "result" : "cotangent that arrived");
  }
  pairing(k) {
    const run = this.run, rank = run.rank[this.chosen], forward = rank.direction[k] === BACKWARD ? rank.adjoint[k] : k;
    if (forward < 0) return "";
    const moment = rank.moment[forward], found = run.pairings.filter((each) => each[0] === moment && run.rank[each[1]].name[run.rank[each[1]].at[moment]] === rank.name[forward]);
    if (!found.length) return "";
    let text = "<h2>The pairing, summed over the ranks</h2><table>";
    for (const [, , left, sides] of found) {
      text += `<tr><td>⟨F x, y⟩<td class="number">${left}<td></tr>`;
      for (const [name, right] of sides) {
        const close = typeof left !== "number" || Math.abs(left - right) <= 1e-5 * Math.max(Math.abs(left), Math.abs(right), 1e-30) || Math.abs(left - right) < 1e-9;
        text += `<tr><td>⟨x, F* y⟩ <span class="quiet">x = ${escaped(name)}</span><td class="number">${right}<td>${close ? "✔" : '<span class="alarm">✘</span>'}</tr>`;
      }
    }
    return text + "</table>";
  }

  // -- search ------------------------------------------------------------------------------------------------------------

  search(text) {
    const run = this.run, wanted = text.trim().toLowerCase();
    this.found = new Set();
    this.matches = [];
    if (wanted) {
      const hit = run.texts.map((each) => each.toLowerCase().includes(wanted));
      const scopeHit = run.scopes.map(([parent, name]) => hit[name]);
      run.scopes.forEach(([parent], s) => { if (parent >= 0 && scopeHit[parent]) scopeHit[s] = true; });
      const siteHit = run.sites.map(([file, line]) => line > 0 && (run.texts[file].toLowerCase().split("/").pop() + ":" + line).includes(wanted));
      run.rank.forEach((rank, r) => {
        for (const k of rank.roots) {
          let is = hit[rank.name[k]] || hit[rank.layout[k]] || scopeHit[rank.scope[k]] || siteHit[rank.site[k]];
          if (!is) for (const c of rank.callsAt.of(k)) if (!(rank.calls.kind[c] & CONTROL) && (hit[rank.calls.call[c]] || hit[rank.calls.axis[c]])) { is = true; break; }
          if (is) { this.found.add(r + " " + k); this.matches.push([r, k]); }
        }
      });
      this.matches.sort((a, b) => run.rank[a[0]].moment[a[1]] - run.rank[b[0]].moment[b[1]] || a[0] - b[0]);
    }
    byId("matches").textContent = wanted ? `${new Set(this.matches.map(([r, k]) => run.rank[r].moment[k])).size} moments` : "";
    this.drawOverview();
    this.mark();
  }
  nextIn(list, by) {
    const moments = [...new Map(list.map(([r, k]) => [this.run.rank[r].moment[k], [r, k]])).entries()].sort((a, b) => a[0] - b[0]);
    if (!moments.length) return;
    const ahead = by > 0 ? moments.find(([m]) => m > this.moment) || moments[0] : moments.filter(([m]) => m < this.moment).pop() || moments[moments.length - 1];
    this.go(ahead[0], ahead[1][0]);
  }

  /** All columns in rows that fit on paper. */
  print() {
    const per = 9, most = 270, kept = [this.base, this.rowRange, this.zoom, this.axis];
    this.zoom = 2;
    this.rowRange = [[0, this.run.size], [0, this.run.hasBackward ? this.run.size : 0]];
    let text = `<h1>${escaped(this.run.title)}</h1>` + this.legend();
    for (let b = 0; b < Math.min(most, this.blocks.count); b += per) {
      const last = Math.min(b + per, this.blocks.count), links = new Set();
      this.base = b;
      let inner = "";
      for (let i = b; i < last; i++) { inner += this.block(i); this.collectLinks(i, links); }
      let names = "";
      for (let r = 0; r < this.run.size; r++) for (const band of this.run.hasBackward ? [FORWARD, BACKWARD] : [FORWARD]) names += `<text x="-56" y="${this.y(band, r) + 22}">rank ${this.run.ranks[r]}</text>`;
      text += `<svg viewBox="${-LEFT} ${this.top - 24} ${LEFT + per * this.pitch} ${this.bottom - this.top + 30}">${names}${inner}${this.drawLinks(links)}</svg>`;
    }
    if (this.blocks.count > most) text += `<p>The first ${most} of ${this.blocks.count} columns. Fold scopes to print fewer.</p>`;
    [this.base, this.rowRange, this.zoom, this.axis] = kept;
    // The patterns again, since those of the drawing on the screen are not displayed on paper.
    const patterns = `<svg width="0" height="0">${PATTERNS.replaceAll('id="', 'id="print-')}</svg>`;
    byId("printed").innerHTML = patterns + text.replaceAll("url(#", "url(#print-");
  }
}

// -- keys and buttons --------------------------------------------------------------------------------------------------

const KEYS = [
  ["→ ←", "the next or the previous moment"], ["↓ ↑", "the next or the previous rank"], ["Space", "play or pause"],
  ["Home End", "the first or the last moment"], ["b", "from an operation to its adjoint, and back"],
  ["n N", "the next or the previous problem"], ["/", "search; Enter goes to the next match, Shift+Enter back"],
  ["f", "fold or unfold the scopes around the operation"], ["[ ]", "fold or unfold one level of scopes"],
  ["m", "the horizontal axis: order, measured time, predicted time"], ["+ -", "wider or narrower"],
  ["t", "light or dark"], ["Esc", "the whole program"], ["?", "these keys"],
];

function help(view) {
  const links = [["all_reduce", "all_reduce"], ["all_gather", "all_gather"], ["reduce_scatter", "reduce_scatter"], ["all_to_all", "all_to_all"], ["scan", "scan"]];
  const sample = (word) => { const [colour, kind] = LINKS[word]; return `<svg width="18" height="38"><path class="link" stroke="${colour}" d="M9 7V31"/>${marker(kind, colour, 9, 7, "var(--ground)")}${marker(kind, colour, 9, 31, "var(--ground)")}</svg>`; };
  byId("keys").innerHTML = `<div class="halves"><div><h2>Keys</h2><div class="columns">${KEYS.map(([key, text]) => `<span>${key.split(" ").map((each) => `<kbd>${escaped(each)}</kbd>`).join(" ")}</span><span>${text}</span>`).join("")}</div><p><button id="close">Close</button></p></div><div>
<h2>Signs</h2><p>A column is an operation in logical order, a row a rank. The lower band is the backward direction: the cotangent that arrives, below its operation. A sheet behind a cell marks a folded scope.</p>
<div class="columns">${links.map(([word, text]) => sample(word) + `<span>${text}</span>`).join("")}<svg width="18" height="38">${arrow(LINKS.broadcast[0], 9, 7, 9, 32, 0)}</svg><span>from a root, to a root, or a message</span>
<svg width="18" height="20">${signs(DIFFERS, 18, 1)}</svg><span>copies that should be equal differ</span><svg width="18" height="20">${signs(NOT_FINITE, 18, 1)}</svg><span>values that are not finite</span><svg width="18" height="20">${signs(FAILED, 18, 1)}</svg><span>the operation raised an error; in a link: the call was never made</span></div>
${view.legend()}</div></div>`;
  byId("keys").showModal();
  byId("keys").scrollTop = 0;
  byId("close").onclick = () => byId("keys").close();
}

function start(run) {
  const view = new View(run), scroll = view.scroll;
  let timer = 0, waiting = false;
  byId("scrub").max = run.moments - 1;
  const axes = [["order", "logical order"], ["measured", "measured time"]];
  if (run.predicted) axes.push(["predicted", "predicted time"]);
  byId("axis").innerHTML = axes.map(([value, text]) => `<option value="${value}">${text}</option>`).join("");
  const setAxis = (axis) => { byId("axis").value = axis; view.setAxis(axis); };
  const play = () => {
    if (timer) clearInterval(timer);
    const stop = () => { clearInterval(timer); timer = 0; byId("play").textContent = "▶\uFE0E play"; };
    if (timer) return stop();
    if (view.moment >= run.moments - 1) view.go(-1);
    byId("play").textContent = "❚❚ pause";
    timer = setInterval(() => (view.moment >= run.moments - 1 ? stop() : view.go(view.moment + 1)), 350);
  };
  const theme = () => { document.documentElement.classList.toggle("dark"); view.style = null; view.drawOverview(); };
  const pair = () => {
    const k = view.record(), rank = run.rank[view.chosen];
    if (k >= 0 && rank.pair[k] >= 0) view.go(rank.moment[rank.pair[k]]);
  };
  const problem = (by) => view.nextIn(run.problems.map(([, [r], k]) => [r, k]), by);
  const foldHere = () => {
    const k = view.record(), s = k < 0 ? 0 : run.rank[view.chosen].scope[k];
    for (let t = s; t > 0; t = run.scopes[t][0]) if (view.folded.has(t)) return view.toggleScope(t);
    if (s > 0) view.toggleScope(s);
  };
  const rank = (by) => { view.keepRank = true; view.go(view.moment, Math.max(0, Math.min(run.size - 1, view.chosen + by))); view.keepRank = false; };
  const actions = {
    ArrowRight: () => view.go(view.moment + 1), ArrowLeft: () => view.go(Math.max(0, view.moment - 1)),
    ArrowDown: () => rank(1), ArrowUp: () => rank(-1), " ": play, Home: () => view.go(0), End: () => view.go(run.moments - 1),
    b: pair, n: () => problem(1), N: () => problem(-1), f: foldHere, "[": () => view.foldTo((view.folded.size ? view.depth : run.depth) - 1), "]": () => view.foldTo(view.depth + 1),
    m: () => setAxis(axes[(axes.findIndex(([value]) => value === view.axis) + 1) % axes.length][0]),
    "+": () => view.resizeCells(1), "=": () => view.resizeCells(1), "-": () => view.resizeCells(-1), t: theme,
    "?": () => help(view), Escape: () => view.go(-1), "/": () => { byId("query").focus(); byId("query").select(); },
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
    const inText = event.target.id === "query";
    if (inText) {
      if (event.key === "Enter") { view.nextIn(view.matches, event.shiftKey ? -1 : 1); event.preventDefault(); }
      else if (event.key === "Escape") { byId("query").value = ""; view.search(""); scroll.focus(); event.preventDefault(); }
      return;
    }
    if (event.target.tagName === "SELECT" || (event.target.tagName === "BUTTON" && event.key === " ")) return;
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  byId("first").onclick = actions.Home;
  byId("back").onclick = actions.ArrowLeft;
  byId("next").onclick = actions.ArrowRight;
  byId("play").onclick = play;
  byId("less").onclick = actions["["];
  byId("more").onclick = actions["]"];
  byId("narrow").onclick = actions["-"];
  byId("wide").onclick = actions["+"];
  byId("theme").onclick = theme;
  byId("help").onclick = actions["?"];
  byId("axis").onchange = (event) => { setAxis(event.target.value); scroll.focus(); };
  byId("scrub").oninput = (event) => view.go(+event.target.value);
  byId("query").oninput = (event) => view.search(event.target.value);
  byId("panel").addEventListener("click", (event) => {
    const to = event.target.closest("[data-go]");
    if (to) { const [r, k] = to.dataset.go.split(" ").map(Number); view.go(run.rank[r].moment[k], r); }
  });
  view.svg.addEventListener("click", (event) => {
    const scope = event.target.closest(".scope"), cell = event.target.closest(".cell");
    if (scope) view.toggleScope(+scope.dataset.s);
    else if (cell) { view.keepRank = true; view.go(+cell.dataset.m, +cell.dataset.r, false); view.keepRank = false; }
    scroll.focus({ preventScroll: true });
  });
  const overview = byId("overview");
  let dragging = false;
  overview.onpointerdown = (event) => { dragging = true; overview.setPointerCapture(event.pointerId); view.scrubOverview(event.offsetX); };
  overview.onpointermove = (event) => { if (dragging) view.scrubOverview(event.offsetX); };
  overview.onpointerup = () => { dragging = false; };
  scroll.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; view.show(); });
  });
  addEventListener("resize", () => { view.resize(); view.drawOverview(); });
  addEventListener("beforeprint", () => view.print());
  addEventListener("afterprint", () => byId("printed").replaceChildren());
  if (run.problems.length) {
    const shown = run.problems.slice(0, 8);
    byId("problems").innerHTML = shown.map(([kind, rows, k]) => `<button data-go="${rows[0]} ${k}">${escaped(view.problemText(kind, rows, k))}</button>`).join("") + (run.problems.length > 8 ? `<span>and ${run.problems.length - 8} more</span>` : "");
    byId("problems").hidden = false;
    byId("problems").onclick = (event) => {
      const to = event.target.closest("[data-go]");
      if (to) { const [r, k] = to.dataset.go.split(" ").map(Number); view.go(run.rank[r].moment[k], r); }
    };
  }
  const asked = new URLSearchParams(location.hash.slice(1));
  view.resize();
  view.drawOverview();
  if (asked.has("m")) view.go(+asked.get("m"), +(asked.get("r") || 0));
  else if (run.problems.length && ["error", "end"].includes(run.problems[0][0])) {
    const [, [r], k] = run.problems[0];
    view.go(run.rank[r].moment[k], r);
  }
  else view.go(-1);
  scroll.focus({ preventScroll: true });
  return view;
}

if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.classList.add("dark");
unpack(byId("data").textContent).then((data) => {
  globalThis.ringtape = { view: start(new Run(data)), loaded_ms: performance.now() };
}).catch((error) => {
  byId("panel").innerHTML = `<div class="error">The page cannot be drawn: ${escaped(error)}\nIt needs a browser of 2023 or later.</div>`;
  throw error;
});
