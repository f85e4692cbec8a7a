"""Presets: the project's own files, and what a wrong file is told."""

import math
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driver import presets
from driver.errors import PresetError, UsageError
from driver.layout import PRESETS
from driver.presets import Preset

TINY = (PRESETS / "tiny.toml").read_text()
# A busy machine is no failure; every example writes its file anew.
STEADY = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
NAMES = ("tiny", "small", "medium", "large", "xl", "behemoth")
OLD = ("receipt-2026-09-02", "receipt-2026-09-02-clip")


@pytest.fixture
def write(tmp_path: Path):
    """Writes a preset file with some lines replaced, and gives its path."""

    def writer(content: str | bytes = TINY, **changes: str | None) -> str:
        if isinstance(content, str):
            lines = content.splitlines()
            for key, value in changes.items():
                lines = [line for line in lines if not line.startswith(f"{key} =")]
                lines += [f"{key} = {value}"] if value is not None else []
            content = "\n".join(lines).encode()
        file = tmp_path / "mine.toml"
        file.write_bytes(content)
        return str(file)

    return writer


def refusal(file: str) -> str:
    """The message with which a file is refused; it names the file."""
    with pytest.raises(PresetError) as error:
        presets.load(file)
    assert error.value.exit_code == 2
    assert Path(file).name in str(error.value)
    return str(error.value)


# --------------------------------------------------------------------------- the project's own


def test_names_are_listed_from_small_to_large() -> None:
    assert presets.names() == NAMES + OLD


@pytest.mark.parametrize(
    ("name", "shape"),
    [  # L, H, C, T, B
        ("tiny", (2, 3, 48, 32, 16)),
        ("small", (3, 3, 96, 64, 16)),
        ("medium", (4, 4, 128, 96, 16)),
        ("large", (6, 6, 192, 128, 12)),
        ("xl", (8, 8, 256, 128, 8)),
        ("behemoth", (24, 20, 1280, 512, 1)),
    ],
)
def test_shape_and_recipe(name: str, shape: tuple[int, ...]) -> None:
    preset = presets.load(name)
    model = preset.model
    assert preset.name == name
    assert (model.n_layer, model.n_head, model.d_model, model.ctx, model.batch) == shape
    assert model.d_ff == 4 * model.d_model
    assert model.vocab == 256
    assert (model.lr, model.beta1, model.beta2, model.eps) == (3e-4, 0.9, 0.95, 1e-8)
    assert (model.weight_decay, model.grad_clip) == (0.1, 1.0)
    assert preset.seed == 42
    assert preset.memory64 == (name == "behemoth")


@pytest.mark.parametrize("name", NAMES + OLD)
def test_files_are_flat_and_complete(name: str) -> None:
    keys = tomllib.loads((PRESETS / f"{name}.toml").read_text())
    assert set(keys) == set(Preset.model_fields)
    assert not any(isinstance(value, dict | list) for value in keys.values())


@pytest.mark.parametrize(("name", "clip"), [(OLD[0], 0.0), (OLD[1], 1.0)])
def test_the_old_receipts_recipe(name: str, clip: float) -> None:
    preset, large = presets.load(name), presets.load("large")
    assert preset.model == large.model.model_copy(update={"grad_clip": clip})
    assert (preset.seed, preset.init, preset.offsets) == (42, "mulberry32", "hashed")
    assert (large.init, large.offsets, large.corpus_sha256) == ("philox", "philox", "")
    # A slot is 20 steps from the initial state, whatever the machine's speed.
    assert (preset.warmup_steps, preset.windows, preset.max_steps_per_window) == (0, 20, 1)
    assert preset.corpus_sha256.startswith("86c4e6aa")


def test_plans_from_before_the_generators_had_names() -> None:
    plain = presets.load("tiny")
    kept = {k: v for k, v in plain.model_dump().items()
            if k not in ("init", "offsets", "corpus_hint")}  # fmt: skip
    assert Preset.model_validate(kept) == plain


def test_unknown_generators(write) -> None:
    assert 'init = "mt19937"' in refusal(write(init='"mt19937"'))
    assert "offsets" in refusal(write(offsets=None))


def test_budgets() -> None:
    budgets = [presets.load(name).budget_s / 60 for name in NAMES]
    assert budgets == [2, 4, 10, 20, 30, 60]


def test_a_preset_survives_its_own_json() -> None:
    preset = presets.load("large")
    assert Preset.model_validate_json(preset.model_dump_json()) == preset


# --------------------------------------------------------------------------- a user's file


