// Keys and buttons, and the start of the page.

const KEYS = [
  ["→ ←", "the next or the previous moment"], ["↓ ↑", "the next or the previous rank"], ["Space", "play or pause"],
  ["Home End", "the first or the last moment"], ["b", "from an operation to its adjoint, and back"],
  ["n N", "the next or the previous problem"], ["/", "search; Enter goes to the next match, Shift+Enter back"],
  ["f", "fold or unfold the scopes around the operation"], ["[ ]", "fold or unfold one level of scopes"],
  ["m", "the horizontal axis: order, measured time, predicted time"], ["+ -", "wider or narrower"],
  ["c", "the comparisons of the ranks, or not"], ["t", "light or dark"], ["Esc", "the whole program"], ["?", "these keys"],
];

function help(view) {
  const links = [["all_reduce", "all_reduce"], ["all_gather", "all_gather"], ["reduce_scatter", "reduce_scatter"], ["all_to_all", "all_to_all"], ["scan", "scan"]];
  const sample = (word) => { const [colour, kind] = LINKS[word]; return `<svg width="18" height="38"><path class="link" stroke="${colour}" d="M9 7V31"/>${marker(kind, colour, 9, 7, "var(--ground)")}${marker(kind, colour, 9, 31, "var(--ground)")}</svg>`; };
  byId("keys").innerHTML = `<div class="halves"><div><h2>Keys</h2><div class="columns">${KEYS.map(([key, text]) => `<span>${key.split(" ").map((each) => `<kbd>${escaped(each)}</kbd>`).join(" ")}</span><span>${text}</span>`).join("")}</div><p><button id="close">Close</button></p></div><div>
<h2>Signs</h2><p>A column is an operation in logical order, a row a rank. The lower band is the backward direction: the cotangent that arrives, below its operation. A sheet behind a cell marks a folded scope.</p>
<div class="columns">${links.map(([word, text]) => sample(word) + `<span>${text}</span>`).join("")}<svg width="18" height="38">${arrow(LINKS.broadcast[0], 9, 7, 9, 32, 0)}</svg><span>from a root, to a root, or a message</span>
<svg width="18" height="20">${signs(DIFFERS, 18, 1)}</svg><span>copies that should be equal differ</span><svg width="18" height="20">${signs(NOT_FINITE, 18, 1)}</svg><span>values that are not finite</span><svg width="18" height="20">${signs(FAILED, 18, 1)}</svg><span>the operation raised an error; in a link: the call was never made</span></div>
${view.panel.legend()}</div></div>`;
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
    if (view.next(1) < 0) view.go(-1);
    byId("play").textContent = "❚❚ pause";
    timer = setInterval(() => (view.next(1) < 0 ? stop() : view.step(1)), 350);
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
    ArrowRight: () => view.step(1), ArrowLeft: () => view.step(-1), c: () => view.toggleChecks(),
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
  byId("checks").onclick = actions.c;
  byId("checks").hidden = !run.checks.count;
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
    byId("problems").innerHTML = shown.map(([kind, rows, k]) => `<button data-go="${rows[0]} ${k}">${escaped(view.panel.problemText(kind, rows, k))}</button>`).join("") + (run.problems.length > 8 ? `<span>and ${run.problems.length - 8} more</span>` : "");
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
