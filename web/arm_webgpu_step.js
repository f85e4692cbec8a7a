// The training step as data: which buffers there are, and which dispatches make a step, in order.
//
// Letters: L layers, H heads, C d_model, D = C/H, F d_ff, T context, B batch, N = B·T, V vocab.
// A view is {buffer, at, size}, in floats; every view begins at a multiple of 64 floats and its buffer
// goes on to the next one, so that kernels may load whole vectors of four at its end.

import { ArmError } from "./errors.js";

export const BLOCK = 64; // floats: alignment of tensors and views
export const RING = 4096; // steps whose results the device keeps until they are read
export const FACTS = { slot: 0, correction1: 1, correction2: 2 }; // words of `batch` before the tokens

// Left operands that hold gradients; products in halves scale them.
const GRADIENTS = new Set(["dx", "dc", "df", "dqkv", "logits"]);
// Precision → suffix of the products' kernels that read weights.
const REDUCED = { storage: "_w16", compute: "_f16" };

export const pad = (floats) => Math.ceil(floats / BLOCK) * BLOCK;

export function shape_of(config) {
  const { n_layer: L, n_head: H, d_model: C, d_ff: F, ctx: T, batch: B, vocab: V } = config;
  return { L, H, C, D: C / H, F, T, B, N: B * T, V };
}

// ------------------------------------------------------------------------------ buffers

// Buffer name → {floats, binding, role}; `binding` is the largest part of it that a kernel sees. An
// activation read by backward has one slice per layer. `dispatches` as from step_of.
export function buffers_of({ L, H, C, F, N, V, B, T }, flat_size, { partials, f16 }, dispatches) {
  const slices = (count, floats) => ({ floats: count * pad(floats), binding: pad(floats) });
  const per_layer = (floats) => slices(L, floats);
  const groups = {
    state: { param: flat_size, grad: flat_size, m: flat_size, v: flat_size },
    halves: f16 === "off" ? {} : { param16: pad(flat_size / 2) }, // the weights again, two to a word
    activations: {
      x: slices(L + 1, N * C), // the residual stream between layers, (N, C)
      ln1: per_layer(N * C), // layer norms' outputs
      ln1_stats: per_layer(2 * N), // (mean, rstd) per row
      qkv: per_layer(N * 3 * C),
      att: per_layer(N * C), // heads' outputs before their projection
      lse: per_layer(B * H * T),
      mid: per_layer(N * C), // the residual stream between attention and mlp
      ln2: per_layer(N * C),
      ln2_stats: per_layer(2 * N),
      pre: per_layer(N * F), // before GELU
      act: per_layer(N * F), // after GELU
      lnf: pad(N * C),
      lnf_stats: pad(2 * N),
      logits: pad(N * V), // then their gradient
      losses: pad(N),
    },
    gradients: {
      dx: pad(N * C), // of the residual stream
      dc: pad(N * C), // of what enters a projection
      df: pad(N * F),
      dqkv: pad(N * 3 * C),
      delta: pad(B * H * T),
    },
    scratch: scratch_of(dispatches),
    scalars: {
      batch: batch_layout({ N, V }).size,
      decay: pad(Math.ceil(flat_size / BLOCK / 32)),
      partials: pad(4 * partials),
      clip: BLOCK,
      results: 2 * RING,
      off_read: BLOCK, // stands where a kernel's epilogue is off
      off_write: BLOCK,
    },
  };
  return Object.fromEntries(
    Object.entries(groups).flatMap(([role, group]) =>
      Object.entries(group).map(([name, size]) => [name, { role, ...(size.floats ? size : slices(1, size)) }]),
    ),
  );
}

// What all cut products share: room for the parts of the largest of them; nothing where none is cut.
function scratch_of(dispatches) {
  const views = dispatches.flatMap(({ views }) => Object.values(views)).filter(({ buffer }) => buffer === "parts");
  if (!views.length) return {};
  const floats = Math.max(...views.map(({ at, size }) => at + pad(size)));
  return { parts: { floats, binding: Math.max(...views.map(({ size }) => pad(size))) } };
}

