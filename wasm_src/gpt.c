// The training step, in layer order, and what the page calls: configure, plan, bind, step.
//
// The page makes two instances. The first, on a tiny memory, only plans: gpt_configure and gpt_plan say
// how many bytes are needed. The second runs, on a memory of that size.

#include "gpt.h"

Workspace work = {0};

static struct {
  Config config;
  size_t slots_count, slots_used, flat_size, threads;
  uint64_t t; // AdamW steps taken
  double loss, norm;
  // laid out by gpt_plan
  Slot *slots;
  Layer *layers;
  float *param, *grad, *m, *v;  // flat
  char *stacks;
  int32_t *tokens;              // (B,T+1)
  int32_t *token_order, *token_starts; // (N) (V+1): positions sorted by token, for the encoder's backward
  Tensor wte, wpe, lnf_g, lnf_b;
  float *encoded;               // (N,C)
  float *lnf, *lnf_mean, *lnf_rstd; // (N,C) (N) (N)
  float *logits;                // (N,V), then their gradient
  double *losses;               // (N)
  double *norm_partial;
  // gradients of activations, one layer at a time
  float *dx, *dnorm, *dattn;    // (N,C): residual stream, behind a layer norm, behind attention
  float *dqkv, *dgelu;          // (N,3C) (N,F)
} gpt;

// ------------------------------------------------------------------------------ what the module is

EXPORT(gpt_simd) int gpt_simd(void) {
#if defined __wasm_relaxed_simd__
  return 2;
#elif defined __wasm_simd128__
  return 1;
#else
  return 0;
#endif
}

EXPORT(gpt_pointer_bytes) int gpt_pointer_bytes(void) { return (int)sizeof(void *); }

// ------------------------------------------------------------------------------ configure and plan

EXPORT(gpt_configure) void gpt_configure(size_t L, size_t H, size_t C, size_t F, size_t T, size_t B,
                                         size_t V, double lr, double beta1, double beta2, double eps,
                                         double weight_decay, double grad_clip) {
  gpt.config = (Config){.L = L, .H = H, .C = C, .D = C / H, .F = F, .T = T, .B = B, .V = V, .N = B * T,
                        .lr = lr, .beta1 = beta1, .beta2 = beta2, .eps = eps,
                        .weight_decay = weight_decay, .grad_clip = grad_clip};
}

// The configuration as the kernels read it, field by field in the order of gpt_configure.
EXPORT(gpt_config_value) double gpt_config_value(int field) {
  const Config *c = &gpt.config;
  const double values[] = {(double)c->L, (double)c->H, (double)c->C, (double)c->F, (double)c->T,
                           (double)c->B, (double)c->V, c->lr, c->beta1, c->beta2, c->eps,
                           c->weight_decay, c->grad_clip};
  return values[field];
}

static Choice *choice_of(int product) {
  Choice *const choices[] = {&work.forward, &work.da, &work.db};
  return choices[product];
}

// What makes a product (0 forward, 1 dA, 2 dB): kernel 0 naive or 1 blocked, with a tile of matmul.c.
EXPORT(gpt_set_kernel) void gpt_set_kernel(int product, int kernel, size_t tile) {
  *choice_of(product) = (Choice){(Kernel)kernel, tile};
}

EXPORT(gpt_kernel) int gpt_kernel(int product) { return (int)choice_of(product)->kernel; }
EXPORT(gpt_tile) size_t gpt_tile(int product) { return choice_of(product)->tile; }

#define STACK_BYTES 65536
#define ALIGN 256

static uint64_t cursor; // 64 bits in both address types: a plan too large for wasm32 must be seen

static void *take(uint64_t count, uint64_t size) {
  uint64_t at = cursor;
  cursor = (at + count * size + ALIGN - 1) / ALIGN * ALIGN;
  return (void *)(size_t)at;
}

static float *floats(uint64_t count) { return take(count, sizeof(float)); }

