// The page of `driver serve`: claims the session, shows what the driver tells, and runs its jobs in frames.
//
// The driver keeps the whole run. What it tells comes through one stream of events: `state`, everything that
// is shown; `frame`, the job that is to run. What a person wants goes back as small posts.

import { watch_presence } from "./presence.js";
import { keep_awake } from "./serve_awake.js";
import { frames } from "./serve_frame.js";
import { say, show } from "./serve_view.js";

const COOKIES = "This page needs a cookie: by it the driver knows the browser that opened the session first. Allow cookies for this address and reload.";

// The driver says something every 15 s at least; a device that slept does not know that its connection is dead.
const SILENCE_MS = 40_000;

const tab = navigator.cookieEnabled ? (sessionStorage.tab ??= crypto.randomUUID()) : ""; // both are allowed, or none
const load = crypto.randomUUID(); // a reload is another one
const form = document.querySelector("#setup");
let state = null;
let over = false; // nothing more will come
let heard = Date.now(); // when the driver last said something

async function post(what, body = {}) {
  const response = await fetch(`serve/${what}`, { method: "POST", body: JSON.stringify(body), keepalive: true });
  if (!response.ok) throw new Error((await response.text()) || `the driver answered ${response.status}`);
}

function stop_with(text) {
  over = true;
  document.querySelector("#stage").replaceChildren();
  for (const part of document.querySelectorAll("#waiting, #running, #setup, #about")) part.hidden = true;
  say(text);
}

// ------------------------------------------------------------------------------ presence

const want_screen = keep_awake((held) => {
  document.querySelector("#awake-note").textContent = held
    ? "The screen is kept awake while it measures."
    : "The screen cannot be kept awake from here: see that it does not turn off or lock.";
});
const presence = watch_presence(tell_presence);

function tell_presence() {
  const visible = document.visibilityState === "visible";
  if (!visible && busy()) document.querySelector("#unseen-note").hidden = false;
  if (!state || over) return;
  post("presence", { visible }).catch(() => {});
  if (visible && Date.now() - heard > SILENCE_MS) listen(); // asleep meanwhile: the old stream may be dead
}

// ------------------------------------------------------------------------------ what the driver tells

const busy = () => state?.phase === "running" || state?.phase === "stopping";

function hear_state({ data }) {
  heard = Date.now();
  const before = state?.phase ?? null;
  state = JSON.parse(data);
  show(state, before);
  if (busy() !== (before === "running" || before === "stopping")) {
    if (busy()) document.querySelector("#unseen-note").hidden = presence().visibility === "visible";
    want_screen(busy());
  }
  if (state.phase === "ended") {
    over = true;
    stream.close();
  }
}

let stream = null;
const show_frame = frames(document.querySelector("#stage"), post);

// An EventSource does not say why it was refused; the same request by hand does.
async function refused() {
  const response = await fetch(`serve/events?tab=${tab}&load=${load}`);
  if (!response.ok) return stop_with(await response.text());
  await response.body?.cancel();
  listen();
}

function listen() {
  heard = Date.now();
  stream?.close();
  stream = new EventSource(`serve/events?tab=${tab}&load=${load}`);
  stream.addEventListener("state", hear_state);
  stream.addEventListener("ask", () => {
    heard = Date.now();
    tell_presence();
  });
  stream.addEventListener("frame", ({ data }) => show_frame(JSON.parse(data)));
  stream.addEventListener("error", () => {
    if (over) return;
    if (stream.readyState === EventSource.CLOSED) refused().catch(() => stop_with("The driver does not answer any more."));
    else say("The connection to the driver is lost; trying again …");
  });
  stream.addEventListener("open", () => say(""));
}

async function hello() {
  const agent = navigator.userAgentData;
  const full = await agent?.getHighEntropyValues?.(["fullVersionList"]).catch(() => null);
  return {
    brands: (full?.fullVersionList ?? []).slice(0, 20).map(({ brand, version }) => ({ brand: brand.slice(0, 80), version: version.slice(0, 40) })),
  };
}

// ------------------------------------------------------------------------------ what a person wants

const value = (id) => document.querySelector(id).value.trim();

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const start = document.querySelector("#start");
  start.disabled = true;
  say("");
  try {
    await post("start", {
      preset: value("#preset"), a: value("#arm-a"), b: value("#arm-b"), a_options: value("#a-options"),
      b_options: value("#b-options"), blocks: value("#blocks-wish"), budget: value("#budget"),
    });
  } catch (error) {
    say(error.message);
    start.disabled = false;
    start.focus();
  }
});

document.querySelector("#stop").addEventListener("click", ({ target }) => {
  target.disabled = true;
  post("stop").catch((error) => say(error.message));
});

try {
  if (!navigator.cookieEnabled) throw new Error(COOKIES);
  await post("claim", await hello());
  listen();
} catch (error) {
  stop_with(error.message);
}
