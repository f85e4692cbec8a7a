// A fixed piece of work that measures the machine itself: about 20 ms on a current core.
//
// One dependent chain of float64 multiplications and additions in WebAssembly. Its time is latency times
// clock rate, so it shows a throttled or shared core and nothing of memory, compiler or thread count.
//
//   (func (export "run") (param $n i32) (result f64) (local $x f64)
//     (local.set $x (f64.const 1))
//     (loop
//       (local.set $x (f64.add (f64.mul (local.get $x) (f64.const 0.5)) (f64.const 0.75)))
//       (br_if 0 (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
//     (local.get $x))

const f64 = (value) => [0x44, ...new Uint8Array(new Float64Array([value]).buffer)];
const BODY = [
  1, 1, 0x7c, // one local of type f64
  ...f64(1), 0x21, 1,
  0x03, 0x40,
  0x20, 1, ...f64(0.5), 0xa2, ...f64(0.75), 0xa0, 0x21, 1,
  0x20, 0, 0x41, 1, 0x6b, 0x22, 0, 0x0d, 0,
  0x0b,
  0x20, 1,
  0x0b,
];
const MODULE = new Uint8Array([
  0, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
  1, 6, 1, 0x60, 1, 0x7f, 1, 0x7c,
  3, 2, 1, 0,
  7, 7, 1, 3, 0x72, 0x75, 0x6e, 0, 0,
  10, BODY.length + 2, 1, BODY.length, ...BODY,
]);
const ROUNDS = 8_000_000;

let run = null;

export async function sentinel(count) {
  if (!run) {
    run = (await WebAssembly.instantiate(MODULE)).instance.exports.run;
    run(ROUNDS); // the optimising compiler takes over while this one runs
  }
  const values_ms = [];
  for (let i = 0; i < count; i++) {
    const began = performance.now();
    const x = run(ROUNDS);
    values_ms.push(performance.now() - began);
    if (x !== 1.5) throw new Error(`the sentinel computed ${x}, not 1.5`);
  }
  return values_ms;
}
