// The WebGPU device of a worker: adapter, limits, and the one place that every fault reaches.
//
// A GPU reports faults in six ways: refused requests, compilation messages, error scopes, uncaptured
// errors, device loss, rejected promises. All end in fail(); the first one is the reason, and whoever
// waits for the device (guard) is rejected with it at once, so that nothing hangs and nothing goes on.

import { adapter_facts } from "./adapter.js";
import { ArmError } from "./errors.js";

const SCOPES = ["internal", "out-of-memory", "validation"];

// `needs_on(facts)`: limit name → {value, why} on this adapter; what it cannot hold is refused with both numbers.
// `required` are features that it must have, `welcome` those that the device gets where the adapter has them.
export async function open_device(needs_on, required = [], welcome = []) {
  const adapter = await find_adapter();
  const facts = adapter_facts(adapter);
  const needs = needs_on(facts);
  const reason = refusal(adapter, needs, required);
  if (reason) throw new ArmError("unsupported", reason);
  let device;
  try {
    device = await adapter.requestDevice({
      requiredFeatures: [...required, ...welcome.filter((feature) => adapter.features.has(feature))],
      requiredLimits: Object.fromEntries(
        Object.entries(needs).flatMap(([name, { value }]) => (name in adapter.limits ? [[name, value]] : [])),
      ),
    });
  } catch (error) {
    throw new ArmError("unsupported", `the adapter refused a device: ${error.message}`);
  }
  return new Gpu(device, facts);
}

export async function find_adapter() {
  if (!self.navigator.gpu) {
    throw new ArmError(
      "unsupported",
      "this browser has no WebGPU in a worker (no navigator.gpu); use a current Chrome, Edge or Chromium, " +
        "not its headless-shell build, or arms without a GPU",
    );
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) {
    throw new ArmError(
      "unsupported",
      "requestAdapter found no WebGPU adapter; check the GPU's driver and chrome://gpu, or use arms without a GPU",
    );
  }
  return adapter;
}

class Gpu {
  constructor(device, adapter) {
    this.device = device;
    this.adapter = adapter;
    this.failed = null; // the first ArmError
    this.closed = false;
    this.waiting = new Set(); // what to call for everyone who waits when it fails
    device.lost.then(({ reason, message }) => {
      if (!this.closed) this.fail("device-lost", `the GPU device was lost (${reason}): ${message || "no message"}`);
    });
    device.addEventListener("uncapturederror", (event) => {
      event.preventDefault();
      this.fail_with(event.error, "outside any scope");
    });
  }

  fail(kind, message) {
    if (this.failed) return;
    this.failed = new ArmError(kind, message);
    for (const refuse of this.waiting) refuse(this.failed);
  }

  // A GPUError or GPUPipelineError → its kind.
  fail_with(error, where) {
    this.fail(kind_of(error), `${where}: ${error.message}`);
  }

  // `promise`, or the failure where that comes first. Not Promise.race with a promise of the failure: each
  // race would hang a reaction on it, for as long as the device lives.
  before_failure(promise) {
    return new Promise((resolve, reject) => {
      if (this.failed) reject(this.failed);
      this.waiting.add(reject);
      const done = () => this.waiting.delete(reject);
      Promise.resolve(promise).then(resolve, reject).then(done);
    });
  }

  // Waits for `promise`, but no longer than the device lives.
  async guard(promise) {
    if (this.failed) throw this.failed;
    let value;
    try {
      value = await this.before_failure(promise);
    } catch (error) {
      // A rejected mapAsync may arrive before the loss that caused it.
      if (!this.failed && !(error instanceof ArmError)) await this.before_failure(pause(500)).catch(() => {});
      this.fail(error instanceof ArmError ? error.kind : "internal", error.message);
    }
    if (this.failed) throw this.failed;
    return value;
  }

  // Runs `work` inside error scopes of every kind; whatever they caught ends it.
  async scoped(where, work) {
    if (this.failed) throw this.failed;
    for (const kind of SCOPES) this.device.pushErrorScope(kind);
    let value;
    let thrown = null;
    try {
      value = await work();
    } catch (error) {
      thrown = error;
    }
    const caught = SCOPES.map(() => this.device.popErrorScope().catch(() => null));
    for (const error of await this.settled(Promise.all(caught))) {
      if (error) this.fail_with(error, where);
    }
    if (this.failed) throw this.failed;
    if (thrown) throw thrown;
    return value;
  }

  // The values of `promises`, or none once the device has failed.
  settled(promises) {
    return this.before_failure(promises).catch(() => []);
  }

  // A shader module; compilation errors carry file, line and message.
  async module(file, code) {
    this.device.pushErrorScope("validation"); // says less than the messages below, and sooner
    const module = this.device.createShaderModule({ label: file, code });
    const [{ messages }] = await this.guard(Promise.all([module.getCompilationInfo(), this.device.popErrorScope()]));
    const error = messages.find(({ type }) => type === "error");
    if (error) {
      this.fail("compile", `${file}, line ${error.lineNum}, column ${error.linePos}: ${error.message}`);
      throw this.failed;
    }
    return module;
  }

  pipeline(label, module, constants) {
    const compute = { module, entryPoint: "main", constants };
    const made = this.device.createComputePipelineAsync({ label, layout: "auto", compute });
    return this.guard(
      made.catch(({ message }) => {
        throw new ArmError("compile", `${label}: ${message}`);
      }),
    );
  }

  close() {
    this.closed = true;
    this.device.destroy();
  }
}

function kind_of(error) {
  if (typeof GPUOutOfMemoryError !== "undefined" && error instanceof GPUOutOfMemoryError) return "out-of-memory";
  if (typeof GPUValidationError !== "undefined" && error instanceof GPUValidationError) return "validation";
  return "internal";
}

// Why an adapter cannot do what is needed; null where it can.
export function refusal({ limits, features }, needs, required) {
  for (const feature of required) {
    if (!features.has(feature)) return `this adapter has no ${feature}; choose another variant`;
  }
  for (const [name, { value, why }] of Object.entries(needs)) {
    if (value > limits[name]) {
      const reason = `${why} needs ${name} = ${value}; this adapter allows ${limits[name]}`;
      return `${reason}. Choose a smaller preset, or other options of the arm`;
    }
  }
  return null;
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
