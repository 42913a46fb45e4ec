"""One clean place to run: what every kernel finds around it, whatever the reader's own machine has.

`prepare` puts it in place in the process that starts kernels, which hand it on to what they start.
"""

import atexit
import fnmatch
import functools
import os
import shutil
import tempfile
from pathlib import Path

from ipykernel.kernelspec import get_kernel_dict, write_kernel_spec

KERNEL = "python3"
"""The name of the kernel that `prepare` writes: this interpreter, started by `kernel.py`."""
TABLE = {
    "JUPYTER_PATH": ("{folder}/jupyter", "our kernel comes before all others of its name"),
    "IPYTHONDIR": ("{folder}/ipython", "no profile and no startup file of the user's"),
    "JPY_SESSION_NAME": (None, "it names the notebook from which a command is run, not the lesson"),
    "MPLBACKEND": (None, "a kernel chooses the inline backend unless another is set"),
    "MATPLOTLIBRC": (os.devnull, "figures have the default style"),
    "PYTHON*": (None, "no assert is skipped, no warning changed, no file run, no folder searched"),
    "PYTHONUTF8": ("1", "files and processes speak UTF-8 in every locale"),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": (None, "it rounds products on a GPU to ten bits"),
    "TORCH_LOGS": (None, "it prints beside a cell's own output"),
    "TORCH_SHOW_CPP_STACKTRACES": (None, "it prints a stack below each message of torch's"),
    "PYTORCH_JIT": (None, "with 0, a scripted model is an ordinary one"),
    "MKL_VERBOSE": (None, "it prints a line for each product of matrices"),
    "OMP_DISPLAY_ENV": (None, "it prints when a library of threads is loaded"),
}
"""Each variable, or pattern of several: its value, or None where it is removed, and the reason."""


@functools.cache
def prepare() -> None:
    """Put `TABLE` into the environment of this process.

    Raises:
        ValueError: The folder for temporary files cannot be in a list of folders.
    """
    folder = tempfile.mkdtemp(prefix="lessons-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if os.pathsep in folder:
        raise ValueError(f"{folder} has a {os.pathsep!r} in its name: set TMPDIR to another folder")
    command = get_kernel_dict()["argv"]
    module = command.index("-m")
    command[module : module + 2] = [str(Path(__file__).resolve().with_name("kernel.py"))]
    write_kernel_spec(Path(folder, "jupyter", "kernels", KERNEL), {"argv": command})
    for variable, (value, _) in TABLE.items():
        for name in fnmatch.filter(os.environ, variable):
            del os.environ[name]
        if value is not None:
            os.environ[variable] = value.format(folder=folder)
