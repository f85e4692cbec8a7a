"""Choices of an earlier run, taken from its receipt instead of being made again."""

from pathlib import Path

from driver.arms import AUTO, OPTIONS, ArmSpec, Value
from driver.errors import ArmError, ReceiptError, UsageError
from driver.receipt import digest
from driver.records import ArmPlan, Pinned, Side
from driver.store import read_receipt, whole


def pin_arms(specs: tuple[ArmSpec, ArmSpec], path: Path) -> tuple[ArmSpec, ArmSpec]:
    """Both arms with everything that they leave open as the receipt's plan has it.

    What an arm fixes itself wins. An arm takes the choices of the one with its name; where both of
    the receipt have it, of the one on its side.

    Raises ReceiptError for a file that is no whole receipt, UsageError where an arm or a choice is
    not in it.
    """
    data = read_receipt(path)
    receipt = whole(path, data)
    try:
        actual = digest(data)
    except ReceiptError as error:
        raise ReceiptError(f"{path}: {error}") from error
    if receipt.digest != actual:
        raise ReceiptError(f"{path}: was changed after it was written; its digest does not match")
    a, b = specs
    arms = receipt.plan.arms
    where = f"--pin {path}"
    return (
        _pinned(a, "A", arms, receipt.digest, where),
        _pinned(b, "B", arms, receipt.digest, where),
    )


def _pinned(
    spec: ArmSpec, side: Side, arms: tuple[ArmPlan, ArmPlan], receipt_digest: str, where: str
) -> ArmSpec:
    left_open = [key for key, value in spec.options.items() if value == AUTO]
    if not left_open:
        return spec
    named = [arm for arm in arms if arm.name == spec.name]
    if not named:
        have = ", ".join(f"{arm.name!r:.20}" for arm in arms)
        raise UsageError(f"{where}: the receipt has no arm {spec.name}, it has {have}")
    source = next((arm for arm in named if arm.side == side), named[0])
    choices = {key: _choice(spec.name, key, source, where) for key in left_open}
    pinned = Pinned(
        receipt_digest=receipt_digest, side=source.side, options=tuple(sorted(left_open))
    )
    return spec.model_copy(update={"options": spec.options | choices, "pinned": pinned})


def _choice(name: str, key: str, source: ArmPlan, where: str) -> Value:
    """One option's value, read as if a person had written it: the receipt may be a stranger's."""
    value = source.options.get(key, AUTO)
    try:
        found = OPTIONS[name][key].parse(name, key, str(value))
    except ArmError:
        raise UsageError(
            f"{where}: the receipt has {key}={value!r:.40} for arm {name}, which is no such choice"
        ) from None
    if found == AUTO:
        raise UsageError(
            f"{where}: the receipt does not say {key} of arm {name}; give it: --arms {name}:{key}=…"
        )
    return found
