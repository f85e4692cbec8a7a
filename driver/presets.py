"""Presets: a name or a TOML file → one validated `Preset`.

A preset is a model's shape and recipe plus how to measure it. Files are flat and complete: every
key is written out, nothing is inherited, so that one file tells the whole workload. Whatever a file
holds, reading it gives a `Preset` or a `PresetError` that names the file, the key and the value.
"""

import difflib
import math
import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from driver.draws import Init, Offsets
from driver.errors import PresetError, UsageError
from driver.faults import in_words
from driver.layout import PRESETS
from driver.records import ModelConfig, Record
from driver.tensors import parameter_count

WASM32_BYTES = 4 * 2**30
WASM64_BYTES = 16 * 2**30  # Chromium's limit for a memory with 64-bit addresses

# The browser's processes and Python with its libraries.
PROGRAMS_BYTES = 2**30
# float64: weights, gradients, moments of the walking reference (32) and of its steps from three
# states (3 × 32), these states in float32 (3 × 12); the curve's own reference and checkpoints (48);
# which elements the first step leaves undetermined, for both arms (2).
REFERENCE_BYTES_PER_PARAMETER = 214

_LARGEST_FILE_BYTES = 2**20
_LONGEST_DURATION = 1000  # letters; Python refuses integers of some thousand digits
_SIZES = ("tiny", "small", "medium", "large", "xl", "behemoth")  # the order in which to list them


class Preset(ModelConfig):
    """Shape and recipe of a model, and how to measure it; see `ModelConfig` for the letters."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="a plain word")
    description: str = Field(max_length=500)
    seed: int = Field(ge=0, lt=2**53, description="of weights, batch offsets and slot order")
    # Files must have these two and corpus_hint; plans of older receipts do not.
    init: Init = Field(default="philox", description="weights; mulberry32 is with Box-Muller")
    offsets: Offsets = Field(default="philox", description="where sequences begin")
    warmup_steps: int = Field(ge=0, le=100_000, description="unmeasured steps at a slot's start")
    warmup_ms: float = Field(
        ge=0, le=600_000, allow_inf_nan=False, description="least warm-up time on a GPU arm"
    )
    windows: int = Field(ge=1, le=10_000, description="measured windows per slot")
    window_ms: float = Field(
        gt=0, le=600_000, allow_inf_nan=False, description="time that a window should last"
    )
    max_steps_per_window: int = Field(ge=1, le=100_000)
    blocks: int = Field(ge=1, le=10_000, description="blocks of four slots, A B B A or B A A B")
    budget: str = Field(description="time for the whole run: 90s, 20m, 1h30m")
    memory64: bool = Field(description="a WASM arm must have 64-bit addresses")
    corpus_sha256: str = Field(
        pattern=r"^([0-9a-f]{64})?$", description="the only corpus allowed; empty allows any"
    )
    corpus_hint: str = Field(
        default="",
        max_length=300,
        description="its size and where it is found; empty where any is allowed",
    )

    @field_validator("budget")
    @classmethod
    def _is_duration(cls, text: str) -> str:
        try:
            parse_duration(text)
        except UsageError as error:
            raise ValueError(str(error)) from error
        return text

    @property
    def model(self) -> ModelConfig:
        """The model's shape and recipe alone."""
        return ModelConfig(**{key: getattr(self, key) for key in ModelConfig.model_fields})

    @property
    def budget_s(self) -> float:
        """Time for the whole run, in seconds."""
        return parse_duration(self.budget)


class MemoryNeed(Record):
    """Estimated bytes of one arm's training state."""

    weights_bytes: int
    gradients_bytes: int
    moments_bytes: int
    activations_bytes: int

    @property
    def total_bytes(self) -> int:
        """Everything that has to be resident at once."""
        return (
            self.weights_bytes + self.gradients_bytes + self.moments_bytes + self.activations_bytes
        )


def names() -> tuple[str, ...]:
    """Names of the project's own presets, smallest first."""
    found = {file.stem for file in PRESETS.glob("*.toml")}
    return tuple([n for n in _SIZES if n in found] + sorted(found.difference(_SIZES)))


