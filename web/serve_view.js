// Shows a state of the driver. Text goes in as text: what a page, a preset or a receipt says is never markup.

import { draw_curves, draw_windows } from "./serve_chart.js";

const at = (id) => document.getElementById(id);

function make(tag, { text = null, ...fields } = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(fields)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  made.append(...children);
  return made;
}

const lines = (list, texts) => list.replaceChildren(...texts.map((text) => make("li", { text })));
const visible = (id, on) => { at(id).hidden = !on; };
const figures = (value) => (!Number.isFinite(value) ? "–" : value >= 1000 ? value.toFixed(0) : value.toPrecision(4));
const upper = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;
// Long names may break after their joints, and are copied as they are.
const breakable = (text, joint = /(?<=\+)/) => text.split(joint).flatMap((part) => [part, make("wbr")]);
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const letter = (side) => side.toLowerCase();

// What went wrong, or nothing.
export function say(text) {
  const place = at("problem");
  const words = text && upper(text);
  if (place.textContent === words) return; // said once
  place.textContent = words;
  place.hidden = !text;
}

// For ears: only what matters, not every number.
let announced = "";
function announce(text) {
  if (text === announced) return;
  announced = text;
  at("announce").textContent = text;
}

export function show(state, before) {
  const { phase, run, result } = state;
  const busy = phase === "running" || phase === "stopping";
  at("version").textContent = state.driver;
  visible("waiting", phase === "meeting" && !state.problem);
  visible("setup", phase === "ready");
  at("setup-title").textContent = result ? "Measure again" : "What to measure";
  visible("running", busy);
  visible("result", phase === "ready" && result !== null);
  visible("about", state.browser !== null && !busy);
  say(state.problem ?? "");
  visible("take", phase !== "ended"); // nobody answers any more
  if (phase === "ended") {
    visible("result", result !== null);
    say("The session has ended: driver serve was stopped in the terminal. Receipts are in its folder.");
  }
  if (state.browser && before === null) show_browser(state);
  if (phase === "ready" && before !== "ready") {
    show_browser(state);
    fill_form(state);
  }
  if (busy) show_run(state);
  if (result && !busy) show_result(result);
  show_earlier(state);
  document.title = title(state);
  if (busy && !(before === "running" || before === "stopping")) at("running-title").focus();
  if (phase === "ready" && (before === "running" || before === "stopping")) {
    if (result) {
      announce(`Done. ${result.status}: ${result.figure}. ${result.line}`);
      at("result-title").focus();
    } else {
      at("start").focus();
    }
  }
}

function title({ phase, run, result }) {
  if (phase === "running" && run?.place) return `${run.place.number}/${run.place.slots} · driver serve`;
  if (phase === "ready" && result) return `${result.figure} · driver serve`;
  return "driver serve";
}

// ------------------------------------------------------------------------------ before

function show_browser({ browser, folder }) {
  if (!browser) return;
  const facts = [
    ["Browser", `${browser.name} ${browser.version}`],
    ["Machine", `${browser.machine}${browser.cores ? `; the browser says ${counted(browser.cores, "core")}` : ""}`],
    ["Isolated", browser.isolated ? "yes: shared memory and the fine clock" : "no: no shared memory, so no threads, and a coarse clock"],
    ["Graphics", browser.adapter ? `WebGPU: ${browser.adapter} (${adapter_words(browser.adapter_kind)})` : "no WebGPU here"],
    ["Receipts", folder],
  ];
  at("facts").replaceChildren(...facts.flatMap(([name, text]) => [make("dt", { text: name }), make("dd", { text })]));
  lines(at("notes"), browser.notes.map((text) => `${upper(text)}.`));
  at("leaves").textContent = browser.elsewhere
    ? `Results go to the driver that you started at ${location.hostname}, and nowhere else; receipts stay there, in ${folder}.`
    : `This page talks to the driver that you started here, and to nobody else. Receipts stay in ${folder}.`;
}

const adapter_words = (kind) =>
  ({ software: "computed on the processor: times say nothing about a GPU", hardware: "hardware" })[kind] ??
  "not proved to be hardware from within a page";

function options(select, offers, wanted, words = ({ name }) => name) {
  select.replaceChildren(
    ...offers.map((offer) => {
      const option = make("option", { value: offer.name, text: offer.reason ? `${offer.name} (not here)` : words(offer) });
      option.disabled = offer.reason !== null;
      return option;
    }),
  );
  const can = offers.filter(({ reason }) => reason === null).map(({ name }) => name);
  select.value = can.includes(wanted) ? wanted : (can[0] ?? "");
}

