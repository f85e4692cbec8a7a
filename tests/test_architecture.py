"""The architecture, read from the syntax trees: what may import what, and what may do I/O."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import driver
from driver.layout import ROOT

PACKAGE = Path(driver.__file__).parent

# A module imports only modules above it. A folder counts as one module.
ORDER = [
    "errors",
    "faults",  # what does not fit a schema, in words
    "later",  # imports that wait until they are needed
    "wording",  # numbers as words, for every module that says one
    "layout",
    "aside",  # long work in a thread that can be cancelled
    "records",
    "draws",  # generators of weights and offsets, in arithmetic alone
    "tensors",  # before presets, which estimates memory from it
    "versions",  # this driver's, and those of what it works with
    "presets",
    "arms",
    "sources",  # kernels and page modules of another revision or folder
    "axes",  # the ladder's rungs, in the arms' grammar
    "corpus",
    "schedule",
    "reference",
    "cases",
    "parity",
    "replicas",  # the reference in float32, rounded otherwise
    "power",  # what a number of blocks can tell
    "stats",
    "calibration",  # what runs of an arm against itself say of noise
    "profile",  # where a step's time goes
    "wasm_binary",
    "build",
    "machine",
    "adapter",
    "server",
    "browser",
    "host",  # the machine on which the browser runs
    "jobs",  # what a page is asked to do, made from all of the above
    "measure",
    "workbench",  # an arm's kernels asked apart from its step
    "threads",  # how many an arm gets
    "variants",  # of a GPU's products: right here, then fast
    "apart",  # a step's products run by themselves, for the ladder
    "doctor",
    "precision",  # what half precision did, for the ladder
    "receipt",
    "store",  # receipts as files: receipt itself does no I/O
    "compare",  # two receipts
    "trend",  # many: changes of level, a new run beside earlier ones
    "pin",
    "workload",  # what the arms train, and what the reference makes of it
    "rebuild",  # what a receipt's page was given, made from this source
    "prepare",
    "plan",
    "progress",
    "slots",
    "replay",
    "kernels",
    "geometry",  # what a step dispatches to a GPU
    "report",
    "history",
    "run",
    "serve",  # the same by hand, in a person's own browser
    "reproduce",  # a receipt's run again, and whether it agrees
    "calibrate",  # several runs of an arm against itself
    "ladder",  # several runs, a rung apart
    "cli",
]
EXEMPT = {"__init__", "__main__", "starting"}  # the package's version; the way in

MATHS = [
    "wording",
    "draws",
    "tensors",
    "schedule",
    "reference",
    "replicas",
    "parity",
    "power",
    "stats",
    "calibration",
    "profile",
    "receipt",
    "compare",
    "trend",
    "report",
]
IO_MODULES = {
    "aiohttp",
    "asyncio",
    "http",
    "multiprocessing",
    "os",
    "pathlib",
    "playwright",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "urllib",
}
IO_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}

TOP_LEVEL = {
    "LICENSE",
    "README.md",
    "driver",
    "presets",
    "pyproject.toml",
    "tests",
    "wasm_src",
    "web",
    "webgpu_src",
}
# What .gitignore leaves out and a working tree may hold.
BY_PRODUCTS = {"build", "dist", "receipts"}

FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(file: Path) -> str:
    """The module that a file belongs to: its own name, or its folder's."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), str(file))


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of everything imported anywhere in a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the package"
            assert node.module is not None
            if node.module == "driver":
                yield from (f"driver.{alias.name}" for alias in node.names)
            else:
                yield node.module


def our_imports(file: Path) -> set[str]:
    """Other modules of the driver that a file imports."""
    dotted = [name.split(".") for name in imports(tree_of(file))]
    found = {parts[1] for parts in dotted if parts[0] == "driver" and len(parts) > 1}
    return found - {module_of(file), "__version__"}


def foreign_imports(file: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(tree_of(file))}


def shown(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


def test_every_module_has_its_place() -> None:
    assert {module_of(file) for file in FILES} - EXEMPT <= set(ORDER)


@pytest.mark.parametrize("file", FILES, ids=shown)
def test_imports_point_upwards(file: Path) -> None:
    if module_of(file) in EXEMPT:
        return
    above = ORDER[: ORDER.index(module_of(file))]
    assert our_imports(file) <= set(above)


def test_the_way_in_starts_with_what_hears_ctrl_c() -> None:
    """Before the first slow import; and that module needs nothing slow itself."""
    assert next(imports(tree_of(PACKAGE / "__main__.py"))) == "driver.starting"
    assert foreign_imports(PACKAGE / "starting.py") == {"io", "os", "signal", "sys", "types"}


@pytest.mark.parametrize("file", FILES, ids=shown)
def test_no_imports_inside_functions(file: Path) -> None:
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            assert not list(imports(node)), f"line {node.lineno}"


@pytest.mark.parametrize("file", [f for f in FILES if module_of(f) in MATHS], ids=shown)
def test_maths_does_no_io(file: Path) -> None:
    assert not foreign_imports(file) & IO_MODULES
    called = {
        node.func.id
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & IO_CALLS


@pytest.mark.parametrize("file", FILES, ids=shown)
def test_only_browser_knows_playwright(file: Path) -> None:
    assert ("playwright" not in foreign_imports(file)) or module_of(file) == "browser"


@pytest.mark.parametrize("file", FILES, ids=shown)
def test_every_module_says_what_it_is(file: Path) -> None:
    assert file.name in ("__main__.py", "__init__.py") or ast.get_docstring(tree_of(file))


def test_the_checks_notice_what_they_forbid(tmp_path: Path) -> None:
    file = tmp_path / "any.py"
    file.write_text("import os.path\nfrom driver import run\ndef f():\n    import driver.cli\n")
    assert list(imports(tree_of(file))) == ["os.path", "driver.run", "driver.cli"]


def test_the_top_level_is_fixed() -> None:
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("installed from a wheel: there is no checkout")
    found = {
        entry.name
        for entry in ROOT.iterdir()
        if not entry.name.startswith(".") and not entry.name.endswith(".egg-info")
    }
    assert found - BY_PRODUCTS <= TOP_LEVEL
