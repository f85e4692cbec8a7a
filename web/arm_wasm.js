// The WASM arm: the C kernels on a shared memory, on threads of our own pool; wasm32 and wasm64.

import { address, text_at } from "./arm_wasm_memory.js";
import { operation_floats, operations } from "./arm_wasm_operations.js";
import { ArmError } from "./errors.js";

const PAGE_BYTES = 65536;
const PANELS_PAGES = 65536; // the most of a memory with 32-bit addresses, and what the module's import says
const PLANNING_PAGES = 16; // what the module declares as its least
const ALIGN = 256; // bytes that a plan may lose where its start is rounded up
const LEAST_WORKER_MS = 30000; // a worker that has not started after this never will
const SIMD = ["scalar", "simd128", "relaxed"]; // by the module's own constant
const KERNELS = ["naive", "blocked"];
const PRODUCTS = ["mm_fwd", "mm_da", "mm_db"]; // by gpt_set_kernel's and kernel_product's numbers
const TILE_OF = { mm_fwd: "tile_fwd", mm_da: "tile_da", mm_db: "tile_db" }; // options
const TRIAD_FLOATS = 16 << 20; // of each of three arrays: 192 MiB in all, beyond the caches of most machines
const TRIAD_SCALE = 3;
const MADD_ROUNDS = 2 ** 19; // 2 to 4 ms: long against waking a thread
const SECTIONS = ["param", "grad", "m", "v"];
const SHAPE = ["n_layer", "n_head", "d_model", "d_ff", "ctx", "batch", "vocab"]; // as gpt_configure takes them
const RECIPE = ["lr", "beta1", "beta2", "eps", "weight_decay", "grad_clip"];

export async function open(job, io) {
  const { name, options } = job.arm;
  const wide = name === "wasm64";
  check_options(options);
  check_browser(options, wide);

  const bytes = await io.bytes("wasm");
  const sha256 = hex(await crypto.subtle.digest("SHA-256", bytes));
  const module = await compile(bytes, options.simd);
  const size = (n) => (wide ? BigInt(n) : n); // a size_t for the module
  const { base, bytes: planned, pages, maximum, panels_pages } = await plan(module, job, wide);
  const memory = allocate(pages, maximum, wide, is_shared(options));
  const panels = allocate_panels(module, panels_pages, is_shared(options));
  const exports = await instantiate(module, memory, panels);

  configure(exports, job, size);
  want_area(exports, memory, job, size);
  lay_out(base);
  choose_kernels(exports, options, size);
  const workers = await start_threads(module, { memory, panels }, exports, options.threads, size);

  const growths = []; // pages each
  let steps_done = 0;

  // Places every buffer from `at` on.
  function lay_out(at) {
    exports.gpt_plan(size(at), size(job.tensors.length), job.flat_size, size(options.threads), 0);
    bind(exports, memory, job.tensors, size);
  }

  // For tests: the memory grows by a whole plan while the threads are there, and everything moves into
  // what is new. The threads' stacks stay where they are.
  function grow_and_move() {
    const from = SECTIONS.map((_, i) => address(exports.gpt_section(i)));
    const at = memory.buffer.byteLength;
    growths.push(grow(memory, Math.ceil(planned / PAGE_BYTES), size));
    lay_out(at);
    from.forEach((place, i) => {
      const to = address(exports.gpt_section(i));
      new Float32Array(memory.buffer, to, job.flat_size).set(new Float32Array(memory.buffer, place, job.flat_size));
    });
  }

  // Views are made anew each time, from places asked anew: a view does not grow with its memory.
  function view(what, at, count) {
    const index = SECTIONS.indexOf(what);
    if (index < 0) throw new ArmError("protocol", `no section ${what}`);
    if (!(at >= 0 && count >= 0 && at + count <= job.flat_size)) {
      throw new ArmError("protocol", `${what}: floats ${at}…${at + count} of ${job.flat_size}`);
    }
    return new Float32Array(memory.buffer, address(exports.gpt_section(index)) + 4 * at, count);
  }

  return {
    ran: describe(exports, memory, sha256, name, size),

    reset(t) {
      return call(exports, workers, () => exports.gpt_reset(t));
    },

    write(what, at, data) {
      view(what, at, data.length).set(data);
    },

    read(what, at, count) {
      return view(what, at, count).slice();
    },

    async train(tokens, steps) {
      const batch = job.config.batch * (job.config.ctx + 1);
      const losses = [];
      const grad_norms = [];
      for (let step = 0; step < steps; step++) {
        if (steps_done === options.test_grow_at) grow_and_move();
        new Int32Array(memory.buffer, address(exports.gpt_tokens()), batch).set(tokens.subarray(step * batch, (step + 1) * batch));
        if (await call(exports, workers, () => exports.gpt_step())) {
          throw new ArmError("validation", `step ${step} of the window: a token is outside 0…${job.config.vocab - 1}`);
        }
        if (exports.pool_failed()) await explain(exports, workers, new Error("a thread ended"));
        losses.push(exports.gpt_loss());
        grad_norms.push(exports.gpt_norm());
        steps_done++;
      }
      return { losses, grad_norms };
    },

    readback() {},

    workbench: workbench(exports, memory, options.threads, size),
    profile: profiler(exports, memory),

    memory() {
      const final_bytes = memory.buffer.byteLength;
      return {
        address_type: wide ? "i64" : "i32",
        shared: lies_shared(memory),
        initial_pages: pages,
        maximum_pages: maximum,
        final_pages: final_bytes / PAGE_BYTES,
        initial_bytes: pages * PAGE_BYTES,
        maximum_bytes: maximum * PAGE_BYTES,
        final_bytes,
        planned_bytes: planned,
        panels_bytes: panels?.buffer.byteLength ?? 0, // in a memory of their own
        sections_at: Object.fromEntries(SECTIONS.map((what, i) => [what, address(exports.gpt_section(i))])),
        growths: growths.length,
        growths_pages: growths,
      };
    },

    close() {
      exports.pool_quit();
      for (const worker of workers) worker.terminate();
    },
  };
}