function fill_form({ arms, presets, wish }) {
  options(at("preset"), presets, wish.preset, ({ name, parameters, budget }) =>
    `${name}: ${parameters.toLocaleString("en")} parameters, about ${budget}`);
  options(at("arm-a"), arms, wish.a);
  options(at("arm-b"), arms, wish.b);
  for (const [id, key] of [["a-options", "a_options"], ["b-options", "b_options"], ["blocks-wish", "blocks"], ["budget", "budget"]]) {
    at(id).value = wish[key];
  }
  const about = (select, offers, words) => {
    const tell = () => {
      const offer = offers.find(({ name }) => name === select.value);
      at(`${select.id}-about`).textContent = offer ? words(offer) : "";
    };
    select.onchange = tell;
    tell();
  };
  about(at("preset"), presets, ({ meaning, blocks }) =>
    `${meaning ? `${meaning.replace(/\.$/, "")}. ` : ""}${counted(blocks, "block")} of four slots, A B B A.`);
  about(at("arm-a"), arms, ({ meaning }) => sentence(meaning));
  about(at("arm-b"), arms, ({ meaning }) => sentence(meaning));
  const lacking = [...arms, ...presets].filter(({ reason }) => reason !== null);
  lines(at("lacking"), lacking.map(({ name, reason }) => `${name}: ${reason}`));
  visible("lacking-part", lacking.length > 0);
  at("lacking-part").open = arms.some(({ reason }) => reason !== null); // presets that are too large are no surprise
  at("start").disabled = !(at("preset").value && at("arm-a").value && at("arm-b").value);
}

const sentence = (text) => `${upper(text)}.`;

// ------------------------------------------------------------------------------ while it runs

function show_run({ phase, run }) {
  at("stop").disabled = phase === "stopping";
  if (!run) {
    at("phase").textContent = "Starting …";
    at("bar").removeAttribute("value");
    at("left").textContent = "";
    visible("raw", false);
    visible("blocks-part", false);
    visible("curve-figure", false);
    visible("plan-part", false);
    at("what").textContent = "";
    at("live-arms").replaceChildren();
    return;
  }
  const { place } = run;
  const [a, b] = run.arms;
  at("what").textContent = `${run.preset}: A ${a.name} against B ${b.name}`;
  const words = phase === "stopping" ? "Stopping: what was measured is kept …" : place ? slot_words(place, run.arms) : capital(run.phase);
  at("phase").textContent = words;
  at("bar").value = run.share;
  at("left").textContent = run.left_s === null ? `Preparing; the whole run takes at most about ${time(run.budget_s)}` : left(now_left(run));
  announce(place ? `${words}. ${left(run.left_s)}` : words);
  visible("live-arms", run.order.length > 0);
  at("live-arms").replaceChildren(...run.arms.map((arm) => live_arm(arm, place)));
  at("raw").textContent = `A/B ${figures(run.raw_ratio)} so far: raw figures, no interval, no claim before the end`;
  visible("raw", run.raw_ratio !== null);
  const curves = run.arms.map(({ side, name, curve }) => ({ side, name, points: curve }));
  visible("curve-figure", curves.some(({ points }) => points.length > 1));
  redraw = () => at("curve-figure").hidden || draw_curves(at("curve"), curves);
  redraw();
  visible("blocks-part", run.order.length > 0);
  at("blocks").replaceChildren(...block_rows(run));
  lines(at("marks"), run.slots.flatMap(({ block, position, side, marks }) =>
    marks.map((mark) => `Block ${block}, slot ${position + 1} (${side}): ${mark}`)));
  at("plan").replaceChildren(...run.said.map((text) => make("li", {}, ...breakable(text))));
  visible("plan-part", run.said.length > 0);
}

// A phone is turned, a window is made smaller: text in the picture keeps its size.
let redraw = () => {};
addEventListener("resize", () => redraw());

const capital = (text) => `${upper(text)} …`;
const slot_words = ({ number, slots, block, blocks, side }, arms) =>
  `Slot ${number} of ${slots}, block ${block} of ${blocks}: ${side} ${arms.find((arm) => arm.side === side).name}`;
// The driver estimates at the start of every slot; in between the time just passes.
const estimate = { left_s: null, since: 0 };

function now_left({ left_s }) {
  if (left_s !== estimate.left_s) Object.assign(estimate, { left_s, since: performance.now() });
  return left_s - (performance.now() - estimate.since) / 1000;
}

