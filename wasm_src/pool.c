// A fork-join pool over shared memory. Thread 0 is the caller; the others live in pool_worker.
//
// A fork publishes a task and then one 64-bit ticket: an epoch (high half) and the chunks left (low
// half). A thread claims a chunk by lowering the ticket with compare-and-swap. A claim that succeeds
// belongs to the epoch whose task the thread has read, so a thread that wakes late finds nothing to do
// and can never run old work; and the join waits for chunks, not for threads: a slow or sleeping thread
// delays it by at most the chunk that it has claimed.

#include "gpt.h"

#define SPIN_WORKER 20000 // looks at the ticket before a worker sleeps: tens of microseconds
#define SPIN_JOIN 20000
#define JOIN_TIMEOUT_NS 50000000ll // a sleeping join looks for a failed worker this often

static struct {
  Task task;
  void *args;
  size_t chunks;
  size_t threads; // those that take part, the caller included
  _Alignas(64) uint64_t ticket;
  _Alignas(64) uint32_t epoch; // low half of the ticket's epoch; what sleeping workers wait on
  uint32_t sleepers;
  _Alignas(64) uint32_t done; // chunks done in this epoch; what a sleeping join waits on
  uint32_t joining;           // the caller sleeps
  _Alignas(64) uint32_t started;
  uint32_t failed; // a worker trapped
  uint32_t quit;
} pool = {.threads = 1};

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), v, __ATOMIC_SEQ_CST)
#define ADD(x, v) __atomic_add_fetch(&(x), v, __ATOMIC_SEQ_CST)

#ifdef __wasm_atomics__
static void wait(uint32_t *word, uint32_t seen, int64_t timeout_ns) {
  __builtin_wasm_memory_atomic_wait32((int32_t *)word, (int32_t)seen, timeout_ns);
}

static void notify(uint32_t *word) { __builtin_wasm_memory_atomic_notify((int32_t *)word, ~0u); }
#else // memory that nobody shares: there is one thread, which never waits
static void wait(uint32_t *word, uint32_t seen, int64_t timeout_ns) {
  (void)word, (void)seen, (void)timeout_ns;
  __builtin_trap();
}

static void notify(uint32_t *word) { (void)word; }
#endif

// Claims and runs chunks until none is left. Threads beyond those that take part leave them alone.
static void work_on(size_t thread) {
  if (thread >= LOAD(pool.threads)) return;
  uint64_t ticket = LOAD(pool.ticket);
  while ((uint32_t)ticket) {
    Task task = pool.task;
    void *args = pool.args;
    size_t chunk = pool.chunks - (uint32_t)ticket;
    if (__atomic_compare_exchange_n(&pool.ticket, &ticket, ticket - 1, 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST)) {
      task(args, chunk, thread);
      uint32_t done = ADD(pool.done, 1);
      if (done == (uint32_t)pool.chunks && LOAD(pool.joining)) notify(&pool.done);
      ticket = LOAD(pool.ticket);
    }
  }
}

static uint64_t forks, forked_chunks; // since the start, counted by the caller: a kernel's geometry

EXPORT(pool_forks) double pool_forks(void) { return (double)forks; }
EXPORT(pool_chunks) double pool_chunks(void) { return (double)forked_chunks; }

void pool_run(Task task, void *args, size_t chunks) {
  forks++;
  forked_chunks += chunks;
  if (pool.threads == 1 || chunks <= 1) {
    for (size_t chunk = 0; chunk < chunks; chunk++) task(args, chunk, 0);
    return;
  }
  pool.task = task;
  pool.args = args;
  pool.chunks = chunks;
  STORE(pool.done, 0);
  uint32_t epoch = pool.epoch + 1;
  STORE(pool.ticket, (uint64_t)epoch << 32 | (uint32_t)chunks);
  STORE(pool.epoch, epoch);
  if (LOAD(pool.sleepers)) notify(&pool.epoch);

  work_on(0);

  uint32_t done;
  for (size_t spin = 0; (done = LOAD(pool.done)) != (uint32_t)chunks; spin++) {
    if (spin < SPIN_JOIN) continue;
    if (LOAD(pool.failed)) __builtin_trap();
    STORE(pool.joining, 1);
    if ((done = LOAD(pool.done)) != (uint32_t)chunks) wait(&pool.done, done, JOIN_TIMEOUT_NS);
    STORE(pool.joining, 0);
  }
}