static uint64_t largest(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t area_floats, area_packed, panels_floats;

// The next plan also holds an area of so many floats for what is measured apart from the step, and room
// for so many packed ones.
EXPORT(gpt_want_area) void gpt_want_area(double floats_wanted, double packed_wanted) {
  area_floats = (uint64_t)floats_wanted;
  area_packed = (uint64_t)packed_wanted;
}

// Lays out all memory from `base` on; returns its end, the same in every instance. `dry` only counts: that
// memory is not there yet.
EXPORT(gpt_plan) double gpt_plan(size_t base, size_t slots, double flat_size, size_t threads, int dry) {
  const Config *c = &gpt.config;
  uint64_t L = c->L, H = c->H, C = c->C, F = c->F, T = c->T, B = c->B, V = c->V, N = B * T;
  uint64_t flat = (uint64_t)flat_size;
  cursor = (base + ALIGN - 1) / ALIGN * ALIGN;
  gpt.slots_count = slots;
  gpt.slots_used = 0;
  gpt.flat_size = (size_t)flat;
  gpt.threads = threads;

  gpt.slots = take(slots, sizeof(Slot));
  gpt.layers = take(L, sizeof(Layer));
  gpt.stacks = take(threads, STACK_BYTES);
  gpt.tokens = take(B * (T + 1), sizeof(int32_t));
  gpt.token_order = take(N, sizeof(int32_t));
  gpt.token_starts = take(V + 1, sizeof(int32_t));
  gpt.losses = take(N, sizeof(double));
  gpt.norm_partial = take(grad_norm_chunks(gpt.flat_size), sizeof(double));

  gpt.param = floats(flat);
  gpt.grad = floats(flat);
  gpt.m = floats(flat);
  gpt.v = floats(flat);

  gpt.encoded = floats(N * C);
  for (uint64_t i = 0; i < L; i++) {
    Layer l = {0};
    l.ln1 = floats(N * C), l.ln1_mean = floats(N), l.ln1_rstd = floats(N);
    l.qkv = floats(N * 3 * C);
    l.attn = floats(N * C), l.attn_top = floats(N * H), l.attn_inverse = floats(N * H);
    l.mid = floats(N * C);
    l.ln2 = floats(N * C), l.ln2_mean = floats(N), l.ln2_rstd = floats(N);
    l.gelu = floats(N * F), l.gelu_slope = floats(N * F);
    l.out = floats(N * C);
    if (!dry) gpt.layers[i] = l;
  }
  gpt.lnf = floats(N * C), gpt.lnf_mean = floats(N), gpt.lnf_rstd = floats(N);
  gpt.logits = floats(N * V);
  gpt.dx = floats(N * C), gpt.dnorm = floats(N * C), gpt.dattn = floats(N * C);
  gpt.dqkv = floats(N * 3 * C), gpt.dgelu = floats(N * F);

  // Every product of the step is one of these or its dA or dB.
  const uint64_t layers[][2] = {{C, 3 * C}, {C, C}, {C, F}, {F, C}, {C, V}}; // (I,O) of y (N,O) = x (N,I) · w
  uint64_t packed = area_packed;
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
    uint64_t I = layers[i][0], O = layers[i][1];
    packed = largest(packed, matmul_packed_floats(N, O, I)); // forward
    packed = largest(packed, matmul_packed_floats(N, I, O)); // dA
    packed = largest(packed, matmul_packed_floats(I, O, N)); // dB
    packed = largest(packed, matmul_packed_floats(O, I, N)); // dB of the head
  }
  uint64_t own = attention_thread_floats(T, C / H), own_panels = matmul_thread_floats();
#ifdef PANELS_APART
  work.own_panels = 0; // the panels' memory holds nothing else
  work.own_floats = (size_t)own_panels;
  work.packed = (float *)(size_t)(threads * own_panels * sizeof(float));
  panels_floats = threads * own_panels + packed;
#else
  own = largest(own, own_panels); // never used at once
  work.packed = floats(packed);
#endif
  own = round_up64(own, 64);
  work.thread_floats = (size_t)own;
  work.thread_scratch = floats(threads * own);
#ifndef PANELS_APART
  work.own_panels = work.thread_scratch, work.own_floats = work.thread_floats;
#endif
  work.partial = floats(largest(layernorm_partial_floats(N, C), bias_partial_floats(N, largest(3 * C, F))));
  work.area = floats(area_floats);
  return (double)cursor;
}

// What the last plan needs of the panels' memory, if they lie apart.
EXPORT(gpt_panels_bytes) double gpt_panels_bytes(void) { return (double)panels_floats * sizeof(float); }

EXPORT(gpt_section) float *gpt_section(int section) {
  float *const sections[] = {gpt.param, gpt.grad, gpt.m, gpt.v};
  return sections[section];
}

EXPORT(gpt_area) float *gpt_area(void) { return work.area; }

EXPORT(gpt_tokens) int32_t *gpt_tokens(void) { return gpt.tokens; }

// The top of a thread's stack.
EXPORT(gpt_stack) char *gpt_stack(size_t thread) { return gpt.stacks + (thread + 1) * STACK_BYTES; }

// ------------------------------------------------------------------------------ the table of tensors

static char name_buffer[sizeof ((Slot *)0)->name];
static char message[96];