// ------------------------------------------------------------------------------ what is asked, what is there

// Two options are for tests and not in the driver's grammar: `test_base_bytes`, by which everything lies
// higher, so that buffers come to lie beyond 4 or 8 GiB; `test_grow_at`, the step (from 0, as trained since
// `open`) before which the memory grows and everything moves into the new part.
function check_options(options) {
  const { threads, simd, shared = "on", test_base_bytes = 0, test_grow_at = 0 } = options;
  if (!Number.isInteger(threads) || threads < 1) {
    throw new ArmError("protocol", `threads=${threads}: expected a whole number from 1`);
  }
  if (!["on", "off"].includes(shared)) throw new ArmError("protocol", `shared=${shared}: expected on or off`);
  if (shared === "off" && threads > 1) throw new ArmError("protocol", `threads=${threads} needs shared=on`);
  for (const [option, value] of Object.entries({ test_base_bytes, test_grow_at })) {
    if (!(Number.isSafeInteger(value) && value >= 0)) {
      throw new ArmError("protocol", `${option}=${value}: expected a whole number from 0`);
    }
  }
  if (!SIMD.includes(simd)) throw new ArmError("protocol", `simd=${simd}: expected one of ${SIMD.join(", ")}`);
  for (const product of PRODUCTS) {
    if (!KERNELS.includes(options[product])) {
      throw new ArmError("protocol", `${product}=${options[product]}: expected one of ${KERNELS.join(", ")}`);
    }
  }
}

// The module's tiles, rows × columns, by its own numbers.
function tiles_of(exports, size) {
  return Array.from({ length: Number(exports.matmul_tiles()) }, (_, i) => (
    `${exports.matmul_tile_rows(size(i))}x${exports.matmul_tile_columns(size(i))}`
  ));
}

function tile_number(exports, size, name, where) {
  const tiles = tiles_of(exports, size);
  const index = tiles.indexOf(name);
  if (index < 0) throw new ArmError("unsupported", `${where}=${name}: this module has the tiles ${tiles.join(", ")}`);
  return size(index);
}

function choose_kernels(exports, options, size) {
  for (const [index, product] of PRODUCTS.entries()) {
    const tile = tile_number(exports, size, options[TILE_OF[product]], TILE_OF[product]);
    exports.gpt_set_kernel(index, KERNELS.indexOf(options[product]), tile);
  }
}

// What was asked for.
function is_shared({ shared = "on" }) {
  return shared === "on";
}

// What is there; a page that shares nothing may not even have the name.
function lies_shared(memory) {
  return typeof SharedArrayBuffer !== "undefined" && memory.buffer instanceof SharedArrayBuffer;
}

function check_browser(options, wide) {
  const { simd } = options;
  if (is_shared(options) && (!self.crossOriginIsolated || typeof SharedArrayBuffer === "undefined")) {
    throw new ArmError("unsupported", "no shared memory: the page is not cross-origin isolated");
  }
  if (wide && !has_memory64()) {
    throw new ArmError("unsupported", "this browser has no 64-bit WebAssembly memory (Memory64); use the arm wasm");
  }
  if (wide && simd !== "scalar" && !WebAssembly.validate(TWO_MEMORIES_PROBE)) {
    throw new ArmError("unsupported", "this browser allows a module one memory only (no multi-memory); use the arm wasm");
  }
  if (simd !== "scalar" && !WebAssembly.validate(SIMD_PROBE)) {
    throw new ArmError("unsupported", `simd=${simd}: this browser has no WebAssembly SIMD; use simd=scalar`);
  }
}