def test_a_file_works_wherever_a_name_does(write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(name='"mine"', lr="1", batch="3")
    preset = presets.load(file)
    assert (preset.name, preset.lr, preset.batch) == ("mine", 1.0, 3)
    monkeypatch.chdir(Path(file).parent)
    assert presets.load("mine.toml") == preset
    assert presets.load("./mine.toml") == preset


def test_a_name_wins_over_a_file_beside_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").write_text("nonsense")
    monkeypatch.chdir(tmp_path)
    assert presets.load("tiny").name == "tiny"
    with pytest.raises(PresetError, match="not TOML"):
        presets.load("./tiny")


@pytest.mark.parametrize("name", ["smal", "Small", "SMALL"])
def test_an_unknown_name_suggests_the_nearest(name: str) -> None:
    with pytest.raises(PresetError, match=r"unknown preset \w+. Did you mean small\?") as error:
        presets.load(name)
    assert all(known in str(error.value) for known in NAMES)


@pytest.mark.parametrize("name", ["", "gigantic", "a\0b", "x" * 5000, "\n", "ß" * 300])
def test_names_that_resemble_nothing(name: str) -> None:
    with pytest.raises(PresetError, match="unknown preset") as error:
        presets.load(name)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("n_layer", "0", "n_layer = 0 should be greater than or equal to 1"),
        ("n_layer", "true", "n_layer = true should be a whole number"),
        ("n_layer", "2.0", "n_layer = 2.0 should be a whole number"),
        ("n_layer", '"2"', 'n_layer = "2" should be a whole number'),
        ("n_layer", "9" * 5000, "not TOML"),
        ("n_layer", "0x" + "f" * 5000, "n_layer = a very long integer"),
        ("n_head", "5", "d_model 48 is not divisible by n_head 5"),
        ("lr", "true", "lr = true should be a number"),
        ("lr", '"3e-4"', 'lr = "3e-4" should be a number'),
        ("lr", "nan", "lr = nan should be a finite number"),
        ("lr", "inf", "lr = inf should be a finite number"),
        ("lr", "0", "lr = 0 should be greater than 0"),
        ("beta1", "1", "beta1 = 1 should be less than 1"),
        ("beta2", "nan", "beta2 = nan should be a finite number"),
        ("eps", "-1e-8", "eps = -1e-08"),
        ("grad_clip", "nan", "grad_clip = nan should be a finite number"),
        ("warmup_ms", "inf", "warmup_ms = inf should be a finite number"),
        ("window_ms", "nan", "window_ms = nan should be a finite number"),
        ("ctx", "[32]", "ctx = \\[32\\] should be a whole number"),
        ("batch", "1979-05-27", "batch = 1979-05-27 should be a whole number"),
        ("vocab", "1", "vocab = 1"),
        ("seed", "-1", "seed = -1 should be greater than or equal to 0"),
        ("seed", str(2**53), "seed = 9007199254740992 should be less than"),
        ("blocks", "0", "blocks = 0"),
        ("windows", "0", "windows = 0"),
        ("budget", '"soon"', "budget: soon is not a duration; write 90"),
        ("budget", "180", "budget = 180 should be text"),
        ("memory64", "1", "memory64 = 1 should be true or false"),
        ("memory64", '"true"', 'memory64 = "true" should be true or false'),
        ("name", '"../x"', r'name = "\.\./x" should be at most 64'),
        ("corpus_sha256", '"abc"', 'corpus_sha256 = "abc" should be 64 lower-case'),
        ("n_layers", "2", r"unknown key n_layers \(its value is 2\); did you mean n_layer\?"),
        ("dropout", "0.1", "unknown key dropout"),
        ("lr", None, "key lr is missing"),
        ("corpus_sha256", None, "key corpus_sha256 is missing"),
    ],
)
def test_a_wrong_value_is_named(write, key: str, value: str | None, message: str) -> None:
    file = write(**{key: value})
    with pytest.raises(PresetError, match=message):
        presets.load(file)
    refusal(file)


