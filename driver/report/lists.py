"""What the project knows, presets and arms → text."""

from collections.abc import Sequence

from driver.arms import MEANINGS, OPTIONS, UNSET, Option
from driver.presets import Preset
from driver.report.terminal import TextTable, new_console, text_of, write_line
from driver.tensors import model_flops, parameter_count

_GRAMMAR = (
    "wasm and wasm64: kernels=naive | forward | forward-dA | forward-dA-dB sets the three products "
    "together; an mm_ option beside it wins. On webgpu matmul= sets all three.",
    "tile= sets the tiles of all three; a tile_ option beside it wins.",
    "Arms are separated by `,`; options follow `:` and are joined by `+`:",
    "    wasm:threads=1+simd=scalar,webgpu:matmul=naive",
)


def preset_list(presets: Sequence[Preset], width: int = 110) -> str:
    """A line per preset: its model, its size, a step's work, its time."""
    console = new_console(width, False)
    headings = ("preset", "L", "H", "C", "T", "B", "parameters", "GFLOP/step", "budget", "what for")
    table = TextTable(headings, ("preset", "budget", "what for"))
    for p in presets:
        table.add(
            p.name, *map(str, (p.n_layer, p.n_head, p.d_model, p.ctx, p.batch)),
            f"{parameter_count(p.model):,}", f"{model_flops(p.model) / 1e9:.2f}", p.budget,
            p.description,
        )  # fmt: skip
    console.print(table)
    return text_of(console)


def arm_list(width: int = 110) -> str:
    """Every arm with its options and their choices, and how an arm is written."""
    console = new_console(width, False)
    for name, options in OPTIONS.items():
        write_line(console, f"{name}: {MEANINGS[name]}")
        for key, option in options.items():
            words = f"{key}={option.default}  {option.meaning} ({_choices(option)})"
            write_line(console, f"    {words}")
        for key, option in UNSET.get(name, {}).items():
            write_line(console, f"    {key}=REV|DIR  {option.meaning}")
    console.print()
    for line in _GRAMMAR:
        write_line(console, line)
    return text_of(console)


def _choices(option: Option) -> str:
    if not option.choices:
        return "a number | auto" if option.auto else "a number"
    return " | ".join((*option.choices, *(["auto"] if option.auto else [])))