// A worker's whole life.
EXPORT(pool_worker) void pool_worker(size_t thread) {
  ADD(pool.started, 1);
  uint32_t seen = 0;
  while (!LOAD(pool.quit)) {
    work_on(thread);
    size_t spin = 0;
    while (LOAD(pool.epoch) == seen && spin < SPIN_WORKER) spin++;
    if (LOAD(pool.epoch) == seen) {
      ADD(pool.sleepers, 1);
      wait(&pool.epoch, seen, -1);
      ADD(pool.sleepers, -1);
    }
    seen = LOAD(pool.epoch);
  }
}

// From here on forks use this many threads; the others must have started.
EXPORT(pool_use) void pool_use(size_t threads) { STORE(pool.threads, threads); }

EXPORT(pool_started) size_t pool_started(void) { return LOAD(pool.started); }

EXPORT(pool_failed) int pool_failed(void) { return (int)LOAD(pool.failed); }

// A worker's last word when it traps: the join that waits for its chunk must not wait for ever.
EXPORT(pool_fail) void pool_fail(void) {
  STORE(pool.failed, 1);
  notify(&pool.done);
}

EXPORT(pool_quit) void pool_quit(void) {
  STORE(pool.quit, 1);
  ADD(pool.epoch, 1);
  notify(&pool.epoch);
}

size_t pool_threads(void) { return pool.threads; }

// An empty fork and join, `count` times: what each step pays about 20·L times.
static void nothing(void *args, size_t chunk, size_t thread) {
  (void)args, (void)chunk, (void)thread;
}

EXPORT(pool_empty_forks) void pool_empty_forks(size_t count) {
  for (size_t i = 0; i < count; i++) pool_run(nothing, 0, 2 * pool.threads);
}

// Chunks that take one thread longer than the others, as a slow core would; told by counting, so that nothing
// depends on a clock. A chunk of the slow thread lasts until the others have done `slowness` more, or all
// that there is for them.
typedef struct {
  size_t slow;
  uint32_t chunks, slowness, begun, done_by_others;
} Uneven;

#define MOST_COUNTED 256
static uint32_t claimed[MOST_COUNTED]; // chunks by thread

static void uneven(void *args, size_t chunk, size_t thread) {
  Uneven *u = args;
  (void)chunk;
  uint32_t mine = ADD(claimed[thread], 1);
  if (thread != u->slow) {
    while (!LOAD(u->begun)) continue; // else there may be nothing left for a thread that wakes late
    ADD(u->done_by_others, 1);
    return;
  }
  STORE(u->begun, 1);
  uint32_t until = LOAD(u->done_by_others) + u->slowness, all = u->chunks - mine;
  while (LOAD(u->done_by_others) < (until < all ? until : all)) continue;
}

// Needs 2 to 256 threads and at least as many chunks; pool_claimed tells who ran how many.
EXPORT(pool_uneven) void pool_uneven(size_t chunks, size_t slow, size_t slowness) {
  Uneven u = {.slow = slow, .chunks = (uint32_t)chunks, .slowness = (uint32_t)slowness};
  for (size_t thread = 0; thread < MOST_COUNTED; thread++) claimed[thread] = 0;
  pool_run(uneven, &u, chunks);
}

EXPORT(pool_claimed) size_t pool_claimed(size_t thread) { return claimed[thread]; }

// Forks and joins in which every thread takes part: a chunk ends when all have begun.
static void meet(void *args, size_t chunk, size_t thread) {
  uint32_t *met = args;
  (void)chunk, (void)thread;
  ADD(*met, 1);
  while (LOAD(*met) < (uint32_t)pool.threads) continue;
}

EXPORT(pool_meetings) void pool_meetings(size_t count) {
  for (size_t i = 0; i < count; i++) {
    uint32_t met = 0;
    pool_run(meet, &met, pool.threads);
  }
}
