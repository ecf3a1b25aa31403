// The panel: what is known of the chosen operation, or sums of the whole program.

class Panel {
  constructor(view) { this.view = view; }
  get run() { return this.view.run; }
  get moment() { return this.view.moment; }
  get chosen() { return this.view.chosen; }

  describe() {
    const run = this.run, k = this.view.record(), position = byId("position");
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
    if (kind === "equal") return `? ${name} is equal on ${ranks}, although its layout has parts${at}`;
    if (kind === "no gradient") return `? ${name} has no gradient on ${ranks}${at}`;
    if (kind === "no update") return `? ${name} has a gradient and is not updated on ${ranks}${at}`;
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
    text += this.operands(k) + this.callsText() + this.contributions(k) + this.insideText(k) + this.otherSide(k) + this.pairing(k);
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
      if (missing.length) text += `<br><span class="alarm">rank ${missing.join(", ")} never ${!MESSAGES.has(word) ? "made this call" : missing[0] === ranks[0] ? "sent it" : "received it"}</span>`;
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
  otherSide(k) {
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
}