// Words of one batch: the step's facts, input tokens, targets, positions by token and where each begins.
export function batch_layout({ N, V }) {
  const inputs = BLOCK;
  const targets = inputs + pad(N);
  const order = targets + pad(N);
  const starts = order + pad(N);
  return { inputs, targets, order, starts, size: starts + pad(V + 1) };
}

// ------------------------------------------------------------------------------ the step

// The dispatches of one step. `tensors`: name → {offset, size}; `tuning` as from tune().
export function step_of(shape, tensors, flat_size, tuning) {
  const { L, H, C, D, F, T, B, N, V } = shape;
  const dispatches = [];
  const whole = (buffer, size) => ({ buffer, at: 0, size });
  const slice = (buffer, layer, size) => ({ buffer, at: layer * pad(size), size });
  const tensor = (buffer, name) => ({ buffer, at: tensors[name].offset, size: tensors[name].size });
  const weight = (name) => tensor("param", name);
  const grad = (name) => tensor("grad", name);
  const batch = batch_layout(shape);
  const words = (at, size) => ({ buffer: "batch", at, size });
  const off = whole("off_read", BLOCK);
  const off_write = whole("off_write", BLOCK);

  const add = (label, kernel, constants, groups, views, flops = 0) =>
    dispatches.push({ label, kernel, constants, groups, views, flops });

  // One kernel per product; see the files for what rows, inner and cols mean there. The tied head's matrix
  // is stored the other way round, so its products choose by another option than their kernels' names say.
  const matmul = (label, product, rows, inner, cols, views, flags = {}) => {
    const option = { head: "mm_fwd", "head.dx": "mm_da" }[label] ?? OPTION_OF[product];
    const { kernel, constants, groups, adding } = matmul_of(product, tuning.matmul[option], rows, inner, cols);
    const suffix = halves_suffix(product, tuning.f16);
    if (suffix) {
      const { view, skip } = halves_of(views.b);
      views = { ...views, b: view };
      constants.SKIP = skip;
    }
    // Gradients of a mean over N rows are about 1/N, far below the smallest normal half.
    if (suffix === "_f16" && GRADIENTS.has((views.a ?? views.dc).buffer)) {
      constants.SCALE = 2 ** (Math.floor(Math.log2(N)) + 6);
    }
    const parts = adding && views_of_parts(adding);
    const written = adding ? { ...views, db: parts.parts, dbias: parts.part_sums } : views;
    add(label, kernel + suffix, { ...constants, ...flags }, groups, written, 2 * rows * inner * cols);
    dispatches.at(-1).choice = { option, chosen: chosen_by(kernel, constants) };
    if (adding) {
      const { db, dbias } = views;
      add(label + ADDING, adding.kernel, { ...adding.constants, ...flags }, adding.groups, { ...parts, db, dbias });
    }
  };
  const rows_of = (label, kernel, sizes, views) => {
    const { constants, groups } = rows_shape(tuning, N);
    add(label, kernel, { ...constants, ...sizes }, groups, views);
  };
  const norm_params = (label, views) =>
    add(label, "layernorm_backward_params", { ROWS: N, C }, [Math.ceil(C / 16)], views);
  const attention = (label, kernel, views, products) => {
    const { constants, groups } = attention_shape(tuning, shape);
    add(label, kernel, constants, groups, views, 2 * products * N * T * C);
  };

  const x = (l) => slice("x", l, N * C);
  const dx = whole("dx", N * C);
  const dc = whole("dc", N * C);
  const df = whole("df", N * F);
  const dqkv = whole("dqkv", N * 3 * C);
  const logits = whole("logits", N * V);
  const lnf = whole("lnf", N * C);
  const lnf_stats = whole("lnf_stats", 2 * N);
  const of_layer = (l) => {
    const at = (buffer, size) => slice(buffer, l, size);
    return {
      name: (tail) => `h.${l}.${tail}`,
      ln1: at("ln1", N * C),
      ln1_stats: at("ln1_stats", 2 * N),
      qkv: at("qkv", N * 3 * C),
      att: at("att", N * C),
      lse: at("lse", B * H * T),
      mid: at("mid", N * C),
      ln2: at("ln2", N * C),
      ln2_stats: at("ln2_stats", 2 * N),
      pre: at("pre", N * F),
      act: at("act", N * F),
    };
  };

  // Forward.
  add("embedding", "encoder_forward", { N, T, C }, fold((N * C) / 256), {
    tokens: words(batch.inputs, N), wte: weight("wte"), wpe: weight("wpe"), out: x(0),
  });
  for (let l = 0; l < L; l++) {
    const { name, ln1, ln1_stats, qkv, att, lse, mid, ln2, ln2_stats, pre, act } = of_layer(l);
    rows_of(name("ln1"), "layernorm_forward", { C }, {
      x: x(l), gain: weight(name("ln1.g")), shift: weight(name("ln1.b")), stats: ln1_stats, out: ln1,
    });
    matmul(name("attn.qkv"), "forward", N, C, 3 * C, {
      a: ln1, b: weight(name("attn.wqkv")), bias: weight(name("attn.bqkv")), residual: off, pre: off_write, out: qkv,
    }, { BIAS: 1 });
    attention(name("attn"), "attention_forward", { qkv, out: att, lse }, 2);
    matmul(name("attn.proj"), "forward", N, C, C, {
      a: att, b: weight(name("attn.wo")), bias: weight(name("attn.bo")), residual: x(l), pre: off_write, out: mid,
    }, { BIAS: 1, RESIDUAL: 1 });
    rows_of(name("ln2"), "layernorm_forward", { C }, {
      x: mid, gain: weight(name("ln2.g")), shift: weight(name("ln2.b")), stats: ln2_stats, out: ln2,
    });
    matmul(name("mlp.up"), "forward", N, C, F, {
      a: ln2, b: weight(name("mlp.w1")), bias: weight(name("mlp.b1")), residual: off, pre, out: act,
    }, { BIAS: 1, GELU: 1 });
    matmul(name("mlp.down"), "forward", N, F, C, {
      a: act, b: weight(name("mlp.w2")), bias: weight(name("mlp.b2")), residual: mid, pre: off_write, out: x(l + 1),
    }, { BIAS: 1, RESIDUAL: 1 });
  }
  rows_of("lnf", "layernorm_forward", { C }, {
    x: x(L), gain: weight("lnf.g"), shift: weight("lnf.b"), stats: lnf_stats, out: lnf,
  });
  matmul("head", "backward_da", N, C, V, { dc: lnf, b: weight("wte"), pre: off, da: logits });
  rows_of("loss", "crossentropy_forward", { V }, {
    targets: words(batch.targets, N), logits, losses: whole("losses", N),
  });

  // Backward. From here `logits` holds its gradient.
  matmul("head.dx", "forward", N, V, C, {
    a: logits, b: weight("wte"), bias: off, residual: off, pre: off_write, out: dc,
  });
  matmul("head.dwte", "backward_db", V, N, C, { a: logits, dc: lnf, db: grad("wte"), dbias: off_write });
  norm_params("lnf.dparams", {
    dout: dc, x: x(L), stats: lnf_stats, dgain: grad("lnf.g"), dshift: grad("lnf.b"),
  });
  rows_of("lnf.dx", "layernorm_backward", { C, ADD: 0 }, {
    dout: dc, x: x(L), gain: weight("lnf.g"), stats: lnf_stats, dx,
  });
  for (let l = L - 1; l >= 0; l--) {
    const { name, ln1, ln1_stats, qkv, att, lse, mid, ln2, ln2_stats, pre, act } = of_layer(l);
    matmul(name("mlp.down.dw"), "backward_db", F, N, C, {
      a: act, dc: dx, db: grad(name("mlp.w2")), dbias: grad(name("mlp.b2")),
    }, { BIAS: 1 });
    matmul(name("mlp.down.dx"), "backward_da", N, C, F, {
      dc: dx, b: weight(name("mlp.w2")), pre, da: df,
    }, { GELU: 1 });
    matmul(name("mlp.up.dw"), "backward_db", C, N, F, {
      a: ln2, dc: df, db: grad(name("mlp.w1")), dbias: grad(name("mlp.b1")),
    }, { BIAS: 1 });
    matmul(name("mlp.up.dx"), "backward_da", N, F, C, { dc: df, b: weight(name("mlp.w1")), pre: off, da: dc });
    norm_params(name("ln2.dparams"), {
      dout: dc, x: mid, stats: ln2_stats, dgain: grad(name("ln2.g")), dshift: grad(name("ln2.b")),
    });
    rows_of(name("ln2.dx"), "layernorm_backward", { C, ADD: 1 }, {
      dout: dc, x: mid, gain: weight(name("ln2.g")), stats: ln2_stats, dx,
    });
    matmul(name("attn.proj.dw"), "backward_db", C, N, C, {
      a: att, dc: dx, db: grad(name("attn.wo")), dbias: grad(name("attn.bo")),
    }, { BIAS: 1 });
    matmul(name("attn.proj.dx"), "backward_da", N, C, C, { dc: dx, b: weight(name("attn.wo")), pre: off, da: dc });
    const delta = whole("delta", B * H * T);
    attention(name("attn.dq"), "attention_backward_dq", { qkv, out: att, dout: dc, lse, delta, dqkv }, 3);
    attention(name("attn.dkv"), "attention_backward_dkv", { qkv, dout: dc, lse, delta, dqkv }, 4);
    matmul(name("attn.qkv.dw"), "backward_db", C, N, 3 * C, {
      a: ln1, dc: dqkv, db: grad(name("attn.wqkv")), dbias: grad(name("attn.bqkv")),
    }, { BIAS: 1 });
    matmul(name("attn.qkv.dx"), "backward_da", N, 3 * C, C, {
      dc: dqkv, b: weight(name("attn.wqkv")), pre: off, da: dc,
    });
    norm_params(name("ln1.dparams"), {
      dout: dc, x: x(l), stats: ln1_stats, dgain: grad(name("ln1.g")), dshift: grad(name("ln1.b")),
    });
    rows_of(name("ln1.dx"), "layernorm_backward", { C, ADD: 1 }, {
      dout: dc, x: x(l), gain: weight(name("ln1.g")), stats: ln1_stats, dx,
    });
  }
  add("embedding.dw", "encoder_backward", { B, T, C, V }, fold(((V + T) * C) / 256), {
    order: words(batch.order, N), starts: words(batch.starts, V + 1), dx, dwte: grad("wte"), dwpe: grad("wpe"),
  });

  // Update.
  const flat = (buffer) => whole(buffer, flat_size);
  const VECTORS = flat_size / 4;
  const PARTIALS = tuning.partials;
  add("norm", "gradnorm_partial", { VECTORS, PARTIALS }, [Math.ceil(PARTIALS / 64)], {
    grad: flat("grad"), partials: whole("partials", 4 * PARTIALS),
  });
  add("norm.finish", "gradnorm_finish", { ROWS: N, PARTIALS }, [1], {
    recipe: "recipe", facts: words(0, BLOCK), losses: whole("losses", N), partials: whole("partials", 4 * PARTIALS),
    clip: whole("clip", BLOCK), results: whole("results", 2 * RING),
  });
  const halves = tuning.f16 === "off" ? {} : { param16: whole("param16", flat_size / 2) };
  add("adamw", tuning.f16 === "off" ? "adamw" : "adamw_w16", { VECTORS }, fold(VECTORS / 64), {
    recipe: "recipe", facts: words(0, BLOCK), clip: whole("clip", BLOCK),
    decay: whole("decay", Math.ceil(flat_size / BLOCK / 32)), grad: flat("grad"), param: flat("param"), m: flat("m"), v: flat("v"),
    ...halves,
  });

  return dispatches;
}

