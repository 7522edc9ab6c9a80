"""Kernels files in Python: functions decorated with `kernel`, and `Definition` objects, at module level."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import sys
import traceback
from pathlib import Path
from types import ModuleType

from polymux.core.errors import ConfigError
from polymux.kernel.decorator import definition_of
from polymux.kernel.definition import Definition


def read_python_file(file: Path) -> tuple[Definition, ...]:
    """Run a Python file and return its kernels, in the order in which they are defined.

    Raises
    ------
    ConfigError
        If the file raises, or defines no kernel.

    Notes
    -----
    The file's folder can be imported from while the file runs.
    """
    module = _run(file.resolve())
    found = definitions_in(module)
    if not found:
        remedy = (
            "it defines no kernel; decorate a function: from polymux.kernel import kernel, then @kernel(...)"
        )
        raise ConfigError(str(file), "kernels", file.name, remedy)
    return found


def definitions_in(module: ModuleType) -> tuple[Definition, ...]:
    """Kernels among the module's global names, each once."""
    found: dict[int, Definition] = {}
    for value in vars(module).values():
        definition = value if isinstance(value, Definition) else definition_of(value)
        if definition is not None:
            found[id(definition)] = definition
    return tuple(found.values())


def _run(file: Path) -> ModuleType:
    name = f"polymux_kernels_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look a module up by its name
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _config_error(file, error) from error
    finally:
        sys.path.remove(str(file.parent))
    return module


def _config_error(file: Path, error: BaseException) -> ConfigError:
    """Name the line of the file that failed."""
    number = 0
    if isinstance(error, SyntaxError) and error.filename == str(file):
        number = error.lineno or 0
    else:
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == str(file):
                number = frame.lineno or 0
    text = linecache.getline(str(file), number).strip()
    remedy = f"it cannot be loaded: {type(error).__name__}: {error}"
    return ConfigError(str(file), f"line {number}", text, remedy)