// With the older key `index` or with Number sizes this would succeed or throw for the wrong reason.
function has_memory64() {
  try {
    new WebAssembly.Memory({ address: "i64", initial: 1n, maximum: 1n });
    return true;
  } catch {
    return false;
  }
}

// (func (result v128) (i8x16.splat (i32.const 0)))
const SIMD_PROBE = Uint8Array.of(
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 0, 253, 15, 11,
);

// (memory 0) (memory 0)
const TWO_MEMORIES_PROBE = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 5, 5, 2, 0, 0, 0, 0);

async function compile(bytes, simd) {
  try {
    return await WebAssembly.compile(bytes);
  } catch (error) {
    if (simd === "relaxed" && !WebAssembly.validate(bytes)) {
      throw new ArmError("unsupported", `simd=relaxed: this browser refuses the module (${error.message}); use simd=simd128`);
    }
    throw new ArmError("compile", `the module does not compile: ${error.message}`);
  }
}

// ------------------------------------------------------------------------------ memory

function allocate(initial, maximum, wide, shared) {
  try {
    return wide
      ? new WebAssembly.Memory({ address: "i64", initial: BigInt(initial), maximum: BigInt(maximum), shared })
      : new WebAssembly.Memory({ initial, maximum, shared });
  } catch (error) {
    throw new ArmError("out-of-memory", `a memory of ${mib(initial)} (shared: ${shared}) was refused: ${error.message}`);
  }
}

// The second memory of a module that keeps its panels apart (wasm_src/panels.h): 32-bit addresses, as large as
// the plan says from the start. Undefined for other modules.
function allocate_panels(module, pages, shared) {
  if (!WebAssembly.Module.imports(module).some(({ name }) => name === "panels")) return undefined;
  if (pages > PANELS_PAGES) {
    throw new ArmError("out-of-memory", `the products' packed operands need ${mib(pages)}, their memory holds ${mib(PANELS_PAGES)}`);
  }
  try {
    return new WebAssembly.Memory({ initial: pages, maximum: PANELS_PAGES, shared });
  } catch (error) {
    throw new ArmError("out-of-memory", `a memory of ${mib(pages)} for packed operands was refused: ${error.message}`);
  }
}

async function instantiate(module, memory, panels) {
  try {
    // The clock is the profiler's, which asks it only while it is on.
    const env = { memory, panels, now: () => performance.now() };
    return (await WebAssembly.instantiate(module, { env })).exports;
  } catch (error) {
    throw new ArmError("compile", `the module cannot be instantiated: ${error.message}`);
  }
}

// Grows a memory by `pages`, which it returns. Threads that run see the new size; views made before do not.
function grow(memory, pages, size) {
  const before = memory.buffer.byteLength;
  try {
    memory.grow(size(pages));
  } catch (error) {
    throw new ArmError("out-of-memory", `growing the memory by ${mib(pages)} was refused: ${error.message}`);
  }
  const grown = (memory.buffer.byteLength - before) / PAGE_BYTES;
  if (grown !== pages) throw new ArmError("internal", `the memory grew by ${grown} pages instead of ${pages}`);
  return pages;
}

function mib(pages) {
  return `${((pages * PAGE_BYTES) / 2 ** 20).toFixed(0)} MiB`;
}

// Where the job's buffers begin, how many bytes they take, and the memory's pages at first and at most.
// A first instance on a tiny memory only counts.
async function plan(module, job, wide) {
  const shared = is_shared(job.arm.options);
  const memory = allocate(PLANNING_PAGES, PLANNING_PAGES, wide, shared);
  const exports = await instantiate(module, memory, allocate_panels(module, 0, shared));
  const size = (n) => (wide ? BigInt(n) : n);
  configure(exports, job, size);
  want_area(exports, memory, job, size);
  const { threads, test_base_bytes = 0, test_grow_at } = job.arm.options;
  const base = Number(exports.__heap_base.value) + test_base_bytes;
  // Counted from the heap's own base: a test's may be one that 32 bits do not hold.
  const heap = exports.__heap_base.value;
  const bytes = exports.gpt_plan(heap, size(job.tensors.length), job.flat_size, size(threads), 1) - Number(heap) + ALIGN;
  const pages = Math.max(PLANNING_PAGES, Math.ceil((base + bytes) / PAGE_BYTES));
  const maximum = test_grow_at === undefined ? pages : pages + Math.ceil(bytes / PAGE_BYTES);
  const limit = wide ? 2 ** 34 : 2 ** 32;
  if (maximum * PAGE_BYTES > limit) {
    const gib = (n) => (n / 2 ** 30).toFixed(2);
    const advice = wide ? "" : "; use the arm wasm64";
    const need = gib(maximum * PAGE_BYTES);
    throw new ArmError("out-of-memory", `the job needs ${need} GiB, ${wide ? 64 : 32}-bit memory holds ${gib(limit)}${advice}`);
  }
  return { base, bytes, pages, maximum, panels_pages: Math.ceil(exports.gpt_panels_bytes() / PAGE_BYTES) };
}

