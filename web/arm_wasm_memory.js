// Reading what the WASM module's pointers point to.

// A pointer from the module as a byte offset: 32-bit ones arrive signed, those above 2 GiB negative.
export function address(pointer) {
  return typeof pointer === "bigint" ? Number(pointer) : pointer >>> 0;
}

// A zero-terminated text of the module's, of at most 96 bytes.
export function text_at(memory, pointer) {
  const bytes = new Uint8Array(memory.buffer, address(pointer), 96).slice();
  return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
}
