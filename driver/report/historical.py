"""The 2026-09-02 receipt beside a run of its recipe: what compares, and what does not."""

from statistics import median

from rich.console import Console

from driver.records import ArmPlan, Plan, Receipt
from driver.report.terminal import (
    TextTable,
    new_console,
    number_text,
    small_text,
    text_of,
    write_line,
)
from driver.report.words import arm_name, longest_curve
from driver.wording import counted

# What the receipt was about and what it said.
CORPUS_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SEED, STEPS = 42, 20
SHAPE = {"n_layer": 6, "n_head": 6, "d_model": 192, "d_ff": 768, "ctx": 128, "batch": 12}
WASM_MS, WEBGPU_MS, RATIO, DRIFT = 1462.50, 137.08, 10.669, 0.047208
WASM_LOSS, WEBGPU_LOSS = 3.5799, 3.7489
# Losses at step 20 of an independent float32 replay, by clip.
REPLAYED = {0.0: 3.748934, 1.0: 3.625995}

_NOTES = (
    "Comparable: model, size, corpus, and without clipping the whole recipe of its WebGPU arm, so "
    "that arm's final loss. Its WASM arm drew other weights and batches, clipped, and evaluated "
    "first: no arm here replays it, and its drift was no numerical error.",
    "Not comparable: times. Machine and browser are others, and so is the clock. Theirs ran from a "
    "click to a step counter polled every 100 ms, without warm-up: module load, model creation, "
    "first step and, on WASM, 15 evaluation batches were in it. Here `with cold costs` is compile, "
    "upload and every step, the first one included; ms/step is the median step. The steady ratio "
    "is not the same quantity as the receipt's 10.669 and says nothing about it.",
)


def is_of_the_recipe(plan: Plan) -> bool:
    """The run trained what the receipt's WebGPU arm trained, clipped or not."""
    drawn = (plan.preset.get("init"), plan.preset.get("offsets"), plan.seed)
    shape = plan.config.model_dump(include=set(SHAPE))
    return (
        drawn == ("mulberry32", "hashed", SEED)
        and plan.corpus.sha256 == CORPUS_SHA256
        and shape == SHAPE
        and plan.config.grad_clip in REPLAYED
    )


def write_comparison(console: Console, receipt: Receipt) -> None:
    """Both receipts' numbers side by side; nothing for a run of another recipe."""
    if not is_of_the_recipe(receipt.plan):
        return
    write_line(console, "beside the receipt of 2026-09-02 (Apple M5 Pro, Chrome 151)", "bold")
    console.print(_table(receipt))
    for line in _losses(receipt):
        write_line(console, line)
    for note in _NOTES:
        write_line(console, note, "dim")
    console.print()


def comparison_text(receipt: Receipt, width: int = 100) -> str:
    """The same as text; empty for a run of another recipe."""
    console = new_console(width, False)
    write_comparison(console, receipt)
    return text_of(console)


def _table(receipt: Receipt) -> TextTable:
    table = TextTable(("", "steps", "final loss", "ms/step", "with cold costs"), ("",))
    table.add("receipt wasm, clip 1", str(STEPS), str(WASM_LOSS), "", f"{WASM_MS:.2f}")
    table.add("receipt webgpu, no clip", str(STEPS), str(WEBGPU_LOSS), "", f"{WEBGPU_MS:.2f}")
    table.add("receipt ratio", "", "", "", str(RATIO))
    cold: list[float | None] = []
    clip = f"clip {receipt.plan.config.grad_clip:g}" if receipt.plan.config.grad_clip else "no clip"
    for arm, summary in zip(receipt.plan.arms, receipt.comparison.arms, strict=True):
        losses = longest_curve(receipt.slots, arm.side)
        cold.append(_with_cold_costs(receipt, arm))
        table.add(
            f"{arm.side} {arm_name(receipt, arm.side)}, {clip}", str(len(losses)),
            f"{losses[-1]:.4f}" if losses else "", number_text(summary.median_step_ms),
            number_text(cold[-1]),
        )  # fmt: skip
    a, b = cold
    ratio = a / b if a and b else None
    steady = number_text(receipt.comparison.estimate.ratio)
    table.add("ratio A/B", "", "", steady, number_text(ratio))
    return table


def _losses(receipt: Receipt) -> list[str]:
    """Final losses against the replay's, and the drift against the receipt's."""
    expected, lines = REPLAYED[receipt.plan.config.grad_clip], []
    for arm in receipt.plan.arms:
        losses = longest_curve(receipt.slots, arm.side)
        if len(losses) >= STEPS:
            lines.append(
                f"{arm.side} at step {STEPS}: loss {losses[STEPS - 1]:.6f}; an independent replay "
                f"of the recipe has {expected:.6f}"
            )
        else:
            lines.append(
                f"{arm.side} has {len(losses)} of {STEPS} steps: its final loss does not compare "
                "(a longer --budget leaves the curve whole)"
            )
    drift = receipt.comparison.drift
    lines.append(
        f"drift between the arms' losses: the receipt's {DRIFT:.4%} at the end; here "
        f"{small_text(drift.loss)} at most over {counted(drift.steps, 'step')}"
    )
    return lines


def _with_cold_costs(receipt: Receipt, arm: ArmPlan) -> float | None:
    """ms per step when compile, upload and every step count; the median slot.

    None where a slot has steps that were not timed, as a warm-up's are.
    """
    if arm.warmup_steps:
        return None
    found = [
        (slot.compile_ms + slot.upload_ms + sum(slot.windows_ms)) / len(slot.losses)
        for slot in receipt.slots
        if slot.side == arm.side and slot.status == "ok" and slot.losses
        and slot.compile_ms is not None and slot.upload_ms is not None
    ]  # fmt: skip
    return median(found) if found else None