function configure(exports, { config }, size) {
  exports.gpt_configure(...SHAPE.map((key) => size(config[key])), ...RECIPE.map((key) => config[key]));
}

function bind(exports, memory, tensors, size) {
  const name_bytes = Number(exports.gpt_name_bytes());
  const buffer = new Uint8Array(memory.buffer, address(exports.gpt_name_buffer()), name_bytes);
  for (const { name, offset, size: floats, decay } of tensors) {
    const text = new TextEncoder().encode(name);
    if (text.length >= name_bytes) throw new ArmError("protocol", `tensor name too long: ${name}`);
    buffer.fill(0);
    buffer.set(text);
    exports.gpt_add_slot(size(offset), size(floats), decay ? 1 : 0);
  }
  if (exports.gpt_bind()) {
    throw new ArmError("protocol", `table of tensors: ${text_at(memory, exports.gpt_message())}`);
  }
}

// ------------------------------------------------------------------------------ workbench

// Memory for what the program asks for beside training.
function want_area(exports, memory, { program, arm }, size) {
  let floats = program.some(({ op }) => op === "roofline") ? 3 * TRIAD_FLOATS : 0;
  let packed = 0;
  for (const { kernel, operation } of program) {
    if (operation) floats = Math.max(floats, operation_floats(exports, memory, operation, arm.options.threads, size));
    if (!kernel) continue;
    const { M, N, K } = kernel;
    floats = Math.max(floats, exports.kernel_floats(M, N, K));
    packed = Math.max(packed, exports.kernel_packed_floats(M, N, K));
  }
  exports.gpt_want_area(floats, packed);
}

function workbench(exports, memory, threads, size) {
  return {
    flavour: exports.gpt_simd() === 2 ? "relaxed multiply-add" : "multiply and add",
    threads,
    chains: (many) => Number(exports.roofline_chains(many)),

    // One piece of multiply-adds per chunk, on registers alone; returns its FLOPs.
    madds(many, chunks) {
      if (!exports.roofline_madds(many, size(MADD_ROUNDS), size(chunks), 1)) {
        throw new ArmError("internal", "the roofline's multiply-adds gave a wrong sum");
      }
      return 2 * 4 * this.chains(many) * MADD_ROUNDS * chunks;
    },

    // One pass of a = b + scale·c. Its bytes are counted as STREAM does: two read, one written.
    triad: (chunks) => exports.roofline_triad(size(TRIAD_FLOATS), size(chunks), TRIAD_SCALE),

    // Fills the three arrays, since memory never written to is not there yet.
    triad_bytes() {
      new Float32Array(memory.buffer, address(exports.gpt_area()), 3 * TRIAD_FLOATS).fill(1);
      return 3 * 4 * TRIAD_FLOATS;
    },

    // A kernel's operands; its output is NaN until it is written.
    load({ M, N, K }, a, b) {
      const place = (operand, count) => (
        new Float32Array(memory.buffer, address(exports.kernel_operand(operand, size(M), size(N), size(K))), count)
      );
      place(0, M * K).set(a);
      place(1, K * N).set(b);
      place(2, M * N).fill(NaN);
    },

    product({ product, kernel, tile, M, N, K }, times) {
      exports.kernel_product(
        PRODUCTS.indexOf(product), KERNELS.indexOf(kernel), tile_number(exports, size, tile, "tile"),
        size(M), size(N), size(K), size(times),
      );
    },

    output({ M, N, K }) {
      const at = address(exports.kernel_operand(2, size(M), size(N), size(K)));
      return new Float32Array(memory.buffer, at, M * N).slice();
    },

    // Chunks that last `slowness` times as long on one thread as on the others → chunks by thread.
    uneven(chunks, slow, slowness) {
      exports.pool_uneven(size(chunks), size(slow), size(slowness));
      return Array.from({ length: threads }, (_, thread) => Number(exports.pool_claimed(size(thread))));
    },

    // Forks are for this many threads, until it is said again.
    use: (count) => exports.pool_use(size(count)),

    ...operations(exports, memory, size, TRIAD_SCALE),

    // How often `run` forks, and into how many chunks of work in all.
    dispatched(run) {
      const before = [exports.pool_forks(), exports.pool_chunks()];
      run();
      return { forks: exports.pool_forks() - before[0], chunks: exports.pool_chunks() - before[1] };
    },

    // Empty forks and joins.
    forks: (count) => exports.pool_empty_forks(size(count)),

    // The same, in which every thread takes part.
    meetings: (count) => exports.pool_meetings(size(count)),
  };
}

