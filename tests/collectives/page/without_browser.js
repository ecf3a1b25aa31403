// Runs the scripts of a page without a browser: a document of things that have every property, and note what is drawn.
// The text of the page comes in, and the texts that the page sets as HTML go out, as JSON.
const page = require("fs").readFileSync(0, "utf8");
const data = page.match(/<script id="data" type="text\/plain">([^<]*)</)[1];
const script = page.match(/<script>\n([^]*?)\n<\/script>/)[1];
const drawn = [], byId = new Map();
const sizes = { clientWidth: 1400, clientHeight: 800, scrollLeft: 0, scrollTop: 0, offsetHeight: 20, length: 0, width: 1400, height: 800 };
function thing(own = {}) {
  const known = new Map(Object.entries({ ...sizes, style: undefined, ...own }));
  return new Proxy(function () {}, {
    get(target, name) {
      if (name === Symbol.toPrimitive) return () => 10;
      if (name === Symbol.iterator) return function* () {};
      if (name === "then") return undefined;
      if (known.get(name) === undefined) known.set(name, thing());
      return known.get(name);
    },
    set(target, name, value) {
      if (["innerHTML", "outerHTML", "insertAdjacentHTML", "srcdoc"].includes(name)) drawn.push(String(value));
      known.set(name, value);
      return true;
    },
    apply: () => thing(),
    construct: () => thing(),
  });
}
const element = (id) => byId.get(id) || byId.set(id, thing(id === "data" ? { textContent: data } : {})).get(id);
globalThis.document = thing({ getElementById: element, createElementNS: () => thing(), createElement: () => thing(), documentElement: thing() });
globalThis.window = thing({ devicePixelRatio: 1, addEventListener: () => 0 });
globalThis.location = { hash: "" };
Object.assign(globalThis, { matchMedia: () => ({ matches: false }), addEventListener: () => 0, getComputedStyle: () => thing(), requestAnimationFrame: (f) => f(), ResizeObserver: thing() });
(0, eval)(script);
const end = Date.now() + 20000;
(function look() {
  if (!globalThis.ringtape) return Date.now() < end ? setTimeout(look, 10) : process.exit(2);
  const view = ringtape.view;
  for (const moment of [-1, ...Array(view.run.moments).keys()]) for (let r = 0; r < view.run.size; r++) view.go(moment, r);
  for (const axis of ["measured", "order"]) { view.setAxis(axis); view.show(); }
  for (let depth = 0; depth <= view.run.depth; depth++) view.foldTo(depth), view.show();
  if (view.print) view.print();
  process.stdout.write(JSON.stringify(drawn));
})();
