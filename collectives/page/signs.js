// The signs of the drawing: cells, marks, links and their ends, as texts of SVG.

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