// ------------------------------------------------------------------------------ profile

// Totals over all steps since `start`, one entry per operation that ran.
function profiler(exports, memory) {
  return {
    start: () => exports.profile_use(1),

    stop() {
      exports.profile_use(0);
      const all = Array.from({ length: exports.profile_operations() }, (_, i) => (
        { op: text_at(memory, exports.profile_name(i)), calls: exports.profile_calls(i), ms: exports.profile_ms(i) }
      ));
      return all.filter(({ calls }) => calls > 0);
    },
  };
}

// ------------------------------------------------------------------------------ threads

async function start_threads(module, memories, exports, threads, size) {
  const workers = [];
  try {
    const ready = [];
    for (let thread = 1; thread < threads; thread++) {
      const worker = new Worker(new URL("pool.js", import.meta.url), { type: "module", name: `pool ${thread}` });
      workers.push(worker);
      ready.push(
        new Promise((resolve, refuse) => {
          const fail = (why) => {
            worker.failure = why;
            refuse(new ArmError("failed", `thread ${thread} of ${threads} did not start: ${why}`));
          };
          worker.onmessage = ({ data }) => (data.kind === "ready" ? resolve() : fail(data.message));
          worker.onerror = (event) => {
            event.preventDefault();
            fail(event.message ?? "its script did not load");
          };
        }),
      );
      worker.postMessage({ module, memories, stack: exports.gpt_stack(size(thread)), thread: size(thread) });
    }
    await within(LEAST_WORKER_MS, Promise.all(ready), `not all of ${threads} threads started`);
    const deadline = performance.now() + LEAST_WORKER_MS;
    while (Number(exports.pool_started()) < threads - 1) {
      if (performance.now() > deadline) throw new ArmError("failed", `not all of ${threads} threads entered the pool`);
      await pause(1);
    }
    exports.pool_use(size(threads));
    return workers;
  } catch (error) {
    for (const worker of workers) worker.terminate();
    throw error;
  }
}

// A call that may trap, here or on another thread.
function call(exports, workers, run) {
  try {
    return run();
  } catch (error) {
    if (!(error instanceof WebAssembly.RuntimeError)) throw error;
    return explain(exports, workers, error);
  }
}

async function explain(exports, workers, error) {
  if (exports.pool_failed()) await pause(50); // the thread's own message is on its way
  const reason = workers.map((worker) => worker.failure).find(Boolean) ?? error.stack ?? error.message;
  throw new ArmError("crash", `the module trapped: ${reason}`);
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

function within(ms, promise, message) {
  let timer;
  const late = new Promise((_, refuse) => {
    timer = setTimeout(() => refuse(new ArmError("failed", `${message} within ${ms / 1000} s`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

// ------------------------------------------------------------------------------ what runs

// All of it is asked from the running module and its memory.
function describe(exports, memory, sha256, name, size) {
  const value = (field) => exports.gpt_config_value(field);
  const hyper = Object.fromEntries([...SHAPE, ...RECIPE].map((key, field) => [key, value(field)]));
  const tiles = tiles_of(exports, size);
  const by_product = (of) => PRODUCTS.map((product, index) => of(product, index));
  return {
    arm: name,
    module_sha256: sha256,
    simd: SIMD[exports.gpt_simd()],
    address_type: exports.gpt_pointer_bytes() === 8 ? "i64" : "i32",
    threads: 1 + Number(exports.pool_started()),
    shared: lies_shared(memory) ? "on" : "off",
    kernels: Object.fromEntries(by_product((product, i) => [product, KERNELS[exports.gpt_kernel(i)]])),
    tiles: Object.fromEntries(by_product((product, i) => [TILE_OF[product], tiles[Number(exports.gpt_tile(i))]])),
    hyper,
  };
}

function hex(buffer) {
  return Array.from(new Uint8Array(buffer), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
