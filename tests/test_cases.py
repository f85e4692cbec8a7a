"""Case and result files: what is written is read back; what is wrong is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from driver.cases import Case, Result, read_case, write_case, write_result
from driver.errors import CaseError, UsageError
from driver.records import ModelConfig
from driver.tensors import initial_state

CONFIG = {
    "n_layer": 1, "n_head": 2, "d_model": 4, "d_ff": 5, "ctx": 3, "batch": 2, "vocab": 7,
    "lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0,
}  # fmt: skip
MODEL = ModelConfig.model_validate(CONFIG)
TOKENS = np.random.default_rng(1).integers(0, 7, (2, 2, 4), dtype=np.int32)


def arrays() -> dict[str, np.ndarray]:
    state = initial_state(MODEL, 3)
    return {"tokens": TOKENS} | {f"param/{name}": array for name, array in state.items()}


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a case file whose tensors, configuration or metadata are changed; None leaves out."""

    def writer(
        tensors: dict[str, np.ndarray | None] | None = None,
        config: dict[str, Any] | str | None = None,
        metadata: dict[str, str | None] | None = None,
    ) -> Path:
        data = {k: v for k, v in (arrays() | (tensors or {})).items() if v is not None}
        text = config if isinstance(config, str) else json.dumps(changed(config or {}))
        words = {"format": "driver-case/1", "config": text} | (metadata or {})
        path = tmp_path / "mine.case.safetensors"
        save_file(data, path, metadata={k: v for k, v in words.items() if v is not None})
        return path

    return writer


def changed(config: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in (CONFIG | config).items() if v is not None}


def refusal(path: Path) -> str:
    """Why a file is refused; the message names the file."""
    with pytest.raises(CaseError) as error:
        read_case(path)
    assert str(path) in str(error.value)
    assert error.value.exit_code == 2
    return str(error.value)


# --------------------------------------------------------------------------- round trips


def test_a_case_is_read_as_written(tmp_path: Path) -> None:
    case = Case(MODEL, TOKENS, initial_state(MODEL, 3))
    write_case(tmp_path / "a.case.safetensors", case)
    read = read_case(tmp_path / "a.case.safetensors")
    assert read.config == MODEL
    assert read.steps == 2
    assert np.array_equal(read.tokens, TOKENS)
    assert list(read.state) == list(case.state)
    assert all(np.array_equal(read.state[name], case.state[name]) for name in case.state)


def test_a_result_is_read_as_written(tmp_path: Path) -> None:
    strided = np.arange(12.0).reshape(3, 4).T  # not contiguous
    result = Result(
        np.array([1.5, 1.25]), np.array([2.0, 3.0]), {"wte": strided}, {"wte": strided + 1}
    )
    write_result(tmp_path / "r.safetensors", result)
    read = load_file(tmp_path / "r.safetensors")
    assert read.keys() == {"losses", "grad_norms", "grad/wte", "param/wte"}
    assert np.array_equal(read["losses"], [1.5, 1.25])
    assert np.array_equal(read["grad/wte"], strided)
    assert np.array_equal(read["param/wte"], strided + 1)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_case(tmp_path / "no" / "a.safetensors", Case(MODEL, TOKENS, initial_state(MODEL, 3)))


def test_the_oracles_cases(golden: Path) -> None:
    for name in ("tiny", "tiny-jitter", "strong"):
        case = read_case(golden / f"{name}.case.safetensors")
        assert case.tokens.shape[1:] == (case.config.batch, case.config.ctx + 1)


# --------------------------------------------------------------------------- files


def test_no_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.safetensors")
    assert "not a file" in refusal(tmp_path)


def test_not_a_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for content in (b"", b"\0", b"PK\x03\x04" * 9, b"\xff" * 64, b"{}", bytes(range(256))):
        path.write_bytes(content)
        assert "not a readable safetensors file" in refusal(path)