// Where the parts of a cut product lie in their buffer: those of db, then those of dbias.
function views_of_parts({ floats }) {
  const at = pad(floats.parts);
  return {
    parts: { buffer: "parts", at: 0, size: floats.parts },
    part_sums: { buffer: "parts", at, size: floats.part_sums },
  };
}

// Constants and workgroups of a kernel whose invocations share rows, for N of them.
export function rows_shape({ rows: { LANES, GROUP } }, N) {
  return { constants: { ROWS: N, LANES, GROUP }, groups: fold(N / GROUP) };
}

// Constants and workgroups of attention's kernels.
export function attention_shape({ attention: { WG, WIDE } }, { B, T, H, D }) {
  const invocations = B * H * Math.ceil(T / 4) * Math.ceil(D / (WIDE ? 32 : 16));
  return { constants: { B, T, H, D, VEC4: Number(D % 4 === 0), WIDE, WG }, groups: fold(invocations / WG) };
}

// A view of parameters in their copy of halves. Bindings start at multiples of 64 words, tensors at half of
// that: `skip` halves lie before the first.
function halves_of({ at, size }) {
  const first = Math.floor(at / (2 * BLOCK)) * 2 * BLOCK;
  const skip = at - first;
  return { view: { buffer: "param16", at: first / 2, size: Math.ceil((skip + size) / 2) }, skip };
}

