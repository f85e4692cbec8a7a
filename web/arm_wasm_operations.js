// The WASM arm's operations of a step run apart from it (wasm_src/kernels.c): their operands in the area
// that the plan holds for the workbench.
//
// From the area's start: three arrays for a triad of the same footprint, the operands, the module's scratch.

import { address, text_at } from "./arm_wasm_memory.js";
import { ArmError } from "./errors.js";
import { given_of } from "./operands.js";

const APART = 64; // floats: operands begin at multiples of it
const SCRATCH = 8; // operation_place's number of the scratch, so also the most operands
const SIZES = 4;

const apart = (floats) => Math.ceil(floats / APART) * APART;
const written = ({ role }) => role !== "in";

// Floats of each of the triad's three arrays: together as large as the operands.
function triad_floats({ operands }) {
  const bytes = operands.reduce((sum, operand) => sum + operand.size_bytes, 0);
  return Math.ceil(bytes / 12 / 16) * 16;
}

// Where each operand begins, and the scratch, in floats.
function layout(operation) {
  let at = apart(3 * triad_floats(operation));
  const operands = operation.operands.map(({ size_bytes }) => {
    const here = at;
    at += apart(size_bytes / 4);
    return here;
  });
  return { operands, scratch: at };
}

function number_of(exports, memory, name, size) {
  const names = Array.from({ length: Number(exports.operation_count()) }, (_, i) => text_at(memory, exports.operation_name(size(i))));
  const index = names.indexOf(name);
  if (index < 0) throw new ArmError("unsupported", `operation ${name}: this module has ${names.join(", ")}`);
  return size(index);
}

const padded = (sizes) => Array.from({ length: SIZES }, (_, i) => sizes[i] ?? 0);

// Floats of the area that an operation needs.
export function operation_floats(exports, memory, operation, threads, size) {
  const number = number_of(exports, memory, operation.name, size);
  return layout(operation).scratch + exports.operation_scratch_floats(number, ...padded(operation.sizes), threads);
}

export function operations(exports, memory, size, scale) {
  let held = null; // the operation whose operands are in place
  let number = null;
  let places = []; // of its operands, in bytes
  let given = []; // their bytes as they arrived, null for what is only written

  const bytes_of = (i) => new Uint8Array(memory.buffer, places[i], held.operands[i].size_bytes);

  return {
    // Puts the operands in place: `inputs` holds the bytes of those that are read, one after another.
    place(operation, inputs) {
      held = operation;
      number = number_of(exports, memory, operation.name, size);
      const { operands, scratch } = layout(operation);
      if (operands.length > SCRATCH) throw new ArmError("protocol", `${operation.name}: ${operands.length} operands`);
      const put = (operand, at) => address(exports.operation_place(size(operand), size(at)));
      places = operands.map((at, i) => put(i, at));
      put(SCRATCH, scratch);
      new Float32Array(memory.buffer, address(exports.gpt_area()), 3 * triad_floats(operation)).fill(1);
      const read = given_of(operation, inputs);
      given = operation.operands.map(({ name }) => read[name] ?? null);
      given.forEach((bytes, i) => (bytes ? bytes_of(i).set(bytes) : bytes_of(i).fill(255))); // NaN until written
    },

    // What a run writes over is as it was at first.
    restore() {
      held.operands.forEach(({ role }, i) => role === "inout" && bytes_of(i).set(given[i]));
    },

    operate(times) {
      exports.operation_run(number, ...padded(held.sizes).map(size), size(times));
    },

    // The bytes of all that it writes, one operand after another.
    results() {
      const parts = held.operands.flatMap((operand, i) => (written(operand) ? [bytes_of(i)] : []));
      const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
      let at = 0;
      for (const part of parts) all.set(part, at), (at += part.length);
      return all;
    },

    // One pass of a = b + scale·c over as much memory as the operands take; → its bytes, counted as STREAM does.
    same_size_triad(chunks) {
      const floats = triad_floats(held);
      exports.roofline_triad(size(floats), size(chunks), scale);
      return 3 * 4 * floats;
    },
  };
}
