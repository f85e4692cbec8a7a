// The one error an arm throws. Kinds are those of PageFailure in driver/records.py.

export const KINDS = [
  "unsupported", "compile", "validation", "out-of-memory", "device-lost", "internal", "crash",
  "protocol", "failed",
];

export class ArmError extends Error {
  constructor(kind, message) {
    super(message);
    this.name = "ArmError";
    this.kind = kind;
  }
}

// Any thrown value → {kind, message}, a PageFailure without its `op`.
export function describe(error) {
  if (error instanceof ArmError) {
    const kind = KINDS.includes(error.kind) ? error.kind : "internal";
    return { kind, message: error.message };
  }
  if (error instanceof Error) {
    return { kind: "internal", message: error.stack?.includes(error.message) ? error.stack : `${error}` };
  }
  return { kind: "internal", message: String(error) };
}