// What makes the copy of halves after parameters were written from outside; nothing where there is none.
export function packing_of(flat_size, f16) {
  if (f16 === "off") return [];
  const VECTORS = flat_size / 4;
  const views = {
    clip: { buffer: "clip", at: 0, size: BLOCK },
    param: { buffer: "param", at: 0, size: flat_size },
    param16: { buffer: "param16", at: 0, size: flat_size / 2 },
  };
  return [{ label: "pack", kernel: "pack_w16", constants: { VECTORS }, groups: fold(VECTORS / 64), views, flops: 0 }];
}

// At least `count` workgroups as two dimensions within WebGPU's limit.
export function fold(count) {
  const groups = Math.max(1, Math.ceil(count));
  const x = Math.min(groups, 32768);
  return [x, Math.ceil(groups / x)];
}

// ------------------------------------------------------------------------------ tuning

// How kernels are shaped for an adapter. A software adapter computes workgroups on CPU cores: lanes that
// share a row only add barriers there, and large register tiles save its slow loads.
export function tune(options, shape, flat_size, is_software, subgroup_max_size = null) {
  const f16 = options.f16 ?? "off";
  if (f16 !== "off" && !(f16 in REDUCED)) {
    throw new ArmError("unsupported", `f16=${f16}: expected off, storage or compute`);
  }
  for (const option of ["mm_fwd", "mm_da"]) {
    if (f16 !== "off" && options[option] !== "blocked") {
      throw new ArmError("unsupported", `f16=${f16}: ${option}=${options[option]} reads no halves; only blocked does`);
    }
  }
  return {
    f16,
    rows: is_software ? { LANES: 1, GROUP: 32 } : { LANES: 32, GROUP: 8 },
    attention: is_software ? { WG: 16, WIDE: Number(shape.D > 16) } : { WG: 64, WIDE: 0 },
    partials: Math.min(16384, Math.max(64, Math.ceil(flat_size / 32 / 64) * 64)),
    matmul: choices(options, subgroup_max_size),
  };
}