EXPORT(gpt_name_buffer) char *gpt_name_buffer(void) { return name_buffer; }
EXPORT(gpt_name_bytes) size_t gpt_name_bytes(void) { return sizeof name_buffer; }
EXPORT(gpt_message) const char *gpt_message(void) { return message; }

// Takes one tensor of the table, in storage order; its name is in the name buffer, zero-terminated.
EXPORT(gpt_add_slot) void gpt_add_slot(size_t offset, size_t size, int decay) {
  Slot *slot = &gpt.slots[gpt.slots_used++];
  for (size_t i = 0; i < sizeof name_buffer; i++) slot->name[i] = name_buffer[i];
  slot->offset = offset;
  slot->size = size;
  slot->decay = decay;
}

static char *append(char *to, const char *text) {
  while (*text) *to++ = *text++;
  *to = 0;
  return to;
}

static char *append_number(char *to, size_t n) {
  if (n >= 10) to = append_number(to, n / 10);
  *to++ = (char)('0' + n % 10);
  *to = 0;
  return to;
}

static int same(const char *a, const char *b) {
  while (*a && *a == *b) a++, b++;
  return *a == *b;
}

// Finds the tensor `name` with `size` floats; what is wrong is left in `message`.
static Tensor find(const char *name, size_t size) {
  for (size_t i = 0; i < gpt.slots_used; i++) {
    const Slot *slot = &gpt.slots[i];
    if (!same(slot->name, name)) continue;
    if (slot->size == size) return (Tensor){gpt.param + slot->offset, gpt.grad + slot->offset};
    append_number(append(append_number(append(append(message, name), " has "), slot->size),
                         " floats, expected "), size);
    return (Tensor){0};
  }
  append(append(message, "no tensor "), name);
  return (Tensor){0};
}

static Tensor find_in(size_t layer, const char *leaf, size_t size) {
  char name[64];
  append(append(append_number(append(name, "h."), layer), "."), leaf);
  return find(name, size);
}

// Binds the table to the model. Returns 0, or 1 with the reason in `message`.
EXPORT(gpt_bind) int gpt_bind(void) {
  const Config *c = &gpt.config;
  size_t C = c->C, F = c->F;
  message[0] = 0;
  gpt.wte = find("wte", c->V * C);
  gpt.wpe = find("wpe", c->T * C);
  for (size_t i = 0; i < c->L; i++) {
    Layer *l = &gpt.layers[i];
    l->ln1_g = find_in(i, "ln1.g", C);
    l->ln1_b = find_in(i, "ln1.b", C);
    l->wqkv = find_in(i, "attn.wqkv", C * 3 * C);
    l->bqkv = find_in(i, "attn.bqkv", 3 * C);
    l->wo = find_in(i, "attn.wo", C * C);
    l->bo = find_in(i, "attn.bo", C);
    l->ln2_g = find_in(i, "ln2.g", C);
    l->ln2_b = find_in(i, "ln2.b", C);
    l->w1 = find_in(i, "mlp.w1", C * F);
    l->b1 = find_in(i, "mlp.b1", F);
    l->w2 = find_in(i, "mlp.w2", F * C);
    l->b2 = find_in(i, "mlp.b2", C);
  }
  gpt.lnf_g = find("lnf.g", C);
  gpt.lnf_b = find("lnf.b", C);
  return message[0] != 0;
}

// ------------------------------------------------------------------------------ the step

static void forward(void) {
  const Config *c = &gpt.config;
  size_t N = c->N, C = c->C, F = c->F;
  OP(encoder_forward, gpt.encoded, gpt.tokens, gpt.wte.w, gpt.wpe.w, c->B, c->T, C);
  const float *x = gpt.encoded;
  for (size_t i = 0; i < c->L; i++) {
    Layer *l = &gpt.layers[i];
    OP(layernorm_forward, l->ln1, l->ln1_mean, l->ln1_rstd, x, l->ln1_g.w, l->ln1_b.w, N, C);
    OP(matmul_forward, l->qkv, l->ln1, l->wqkv.w, l->bqkv.w, 0, N, C, 3 * C);
    OP(attention_forward, l->attn, l->attn_top, l->attn_inverse, l->qkv, c->B, c->T, C, c->H);
    OP(matmul_forward, l->mid, l->attn, l->wo.w, l->bo.w, x, N, C, C);
    OP(layernorm_forward, l->ln2, l->ln2_mean, l->ln2_rstd, l->mid, l->ln2_g.w, l->ln2_b.w, N, C);
    OP(matmul_gelu_forward, l->gelu, l->gelu_slope, l->ln2, l->w1.w, l->b1.w, N, C, F);
    OP(matmul_forward, l->out, l->gelu, l->w2.w, l->b2.w, l->mid, N, F, C);
    x = l->out;
  }
  OP(layernorm_forward, gpt.lnf, gpt.lnf_mean, gpt.lnf_rstd, x, gpt.lnf_g.w, gpt.lnf_b.w, N, C);
  OP(head_forward, gpt.logits, gpt.lnf, gpt.wte.w, N, C, c->V);
}

