// The page: fetches the job, runs it in a worker (bench.js), posts the result once.
//
// Whatever goes wrong reaches `end` with a reason, and the first reason wins: a failing job, an error in
// the worker, an error or a rejection here. What was measured until then is posted with it.

import { describe } from "./errors.js";
import { watch_presence } from "./presence.js";

const id = new URLSearchParams(location.search).get("job");
const posts = `jobs/${encodeURIComponent(id)}`;

const presence = watch_presence();
let worker = null;
let ended = false;
const measured = []; // results of the instructions that finished
let facts = { hardware_concurrency: navigator.hardwareConcurrency, timer_step_ms: null };

function end({ error = null, ran = {}, memory = {}, adapter = null }) {
  if (ended) return;
  ended = true;
  worker?.terminate();
  const result = {
    format: "driver-job-result/1",
    job: id,
    status: error ? "failed" : "ok",
    error,
    ops: measured,
    ran,
    memory,
    adapter,
    page: {
      user_agent: navigator.userAgent,
      cross_origin_isolated: self.crossOriginIsolated,
      ...facts,
      ...presence(),
    },
  };
  post(result);
}

async function post(result) {
  const body = new Blob([JSON.stringify(result)]); // a Blob for the reason given in bench.js, `read`
  const response = await fetch(`${posts}/result`, { method: "POST", body });
  if (!response.ok) throw new Error(`the driver refused the result: ${response.status}`);
}

const fail = (error) => end({ error: { ...describe(error), op: null } });
self.addEventListener("error", (event) => fail(event.error ?? event.message));
self.addEventListener("unhandledrejection", (event) => fail(event.reason));

function hear({ data }) {
  if (data.kind === "facts") facts = data.facts;
  else if (data.kind === "op") measured.push(data.result);
  else if (data.kind === "end") end(data);
}

const response = await fetch(`${posts}/job.json`);
if (!response.ok) throw new Error(`no job ${id}: ${response.status}`);
const job = await response.json();

worker = new Worker("bench.js", { type: "module", name: "bench" });
worker.addEventListener("message", hear);
worker.addEventListener("messageerror", () => fail("a message of the worker could not be read"));
worker.addEventListener("error", (event) => {
  // A script that cannot be loaded or parsed gives an event without a message.
  const where = event.filename ? ` (${event.filename}:${event.lineno})` : "";
  fail(`${event.message ?? "the worker's script could not be loaded or parsed"}${where}`);
});
worker.postMessage({ job, posts });