const left = (seconds) => (seconds > 0 ? `About ${time(seconds)} left` : "Almost done");
const time = (seconds) =>
  seconds < 90 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`;

function live_arm({ side, name, label, step_ms, median_step_ms, windows, newest_ms, loss }, place) {
  const step = make("p", { class: "step", text: figures(step_ms) });
  step.append(" ", make("small", { text: "ms/step" }));
  return make("div", { class: `arm ${letter(side)}` },
    make("h3", { text: `${side} ${name}` }),
    make("p", { class: "muted", text: place?.side === side ? "training now" : "waiting" }),
    step,
    make("p", { text: `Median ${figures(median_step_ms)} of ${counted(windows, "window")} so far` }),
    draw_windows(side, newest_ms, median_step_ms),
    make("p", { text: `Loss ${figures(loss)}` }),
    ...(label === name ? [] : [make("p", { class: "muted", text: label })]));
}

function block_rows({ order, slots, place }) {
  const head = make("tr", {}, make("th", { scope: "col", text: "Block" }),
    ...["1st", "2nd", "3rd", "4th"].map((text) => make("th", { scope: "col", text })));
  const known = Math.max(place?.blocks ?? 0, ...slots.map(({ block }) => block));
  const rows = order.slice(0, known || order.length).map((sides, index) => [sides, index + 1]).map(([sides, block]) =>
    make("tr", {}, make("th", { scope: "row", text: String(block) }),
      ...[...sides].map((side, position) => {
        const slot = slots.find((one) => one.block === block && one.position === position);
        const now = place?.block === block && place.position === position;
        const cell = make("td", now ? { class: "now" } : {}, make("span", { class: `side ${letter(side)}`, text: side }), " ");
        cell.append(slot ? slot_text(slot) : now ? "now" : "·");
        return cell;
      })));
  return [make("thead", {}, head), make("tbody", {}, ...rows)];
}

const slot_text = ({ ok, step_ms, marks }) => `${ok ? figures(step_ms) : "failed"}${marks.length ? " (marked)" : ""}`;

// ------------------------------------------------------------------------------ after

function show_result(result) {
  at("badge").textContent = result.interrupted ? `stopped: ${result.status}` : result.status;
  at("badge").className = `badge ${result.status}`;
  lines(at("reasons"), result.reasons.slice(0, 6));
  at("figure").textContent = result.figure;
  at("figure").classList.toggle("word", !result.figure.endsWith("×"));
  at("line").textContent = result.line;
  at("detail").textContent = [result.detail, `${result.slots} of ${result.slots_planned} slots`].filter(Boolean).join("; ");
  at("result-arms").replaceChildren(...result.arms.map(result_arm));
  at("headline").replaceChildren(...breakable(result.headline));
  at("download").href = `serve/receipts/${result.number}`;
  at("download").download = result.file;
  at("report").href = `serve/receipts/${result.number}/report`;
  at("saved").textContent = `The driver has saved it as ${result.folder}/${result.file}`;
  at("gates").replaceChildren(
    make("thead", {}, make("tr", {}, ...["Check", "Outcome", "Why"].map((text) => make("th", { scope: "col", text })))),
    make("tbody", {}, ...result.gates.map(({ name, status, gate_class, reason }) =>
      make("tr", {}, make("td", {}, ...breakable(name, /(?<=[._])/)),
        make("td", { class: "status", text: status === "unknown" ? "unknown" : gate_class === "blocking" ? "failed" : "not met" }),
        make("td", { text: reason })))));
  visible("gates-part", result.gates.length > 0);
  at("passed").textContent = `${counted(result.gates_passed, "check")} passed.`;
  lines(at("suspect"), result.suspect);
  visible("suspect-part", result.suspect.length > 0);
}

function result_arm({ side, name, step_ms, quartiles, gflops, windows, first_loss, last_loss, first_step_ms, compile_ms }) {
  const step = make("p", { class: "step", text: figures(step_ms) });
  step.append(" ", make("small", { text: "ms/step" }));
  const spread = quartiles ? `, quartiles ${figures(quartiles[0])} to ${figures(quartiles[1])}` : "";
  return make("div", { class: `arm ${letter(side)}` },
    make("h3", { text: `${side} ${name}` }),
    step,
    make("p", { text: `Median of ${counted(windows, "window")}${spread}` }),
    ...(gflops === null ? [] : [make("p", { text: `${figures(gflops)} GFLOP/s` })]),
    make("p", { text: `Loss ${figures(first_loss)} to ${figures(last_loss)}` }),
    make("p", { text: `First step ${figures(first_step_ms)} ms, compile ${figures(compile_ms)} ms` }));
}

function show_earlier({ earlier, phase }) {
  const others = earlier.slice(1);
  visible("earlier", phase === "ready" && others.length > 0);
  at("earlier-list").replaceChildren(...others.map(({ number, file, status, figure, line }) =>
    make("li", {}, make("a", { href: `serve/receipts/${number}`, download: file, text: file }), `: ${status}, ${figure}. ${line}`)));
}
