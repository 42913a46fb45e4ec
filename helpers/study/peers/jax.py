"""JAX's `jit(vmap(grad))`, in a process of its own, of an environment of its own if there is one.

The process runs `jax_worker.py`, which computes the same networks with the same weights.
"""

import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

NAMES = ("JAX batch gradient", "JAX jit(vmap(grad))")
WORKER = Path(__file__).with_name("jax_worker.py")
ENVIRONMENT = Path(__file__).parents[3] / ".venv-jax"
"""Where `make bench` installs JAX."""


def python() -> str | None:
    """Return the interpreter that has JAX: that of `make bench`, else this one, else None."""
    for folder in ("bin/python", "Scripts/python.exe"):
        if (ENVIRONMENT / folder).exists():
            return str(ENVIRONMENT / folder)
    return sys.executable if find_spec("jax") else None


@cache
def absent() -> str | None:
    """Return a sentence if JAX is not there, else `None`."""
    if not WORKER.exists():  # a copy of a lesson carries the modules that are imported
        return "JAX is measured in a clone only: this copy does not carry its process"
    interpreter = python()
    if interpreter is None:
        return "JAX is not installed: make bench"
    tried = subprocess.run([interpreter, "-c", "import jax"], capture_output=True, text=True)
    if tried.returncode:
        return f"JAX cannot be imported: {tried.stderr.strip().splitlines()[-1]}"
    return None