static const float *input_of(size_t layer) {
  return layer ? gpt.layers[layer - 1].out : gpt.encoded;
}

static void backward(void) {
  const Config *c = &gpt.config;
  size_t N = c->N, C = c->C, F = c->F;
  OP(head_backward_da, gpt.dnorm, gpt.logits, gpt.wte.w, N, C, c->V);
  OP(head_backward_db, gpt.wte.d, gpt.lnf, gpt.logits, N, C, c->V);
  OP(layernorm_backward, gpt.dx, 0, gpt.lnf_g, gpt.lnf_b, gpt.dnorm, input_of(c->L), gpt.lnf_mean,
      gpt.lnf_rstd, N, C);
  for (size_t i = c->L; i-- > 0;) {
    Layer *l = &gpt.layers[i];
    OP(bias_backward, l->b2.d, gpt.dx, N, C);
    OP(matmul_backward_da, gpt.dgelu, gpt.dx, l->w2.w, l->gelu_slope, N, F, C);
    OP(matmul_backward_db, l->w2.d, l->gelu, gpt.dx, N, F, C);
    OP(bias_backward, l->b1.d, gpt.dgelu, N, F);
    OP(matmul_backward_da, gpt.dnorm, gpt.dgelu, l->w1.w, 0, N, C, F);
    OP(matmul_backward_db, l->w1.d, l->ln2, gpt.dgelu, N, C, F);
    OP(layernorm_backward, gpt.dx, 1, l->ln2_g, l->ln2_b, gpt.dnorm, l->mid, l->ln2_mean, l->ln2_rstd, N, C);
    OP(bias_backward, l->bo.d, gpt.dx, N, C);
    OP(matmul_backward_da, gpt.dattn, gpt.dx, l->wo.w, 0, N, C, C);
    OP(matmul_backward_db, l->wo.d, l->attn, gpt.dx, N, C, C);
    OP(attention_backward, gpt.dqkv, gpt.dattn, l->attn_top, l->attn_inverse, l->qkv, c->B, c->T, C, c->H);
    OP(bias_backward, l->bqkv.d, gpt.dqkv, N, 3 * C);
    OP(matmul_backward_da, gpt.dnorm, gpt.dqkv, l->wqkv.w, 0, N, C, 3 * C);
    OP(matmul_backward_db, l->wqkv.d, l->ln1, gpt.dqkv, N, C, 3 * C);
    OP(layernorm_backward, gpt.dx, 1, l->ln1_g, l->ln1_b, gpt.dnorm, input_of(i), l->ln1_mean, l->ln1_rstd,
        N, C);
  }
  OP(encoder_backward, gpt.wte.d, gpt.wpe.d, gpt.dx, gpt.tokens, gpt.token_order, gpt.token_starts, c->B, c->T,
      C, c->V);
}

EXPORT(gpt_reset) void gpt_reset(double t) {
  gpt.t = (uint64_t)t;
  float *const moments[] = {gpt.m, gpt.v};
  for (int s = 0; s < 2; s++)
    for (size_t i = 0; i < gpt.flat_size; i += 4) store4(moments[s] + i, splat4(0));
}

// Trains on the batch in the token buffer. Returns 0, or 1 if a token is outside the vocabulary.
EXPORT(gpt_step) int gpt_step(void) {
  const Config *c = &gpt.config;
  for (size_t i = 0; i < c->B * (c->T + 1); i++)
    if ((uint32_t)gpt.tokens[i] >= c->V) return 1;
  profile_begin();
  forward();
  gpt.loss = crossentropy(gpt.logits, gpt.losses, gpt.tokens, c->B, c->T, c->V);
  profile_lap(OP_crossentropy);
  backward();
  gpt.norm = grad_norm(gpt.grad, gpt.norm_partial, gpt.flat_size);
  profile_lap(OP_grad_norm);
  double scale = c->grad_clip > 0 && gpt.norm > c->grad_clip ? c->grad_clip / (gpt.norm + 1e-6) : 1;
  gpt.t++;
  OP(adamw, gpt.param, gpt.grad, gpt.m, gpt.v, gpt.slots, gpt.slots_used, c, gpt.t, scale);
  return 0;
}

EXPORT(gpt_loss) double gpt_loss(void) { return gpt.loss; }
EXPORT(gpt_norm) double gpt_norm(void) { return gpt.norm; }