def load(name_or_file: str) -> Preset:
    """The preset of that name, else the one in that file.

    The project's names win over files beside the caller; `./tiny` names a file.
    Raises PresetError for an unknown name and for anything wrong in a file.
    """
    if name_or_file in names():
        return _read(PRESETS / f"{name_or_file}.toml")
    looks_like_file = "/" in name_or_file or "\\" in name_or_file or name_or_file.endswith(".toml")
    if looks_like_file or (name_or_file and exists(name_or_file)):
        return _read(Path(name_or_file))
    near = difflib.get_close_matches(name_or_file.lower(), names(), n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise PresetError(
        f"unknown preset {_shown(name_or_file)}.{hint} "
        f"Known presets: {', '.join(names())}; the path of a preset file works as well."
    )


def override(preset: Preset, **changes: object) -> Preset:
    """`preset` with some keys replaced, validated again.

    Raises PresetError, naming the key and the value.
    """
    return _validated(f"preset {preset.name}", preset.model_dump() | changes)


def from_keys(where: str, keys: dict[str, Any]) -> Preset:
    """The preset with exactly these keys, as a receipt's plan has them; `where` names the source.

    Raises PresetError as `load` does.
    """
    return _validated(where, keys)


def parse_duration(text: str) -> float:
    """Seconds in `90`, `90s`, `20m`, `1h` or `1h30m`.

    Raises UsageError for anything else, for zero and for more than 30 days.
    """
    form = r"([0-9]+)s?|(?=[0-9])(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?"
    match = re.fullmatch(form, text) if len(text) <= _LONGEST_DURATION else None
    if match is None:
        raise UsageError(f"{_shown(text)} is not a duration; write 90, 90s, 20m, 1h or 1h30m")
    bare, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = bare + 3600 * hours + 60 * minutes + seconds
    if total == 0:
        raise UsageError(f"the duration {_shown(text)} is 0; give 1s or more")
    if total > 30 * 86400:
        raise UsageError(f"the duration {_shown(text)} is too long: at most 30 days (720h)")
    return float(total)


def memory_bytes(config: ModelConfig) -> MemoryNeed:
    """Estimated bytes of one arm that trains `config` in float32.

    Weights, gradients and two moments take 4 bytes per parameter each. A plain step keeps, per
    position and layer, both layer norms (2C), q, k and v (3C), the attention's output (C), both
    residual sums (2C), the MLP before and after GELU (2F) and one row of attention weights per
    head (H·T); beside the layers it keeps logits and their gradients (2V), and backward works in
    one layer's worth of gradients (8C + 2F + H·T). An arm that recomputes or fuses needs less.
    """
    C, F, L, V = config.d_model, config.d_ff, config.n_layer, config.vocab
    parameters = 4 * parameter_count(config)
    per_layer = 8 * C + 2 * F + config.n_head * config.ctx
    return MemoryNeed(
        weights_bytes=parameters,
        gradients_bytes=parameters,
        moments_bytes=2 * parameters,
        activations_bytes=4 * config.positions * ((L + 1) * per_layer + 2 * V),
    )


def run_bytes(config: ModelConfig) -> int:
    """Estimated bytes of a run: one arm, the driver's own copy of the weights, both programs."""
    return memory_bytes(config).total_bytes + 4 * parameter_count(config) + PROGRAMS_BYTES


def reference_bytes(config: ModelConfig) -> int:
    """Estimated bytes of the float64 reference with the states that arms are checked from."""
    parameters, activations = parameter_count(config), memory_bytes(config).activations_bytes
    return REFERENCE_BYTES_PER_PARAMETER * parameters + 2 * activations


def check_memory(preset: Preset, available_bytes: int, where: str = "this machine") -> None:
    """Refuse a preset whose run cannot fit into `available_bytes`.

    `where` ends the sentence "needs …, but … has". Raises PresetError with the numbers.
    """
    need, whole = memory_bytes(preset), run_bytes(preset)
    if whole > available_bytes:
        raise PresetError(
            f"preset {preset.name}: {_memory_sentence(preset, need)}; with the driver's copy of "
            f"the weights and the programs themselves {_gib(whole)}, but {where} has "
            f"{_gib(available_bytes)}; reduce batch or ctx, or take a smaller preset "
            f"({', '.join(names())})"
        )


# --------------------------------------------------------------------------- reading a file


def exists(name: str) -> bool:
    """Whether there is a file or folder of that name; a name that none can have is no error."""
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long a name, or a null byte in it
        return False


def _read(file: Path) -> Preset:
    """Parse and validate one file; every failure becomes a PresetError."""
    shown = _shown(str(file)[-500:], limit=500)
    try:
        if file.is_dir():
            raise PresetError(f"preset {shown} is a folder; name a .toml file")
        if file.exists() and not file.is_file():  # reading a pipe or a device may never end
            raise PresetError(f"preset {shown} is not a regular file; name a .toml file")
        with file.open("rb") as stream:
            content = stream.read(_LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise PresetError(
            f"preset file {shown} does not exist; known presets: {', '.join(names())}"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PresetError(f"preset file {shown} cannot be read: {reason}") from None
    if len(content) > _LARGEST_FILE_BYTES:
        raise PresetError(f"preset file {shown} is larger than 1 MiB; this is not a preset")
    try:
        keys = tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise PresetError(
            f"preset file {shown} is not text: byte {error.start} is not UTF-8"
        ) from None
    except (ValueError, RecursionError) as error:  # ValueError: bad TOML, or an endless integer
        reason = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise PresetError(f"preset file {shown} is not TOML: {reason}") from None
    return _validated(shown, keys)


def _validated(where: str, keys: dict[str, Any]) -> Preset:
    """A Preset from keys, or one PresetError that lists every problem."""
    problems = _key_problems(keys)
    if problems:
        _refuse(where, problems)
    try:
        # Strict: a bool or a string is no number; an int may stand for a float.
        preset = Preset.model_validate(keys, strict=True)
    except ValidationError as error:
        # Without the URLs and contexts, in which an exception object could hide.
        _refuse(where, [_sentence(detail) for detail in error.errors(include_url=False)])
    need = memory_bytes(preset)
    limit = WASM64_BYTES if preset.memory64 else WASM32_BYTES
    if need.total_bytes > limit:
        advice = "reduce batch, ctx or the model"
        if not preset.memory64 and need.total_bytes <= WASM64_BYTES:
            advice += ", or set memory64 = true"
        size = "64" if preset.memory64 else "32"
        _refuse(
            where,
            [
                f"{_memory_sentence(preset, need)}, above the {_gib(limit)} of {size}-bit "
                f"addresses (memory64 = {str(preset.memory64).lower()}); {advice}"
            ],
        )
    return preset


def _key_problems(keys: dict[str, Any]) -> list[str]:
    known = list(Preset.model_fields)
    problems = []
    for key, value in keys.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
            problems.append(f"unknown key {_shown(key)} (its value is {_quoted(value)}); {hint}")
    problems += [
        f"key {key} is missing; a preset is complete, copy the line from one of the project's"
        for key in known
        if key not in keys
    ]
    return problems


def _sentence(detail: ErrorDetails) -> str:
    """One problem found by pydantic, as key, value and what to do."""
    message = in_words(detail)
    if not detail["loc"]:  # a rule over several keys names them itself
        return message
    key = str(detail["loc"][0])
    if detail["type"] == "string_pattern_mismatch":
        message = {
            "name": "should be at most 64 letters, digits, dots, hyphens and underscores",
            "corpus_sha256": "should be 64 lower-case hexadecimal digits, or empty",
        }[key]
    value = detail["input"]
    if isinstance(value, float) and not math.isfinite(value):
        message = "should be a finite number"  # not "less than 10", which infinity breaks as well
    if detail["type"] == "value_error":  # a rule of ours names the value itself
        return f"{key}: {message}"
    return f"{key} = {_quoted(detail['input'])} {message}"


def _refuse(where: str, problems: list[str]) -> None:
    raise PresetError(
        f"{where}: {problems[0]}"
        if len(problems) == 1
        else f"{where}: {len(problems)} problems\n" + "\n".join(f"  - {p}" for p in problems)
    )


def _shown(value: object, limit: int = 80) -> str:
    """A value for a message: printable, of bounded length."""
    try:
        text = value if isinstance(value, str) else str(value).lower()
    except ValueError:  # an integer with thousands of digits
        return "a very long integer"
    if isinstance(value, str) and (not text.isprintable() or not text):
        text = ascii(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _quoted(value: object) -> str:
    """A value as a preset file has it: a string is told from a number by its quotes."""
    return f'"{_shown(value)}"' if isinstance(value, str) and value else _shown(value)


def _memory_sentence(preset: Preset, need: MemoryNeed) -> str:
    return (
        f"training batch = {preset.batch} × ctx = {preset.ctx} needs about "
        f"{_gib(need.total_bytes)} (weights {_gib(need.weights_bytes)}, gradients "
        f"{_gib(need.gradients_bytes)}, moments {_gib(need.moments_bytes)}, activations "
        f"{_gib(need.activations_bytes)})"
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:,.2f} GiB"
