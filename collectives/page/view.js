// The drawing. Only what is visible is in the document: groups of columns are made and removed while the view moves.

class View {
  constructor(run) {
    this.run = run;
    this.panel = new Panel(this);
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
    this.showsChecks = false;
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
      if (this.hides(c)) continue;
      const s = this.run.scopeOf[c], at = this.run.scopeDepth[s] >= depth && depth < this.run.depth ? this.ancestor(s, depth) : -1;
      if (at < 0 || at !== last) count++;
      last = at;
    }
    return count;
  }
  /** Whether a column has only comparisons of the ranks, which are shown when they are asked for. */
  hides(c) { return !this.showsChecks && this.run.checks.column[c]; }
  toggleChecks() {
    this.showsChecks = !this.showsChecks;
    byId("checks").setAttribute("aria-pressed", this.showsChecks);
    this.layOut();
    this.reveal();
    this.show();
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
      if (this.hides(c)) { of[c] = Math.max(0, start.length - 1); continue; }
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
      if (k < 0 || this.hides(c)) continue;
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
      let c = this.blocks.start[b + 1] - 1;
      while (c > this.blocks.start[b] && this.hides(c)) c--;
      const x = this.blockX(b) + this.cell / 2;
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
        if (this.hides(rank.column[k])) continue;
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
    this.panel.describe();
  }
  /** The next moment that is shown, or -1. */
  next(by) {
    let m = this.moment + by;
    while (!this.showsChecks && this.run.checks.moment[m]) m += by;
    return m < this.run.moments ? m : -1;
  }
  step(by) {
    const m = this.next(by);
    if (m >= 0) this.go(m);
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
      if (this.hides(c)) continue;
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
          if (this.hides(rank.column[k])) continue;
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
    let text = `<h1>${escaped(this.run.title)}</h1>` + this.panel.legend();
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