def test_all_problems_are_listed_at_once(write) -> None:
    message = refusal(write(lr="0", seed="-3", blocks="true"))
    assert "3 problems" in message
    assert all(part in message for part in ("lr = 0", "seed = -3", "blocks = true"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("seed = 1\nlr = \n\n", "not TOML.*line 2"),
        ("lr = 1\nlr = 2\n\n", "not TOML.*line 2"),
        (b"\xff\xfe\x00", "not text: byte 0 is not UTF-8"),
        (bytes(range(256)), "not"),
        (b"\0" * 10, "not TOML"),
        (b"", "problems"),
        (b"[model]\nn_layer = 2\n", "unknown key model"),
        (b"x = " + b"[" * 100_000, "not TOML: it is nested too deeply"),
        (b"# " + b"x" * 2**20, "larger than 1 MiB"),
    ],
)
def test_content_that_is_no_preset(write, content: str | bytes, message: str) -> None:
    file = write(content)
    with pytest.raises(PresetError, match=message):
        presets.load(file)
    refusal(file)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert "folder" in refusal(str(tmp_path))
    assert "does not exist" in refusal(str(tmp_path / "none.toml"))
    assert "cannot be read" in refusal("/" + "x" * 5000 + "/tiny.toml")
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    refusal(str(tmp_path / "loop.toml"))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.toml")
        assert "not a regular file" in refusal(str(tmp_path / "pipe.toml"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads anything")
def test_a_file_without_permission(write) -> None:
    file = write()
    Path(file).chmod(0)
    assert "cannot be read" in refusal(file)


VALUES = st.one_of(
    st.integers(),
    st.integers(min_value=2**62, max_value=2**80),
    st.floats(),
    st.booleans(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=2),
)


def toml(value: object) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = "".join(f"\\U{ord(c):08x}" for c in value if not 0xD800 <= ord(c) < 0xE000)
        return f'"{escaped}"'
    return str(value)


@STEADY
@given(st.dictionaries(st.sampled_from(sorted(Preset.model_fields)), VALUES, max_size=3))
def test_any_values_load_or_are_refused(write, changes: dict[str, object]) -> None:
    file = write(**{key: toml(value) for key, value in changes.items()})
    try:
        preset = presets.load(file)
    except PresetError as error:
        assert "mine.toml" in str(error)
    else:
        assert presets.memory_bytes(preset.model).total_bytes <= presets.WASM64_BYTES


@STEADY
@given(st.lists(st.tuples(st.integers(0, len(TINY)), st.binary(max_size=4)), max_size=3))
def test_any_bytes_load_or_are_refused(write, edits: list[tuple[int, bytes]]) -> None:
    content = TINY.encode()
    for at, inserted in edits:
        content = content[:at] + inserted + content[at + len(inserted) :]
    try:
        presets.load(write(content))
    except PresetError as error:
        assert "mine.toml" in str(error)


# --------------------------------------------------------------------------- override, memory


def test_override_validates() -> None:
    tiny = presets.load("tiny")
    assert presets.override(tiny, seed=7, budget="90s").seed == 7
    assert tiny.seed == 42
    with pytest.raises(PresetError, match="preset tiny: seed = -1"):
        presets.override(tiny, seed=-1)
    with pytest.raises(PresetError, match="blocks = 0"):
        presets.override(tiny, blocks=0)
    with pytest.raises(PresetError, match="unknown key sed"):
        presets.override(tiny, sed=1)


def test_memory_counts_every_part() -> None:
    model = presets.load("tiny").model
    need = presets.memory_bytes(model)
    assert need.weights_bytes == need.gradients_bytes == 4 * 70_464
    assert need.moments_bytes == 8 * 70_464
    # 512 positions; per layer 8·48 + 2·192 + 3·32 floats, with one layer more for backward.
    assert need.activations_bytes == 4 * 512 * (3 * 864 + 512)
    assert need.total_bytes == 16 * 70_464 + need.activations_bytes


def test_behemoth_needs_more_than_32_bit_addresses() -> None:
    preset = presets.load("behemoth")
    assert presets.memory_bytes(preset.model).total_bytes > presets.WASM32_BYTES
    assert presets.run_bytes(preset.model) == pytest.approx(11.28 * 2**30, rel=1e-3)
    assert presets.reference_bytes(preset.model) > 90 * 2**30
    presets.check_memory(preset, 16 * 2**30)
    numbers = r"behemoth.*8\.52 GiB.*11\.28 GiB, but this machine has 4\.00 GiB"
    with pytest.raises(PresetError, match=numbers):
        presets.check_memory(preset, 4 * 2**30)
    with pytest.raises(PresetError, match="or set memory64 = true"):
        presets.override(preset, memory64=False)


@pytest.mark.parametrize("memory64", ["true", "false"])
def test_too_many_positions_for_any_memory(write, memory64: str) -> None:
    message = refusal(write(batch="65536", ctx="65536", memory64=memory64))
    assert "batch = 65536 × ctx = 65536 needs about" in message
    assert "reduce batch" in message


# --------------------------------------------------------------------------- durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("20m", 1200),
        ("1h", 3600),
        ("1h30m", 5400),
        ("1h30m5s", 5405),
        ("1m1s", 61),
        ("2592000", 2592000),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert presets.parse_duration(text) == seconds


NO_DURATIONS = ["", " ", "0", "0h0m", "-1", "1h30", "1m1h", "m", "h1", "1.5h", "1e3", "nan", "٣m"]
NO_DURATIONS += ["90 s", "90S", "90s\n", "2592001", "9" * 5000, "1d", "\0"]


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        presets.parse_duration(text)


@STEADY
@given(st.text(alphabet="0123456789hms.-+ e", max_size=12))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        seconds = presets.parse_duration(text)
    except UsageError:
        return
    assert math.isfinite(seconds)
    assert seconds > 0


def test_a_byte_order_mark_and_windows_line_ends(write) -> None:
    assert presets.load(write(b"\xef\xbb\xbf" + TINY.replace("\n", "\r\n").encode())).name == "tiny"