def test_truncated_anywhere(write: Write) -> None:
    path = write()
    whole = path.read_bytes()
    for length in [*range(64), *range(64, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        refusal(path)
    path.write_bytes(whole + b"\0")
    refusal(path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused(write: Write, data: st.DataObject) -> None:
    path = write()
    content = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    # Headers break in more ways than data: most of the mutations go there.
    places = st.integers(0, header - 1) | st.integers(0, len(content) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=6)):
        content[place] = data.draw(st.integers(0, 255) | st.sampled_from(b'{}[],:"019-'))
    path.write_bytes(content)
    try:
        case = read_case(path)
    except CaseError as error:
        assert str(path) in str(error)
    else:
        assert case.steps == TOKENS.shape[0]


# --------------------------------------------------------------------------- metadata


@pytest.mark.parametrize("found", ["driver-result/1", "driver-case/2", "", None])
def test_another_format(write: Write, found: str | None) -> None:
    assert f"format is {found!r}, expected 'driver-case/1'" in refusal(
        write(metadata={"format": found})
    )


def test_a_plain_safetensors_file(tmp_path: Path) -> None:
    save_file({"x": np.zeros(3, np.float32)}, tmp_path / "weights.safetensors")
    assert "format is None" in refusal(tmp_path / "weights.safetensors")


def test_no_configuration(write: Write) -> None:
    assert "no `config`" in refusal(write(metadata={"config": None}))


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "3", '"x"', "{'n_layer': 1}", "\x00"])
def test_a_configuration_that_is_no_object(write: Write, text: str) -> None:
    assert "config: config: " in refusal(write(config=text))


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ({"layers": 3}, "layers", "3"),
        ({"n_layer": None}, "n_layer", ""),
        ({"grad_clip": None}, "grad_clip", ""),
        ({"n_layer": "1"}, "n_layer", "'1'"),
        ({"n_layer": 1.5}, "n_layer", "1.5"),
        ({"n_layer": True}, "n_layer", "True"),
        ({"lr": True}, "lr", "True"),
        ({"lr": "fast"}, "lr", "'fast'"),
        ({"n_layer": 0}, "n_layer", "0"),
        ({"n_head": -2}, "n_head", "-2"),
        ({"vocab": 1}, "vocab", "1"),
        ({"batch": 10**30}, "batch", "1000"),
        ({"lr": 0}, "lr", "0"),
        ({"beta2": 1.0}, "beta2", "1.0"),
        ({"weight_decay": -0.1}, "weight_decay", "-0.1"),
        ({"lr": float("nan")}, "lr", "nan"),
        ({"grad_clip": float("inf")}, "grad_clip", "inf"),
        ({"beta1": float("nan")}, "beta1", "nan"),
        ({"d_ff": [5]}, "d_ff", "[5]"),
    ],
    ids=str,
)
def test_a_wrong_key_is_named_with_its_value(
    write: Write, change: dict[str, Any], key: str, value: str
) -> None:
    said = refusal(write(config=change))
    assert f"config: {key}: " in said
    assert value in said


def test_heads_must_divide(write: Write) -> None:
    assert "d_model 4 is not divisible by n_head 3" in refusal(write(config={"n_head": 3}))


# --------------------------------------------------------------------------- tensors


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"param/wte": None}, "lacks 1 tensors, first 'param/wte'"),
        ({"param/h.0.mlp.b2": None}, "'param/h.0.mlp.b2'"),
        ({"param/h.1.ln1.g": np.ones(4, np.float32)}, "unknown tensors, first 'param/h.1.ln1.g'"),
        ({"grad/wte": np.ones((7, 4), np.float32)}, "unknown tensors, first 'grad/wte'"),
        ({"param/wpe": np.ones((4, 3), np.float32)}, "param/wpe has shape (4, 3)"),
        ({"param/lnf.g": np.ones((4, 1), np.float32)}, "param/lnf.g has shape (4, 1)"),
        ({"param/wte": np.ones((7, 4), np.float64)}, "param/wte is float64, expected float32"),
        ({"param/wte": np.ones((7, 4), np.float16)}, "param/wte is float16, expected float32"),
        ({"param/lnf.b": np.array([0, 1, np.nan, 0], np.float32)}, "param/lnf.b holds numbers"),
        ({"param/lnf.b": np.array([0, 1, np.inf, 0], np.float32)}, "param/lnf.b holds numbers"),
        ({"tokens": None}, "lacks `tokens`"),
        ({"tokens": TOKENS[:, :, :3]}, "tokens has shape (2, 2, 3), expected (steps, 2, 4)"),
        ({"tokens": TOKENS[:, :1]}, "tokens has shape (2, 1, 4)"),
        ({"tokens": TOKENS[0]}, "tokens has shape (2, 4)"),
        ({"tokens": TOKENS[:0]}, "tokens has shape (0, 2, 4)"),
        ({"tokens": TOKENS.astype(np.int64)}, "tokens is int64, expected int32"),
        ({"tokens": TOKENS.astype(np.float32)}, "tokens is float32, expected int32"),
        ({"tokens": TOKENS - 1}, "tokens run from -1 to"),
        ({"tokens": TOKENS + 1}, "outside the vocabulary of 7"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_wrong_tensor_is_named(write: Write, change: dict[str, Any], said: str) -> None:
    tensors = {k: None if v is None else np.ascontiguousarray(v) for k, v in change.items()}
    assert said in refusal(write(tensors))


def test_element_types_that_numpy_lacks(write: Write) -> None:
    path = write()
    content = path.read_bytes()
    for other in (b'"BF16"', b'"F8_E4M3"', b'"BOOL"', b'"U32"'):
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        header["param/wte"]["dtype"] = other.decode().strip('"')
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
        refusal(path)