// ------------------------------------------------------------------------------ products

const OPTION_OF = { forward: "mm_fwd", backward_da: "mm_da", backward_db: "mm_db" };
export const LAYOUT_OF = { mm_fwd: "forward", mm_da: "backward_da", mm_db: "backward_db" };
const VARIANTS = ["naive", "tiled", "blocked", "subgroup"];
const SPLITS = [2, 4, 8, 16]; // parts of a depth that is cut
export const ADDING = ".sum"; // how the label ends of the dispatch that adds a product's parts

// Option → the variant, tile and workgroup by which its products run, and in how many parts.
function choices(options, subgroup_max_size) {
  const of = (option) => ({
    variant: options[option],
    tile: options[option.replace("mm_", "tile_")],
    workgroup: options.workgroup,
    subgroup_max_size,
    split: option === "mm_db" ? Number(options.split_db ?? 1) : 1,
  });
  return Object.fromEntries(Object.keys(LAYOUT_OF).map((option) => [option, of(option)]));
}

// The dispatch of one product: kernel file, its constants, workgroups. Where its depth is cut, `adding` is the
// dispatch that adds the parts, with the floats of all parts of either result.
export function matmul_of(product, { variant, tile, workgroup, subgroup_max_size, split = 1 }, rows, inner, cols) {
  if (!VARIANTS.includes(variant)) {
    throw new ArmError("unsupported", `a product by the kernel ${variant}: the variants are ${VARIANTS.join(", ")}`);
  }
  if (split !== 1 && !(SPLITS.includes(split) && variant === "blocked" && product === "backward_db")) {
    const which = `${product} by ${variant} in ${split} parts`;
    throw new ArmError("unsupported", `${which}: only the blocked backward_db is cut, into ${SPLITS.join(", ")}`);
  }
  const constants = { ROWS: rows, INNER: inner, COLS: cols };
  let [high, broad] = [64, 64]; // elements per workgroup; fixed in the tiled kernel
  if (variant === "subgroup") {
    // Whole subgroups, if need be of the largest size that WebGPU knows.
    constants.WG = Math.max(32, subgroup_max_size ?? 128);
    [high, broad] = [8, 4 * constants.WG];
  }
  if (["naive", "blocked"].includes(variant)) {
    [constants.WX, constants.WY] = pair(workgroup);
    [high, broad] = [constants.WY, constants.WX];
  }
  if (variant === "blocked") {
    const [tall, wide] = pair(tile);
    const strides = { forward: [inner, cols], backward_da: [inner], backward_db: [rows, cols] }[product];
    const VEC4 = Number(strides.every((stride) => stride % 4 === 0));
    Object.assign(constants, { VEC4, TALL: Number(tall === 8), WIDE: Number(wide === 8) });
    [high, broad] = [high * tall, broad * wide];
  }
  const kernel = `matmul_${product}_${variant}`;
  const groups = [Math.ceil(cols / broad), Math.ceil(rows / high)];
  if (split === 1) return { kernel, constants, groups };
  const [matrix, bias] = [vectors(rows * cols), vectors(cols)];
  const adding = {
    kernel: "matmul_backward_db_sum",
    constants: { ROWS: rows, COLS: cols, PARTS: split },
    groups: fold((matrix + bias) / 64),
    floats: { parts: 4 * matrix * split, part_sums: 4 * bias * split },
  };
  return { kernel, constants: { ...constants, PARTS: split }, groups: [...groups, split], adding };
}

const vectors = (floats) => Math.ceil(floats / 4);

// Ending of the kernels that read the right side of such a product as halves; none where it stays float32.
export const halves_suffix = (product, f16) => (product === "backward_db" ? "" : (REDUCED[f16] ?? ""));

const pair = (text) => text.split("x").map(Number);

// What a product's constants say of the choice that was made: "blocked 8x8 in 8x8 in 4 parts".
function chosen_by(kernel, { TALL, WIDE, WX, WY, PARTS }) {
  const [, variant] = /^matmul_(?:forward|backward_d[ab])_([a-z]+)/.exec(kernel);
  const words = [variant];
  if (TALL !== undefined) words.push(`${TALL ? 8 : 4}x${WIDE ? 8 : 4}`);
  if (WX !== undefined) words.push(`in ${WX}x${WY}`);
  if (PARTS !== undefined) words.push(`in ${PARTS} parts`);
  return words.join(" ");
}
