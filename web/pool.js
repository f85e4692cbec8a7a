// A thread of the WASM pool: its own instance on the shared memories, its own stack. It lives inside
// pool_worker until pool_quit; the page then ends this worker.

self.onmessage = async ({ data: { module, memories, stack, thread } }) => {
  let instance;
  try {
    instance = await WebAssembly.instantiate(module, { env: { ...memories, now: () => performance.now() } });
    instance.exports.__stack_pointer.value = stack;
    self.postMessage({ kind: "ready" });
    instance.exports.pool_worker(thread);
  } catch (error) {
    // The caller may wait for a chunk that this thread has claimed: first let it go on, then say why.
    instance?.exports.pool_fail();
    self.postMessage({ kind: "failed", message: String(error?.stack ?? error) });
  }
};
