"""Modules that are imported when first used, so that a command pays for what it needs."""

import importlib.util
import sys
from types import ModuleType


def later(name: str) -> ModuleType:
    """The module of that full name, as yet unread; any use of it imports it.

    For types write the plain import too, under `if TYPE_CHECKING`. Raises ModuleNotFoundError at
    once where there is none; what the import itself raises comes with the first use.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module named {name!r}", name=name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
