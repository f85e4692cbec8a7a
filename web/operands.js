// An operation's operands, whichever arm runs it apart from its step.

import { ArmError } from "./errors.js";

// The bytes of those that are read, by name: `inputs` holds them one after another.
export function given_of({ name, operands }, inputs) {
  const read = operands.filter(({ role }) => role !== "out");
  const expected = read.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
  if (inputs.length !== expected) {
    throw new ArmError("protocol", `${name}: ${inputs.length} bytes of inputs, expected ${expected}`);
  }
  let end = 0;
  return Object.fromEntries(read.map((one) => [one.name, inputs.subarray(end, (end += one.size_bytes))]));
}
