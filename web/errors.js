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

const HERE = new URL(".", self.location.href).href; // holds port and token, which differ on every run
const NO_MEMORY = /allocat|out of memory/i;

// Any thrown value → {kind, message}, a PageFailure without its `op`.
export function describe(error) {
  // By its name: a module of another source has a class of its own.
  if (error instanceof ArmError || error?.name === "ArmError") {
    const kind = KINDS.includes(error.kind) ? error.kind : "internal";
    return { kind, message: error.message };
  }
  if (!(error instanceof Error)) return { kind: "internal", message: String(error).replaceAll(HERE, "") };
  const words = error.stack?.includes(error.message) ? error.stack : `${error}`;
  const kind = error instanceof RangeError && NO_MEMORY.test(error.message) ? "out-of-memory" : "internal";
  return { kind, message: words.replaceAll(HERE, "") };
}
