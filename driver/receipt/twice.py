"""What a receipt tells twice, by two witnesses: of a slot, of the machine, of a choice.

The report shows some of it, so it must not say one thing where the gates have judged another.
Only what both witnesses tell is compared: an older receipt, or another browser, tells less.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, get_args

from driver.draws import Init, Offsets
from driver.parity import ADAPTER_IDENTITY
from driver.records import ArmPlan, Receipt, Slot

PAGE_BYTES = 65536  # of WebAssembly's memory
# What the page that was asked first and the page of a slot tell of the same browser.
_OF_THE_BROWSER = ("user_agent", "cross_origin_isolated", "hardware_concurrency")
# What every slot of an arm dispatches alike.
_OF_THE_STEP = ("dispatches_per_step", "submits_per_step", "kernels")


def twice_faults(receipt: Receipt) -> Iterator[str]:
    """Each contradiction; it begins with the path of the second witness."""
    environment = receipt.environment
    yield from _environment_faults(receipt)
    for index, arm in enumerate(receipt.plan.arms):
        yield from _feature_faults(environment.features, arm, f"plan/arms/{index}")
        yield from _choice_faults(arm, f"plan/arms/{index}")
    first: dict[str, tuple[int, Slot]] = {}
    for index, slot in enumerate(receipt.slots):
        path = f"slots/{index}"
        yield from _slot_faults(slot, path)
        yield from _unlike(environment.page, slot.page, _OF_THE_BROWSER, "environment/page",
                           f"{path}/page")  # fmt: skip
        if slot.ran:
            at, same = first.setdefault(slot.side, (index, slot))
            yield from _unlike(same.ran, slot.ran, _OF_THE_STEP, f"slots/{at}/ran", f"{path}/ran")
    for key, known in (("init", get_args(Init)), ("offsets", get_args(Offsets))):
        if receipt.plan.preset.get(key, known[0]) not in known:
            yield f"plan/preset/{key} is {receipt.plan.preset[key]!r:.60}, known are {known}"
    for parity_index, parity in enumerate(receipt.parity):
        for point_index, point in enumerate(parity.points):
            at_point = f"parity/{parity_index}/points/{point_index}"
            for name, error in (*point.grads.items(), *point.params.items()):
                if not _possible_cosine(error.cosine, error.rel_l2):
                    yield (
                        f"{at_point}: {name!r:.60} cannot have the cosine {error.cosine} at a "
                        f"relative error of {error.rel_l2}"
                    )


def _possible_cosine(cosine: float | None, rel_l2: float) -> bool:
    """Whether b with |a − b| = rel_l2·|a| can stand at this angle to a: cos ≥ √(1 − rel_l2²)."""
    if cosine is None or not math.isfinite(cosine) or not math.isfinite(rel_l2):
        return True  # other gates' business
    least = math.sqrt(max(0.0, 1 - rel_l2 * rel_l2)) if rel_l2 < 1 else -1.0
    return least - 1e-6 <= cosine <= 1 + 1e-6


def _environment_faults(receipt: Receipt) -> Iterator[str]:
    environment = receipt.environment
    features = environment.features
    yield from _unlike(features, environment.page, _OF_THE_BROWSER[1:], "environment/features",
                       "environment/page")  # fmt: skip
    if environment.adapter is not None:
        yield from _unlike(features.get("webgpu"), environment.adapter,
                           (*ADAPTER_IDENTITY, "available"), "environment/features/webgpu",
                           "environment/adapter")  # fmt: skip
        if environment.adapter.get("available") is False:
            yield "environment/adapter/available is False, of an adapter that is told of"
    yield from _unlike(environment.machine, environment.browser, ("remote",),
                       "environment/machine", "environment/browser")  # fmt: skip
    for name in ("load_before", "load_after"):
        utc = (getattr(environment, name) or {}).get("utc")
        if utc is not None and not _is_moment(utc):
            yield f"environment/{name}/utc is {utc!r:.60}, not a time in UTC"
    threads = environment.threads
    if threads and threads.measured:
        tried = [one.threads for one in threads.measured]
        if threads.threads not in tried:
            yield f"environment/threads/threads is {threads.threads}, measured were {tried}"
    if receipt.reference.dtype not in ("float64", "float32"):
        yield f"reference/dtype is {receipt.reference.dtype!r:.60}, no type of the reference's"


def _is_moment(text: object) -> bool:
    try:
        return datetime.fromisoformat(str(text)).utcoffset() is not None
    except ValueError:
        return False


def _feature_faults(features: Mapping[str, Any], arm: ArmPlan, path: str) -> Iterator[str]:
    """An arm that needs what the browser said it lacks."""
    if arm.name not in ("wasm", "wasm64"):
        return
    told = features.get("wasm")
    needs = {
        "relaxed_simd": arm.options.get("simd") == "relaxed",
        "simd128": arm.options.get("simd") in ("relaxed", "simd128"),
        "threads": arm.options.get("shared") == "on" or arm.options.get("threads", 1) != 1,
        "memory64": arm.name == "wasm64",
    }
    for feature, needed in needs.items():
        if needed and isinstance(told, Mapping) and told.get(feature) is False:
            yield f"{path} needs {feature}, which environment/features/wasm says is not there"


def _choice_faults(arm: ArmPlan, path: str) -> Iterator[str]:
    """Of a class of products one variant was chosen at most, and one that is right."""
    chosen: dict[tuple[Any, ...], int] = {}
    for index, trial in enumerate(arm.variants):
        if not trial.chosen:
            continue
        if trial.status != "ok":
            yield f"{path}/variants/{index} was chosen, and is {trial.status}"
        kernel = trial.kernel
        of = (trial.option, kernel.product, kernel.M, kernel.N, kernel.K)
        if of in chosen:
            yield f"{path}/variants/{index} was chosen, as was {chosen[of]} of the same product"
        chosen[of] = index


def _slot_faults(slot: Slot, path: str) -> Iterator[str]:
    memory, ran = slot.memory, slot.ran
    yield from _unlike(ran, memory, ("address_type",), f"{path}/ran", f"{path}/memory")
    ran_shared = {"on": True, "off": False}.get(str(ran.get("shared")))
    if ran_shared is not None and memory.get("shared", ran_shared) is not ran_shared:
        yield f"{path}/memory/shared is {memory['shared']!r:.40}, ran with shared={ran['shared']}"
    for kind in ("initial", "maximum", "final"):
        pages, size = memory.get(f"{kind}_pages"), memory.get(f"{kind}_bytes")
        if isinstance(pages, int) and isinstance(size, int) and size != PAGE_BYTES * pages:
            yield f"{path}/memory/{kind}_bytes is {size}, of {pages} pages"
    grown, growths = memory.get("growths_pages"), memory.get("growths")
    if isinstance(grown, list) and isinstance(growths, int) and growths != len(grown):
        yield f"{path}/memory/growths is {growths}, told of are {len(grown)}"
    page, kinds = slot.page or {}, {event.kind for event in slot.events}
    hidden = page.get("hidden_events") or page.get("visibility", "visible") != "visible"
    frozen = page.get("frozen_events") or page.get("stalled_ms")
    for kind, seen in (("hidden", hidden), ("frozen", frozen)):
        if seen and kind not in kinds:
            yield f"{path}/events have no {kind!r}, which {path}/page tells of"


def _unlike(
    first: Mapping[str, Any] | None, second: Mapping[str, Any] | None, keys: tuple[str, ...],
    first_at: str, second_at: str,
) -> Iterator[str]:  # fmt: skip
    """Keys that both have, and differently."""
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return
    for key in keys:
        if key in first and key in second and first[key] != second[key]:
            yield f"{second_at}/{key} is {second[key]!r:.80}, {first_at}/{key} {first[key]!r:.80}"
