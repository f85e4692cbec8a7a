// The loss curves of both arms, as SVG in the page's own pixels, so that its text is as large as any.

const SPACE = { left: 46, right: 14, top: 14, bottom: 30 };
const HEIGHT = 210;

function element(name, fields, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(fields)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

// `curves`: [{side, name, points: [[step, loss], …]}]; draws into `place`.
export function draw_curves(place, curves) {
  const points = curves.flatMap((curve) => curve.points).filter(([, loss]) => Number.isFinite(loss));
  const width = Math.max(place.clientWidth, 240);
  const svg = element("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img" });
  svg.setAttribute("aria-label", described(curves));
  const last = Math.max(2, ...points.map(([step]) => step));
  const losses = points.map(([, loss]) => loss);
  const low = Math.min(...losses);
  const high = Math.max(...losses, low + 1e-3);
  const x = (step) => SPACE.left + ((step - 1) / (last - 1)) * (width - SPACE.left - SPACE.right);
  const y = (loss) => SPACE.top + ((high - loss) / (high - low)) * (HEIGHT - SPACE.top - SPACE.bottom);
  for (const loss of [high, (high + low) / 2, low]) {
    svg.append(element("line", { class: "axis", x1: SPACE.left, x2: width - SPACE.right, y1: y(loss), y2: y(loss) }));
    svg.append(element("text", { x: SPACE.left - 8, y: y(loss) + 4, "text-anchor": "end" }, loss.toFixed(2)));
  }
  svg.append(element("text", { x: SPACE.left, y: HEIGHT - 8 }, "step 1"));
  svg.append(element("text", { x: width - SPACE.right, y: HEIGHT - 8, "text-anchor": "end" }, String(last)));
  curves.forEach(({ side, name, points: own }, index) => {
    const path = own.filter(([, loss]) => Number.isFinite(loss));
    const where = path.map(([step, loss]) => `${x(step).toFixed(1)},${y(loss).toFixed(1)}`).join(" ");
    svg.append(element("polyline", { class: `line ${side.toLowerCase()}`, points: where }));
    const label = { class: side.toLowerCase(), x: width - SPACE.right, y: SPACE.top + 14 + 18 * index, "text-anchor": "end" };
    svg.append(element("text", label, `${index ? "╌╌" : "──"} ${side} ${name.length > 32 ? `${name.slice(0, 31)}…` : name}`));
  });
  place.replaceChildren(svg);
}

// The newest windows of an arm, ms/step from the fastest to the slowest, one dot each and a line at the median: a
// glance at their spread. What it says stands beside it in figures.
export function draw_windows(side, values, median) {
  const svg = element("svg", { class: "windows", viewBox: "0 0 240 36", preserveAspectRatio: "none", "aria-hidden": "true" });
  const known = values.filter(Number.isFinite);
  if (!known.length) return svg;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const y = (value) => (high > low ? 4 + ((high - value) / (high - low)) * 28 : 18).toFixed(1);
  if (Number.isFinite(median)) svg.append(element("path", { class: "axis", d: `M0 ${y(Math.max(low, Math.min(high, median)))}H240` }));
  known.forEach((value, index) => {
    const x = known.length > 1 ? 4 + (index * 232) / (known.length - 1) : 120;
    // A line of no length with round ends stays round however the picture is stretched.
    svg.append(element("path", { class: `dot ${side.toLowerCase()}`, d: `M${x.toFixed(1)} ${y(value)}h0` }));
  });
  return svg;
}

function described(curves) {
  return curves
    .filter(({ points }) => points.length)
    .map(({ side, name, points }) => {
      const [first, last] = [points[0], points.at(-1)];
      return `${side} ${name}: loss ${number(first[1])} at step ${first[0]}, ${number(last[1])} at step ${last[0]}`;
    })
    .join("; ");
}

const number = (value) => (Number.isFinite(value) ? value.toFixed(3) : String(value));
