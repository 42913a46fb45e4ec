"""One clean place to run: whatever a machine holds, a lesson gives what it was saved with."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from helpers.tooling.lesson import environment, files
from tests.support.samples import ROOT, cell, code, lesson, save

SHOWN = {
    "interpreter": ("import sys\nprint(sys.prefix)", "{desk}/env\n"),
    "last-line-alone": ("1\n2", "2"),
    "asserts": ("print(__debug__)", "True\n"),
    "warnings": ("print(sys.warnoptions, sys.flags.dev_mode)", "[] False\n"),
    "nothing-started": ("print({'started', '__session__'} & set(globals()))", "set()\n"),
    "modules": ("from importlib.util import find_spec\nprint(find_spec('foreign'))", "None\n"),
    "text": ("import locale\nprint(locale.getpreferredencoding())", "utf-8\n"),
    "figure": ("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()", "<Figure size 6"),
    "style": ("print(plt.rcParams['lines.linewidth'])", "1.5\n"),
}
"""Cells by their name: the source, and what it shows in a clean place."""
CONFIG = "c.InteractiveShell.ast_node_interactivity = 'all'\n"
STYLE = "lines.linewidth: 9\n"
NOT_OURS = json.dumps({"argv": ["false"], "display_name": "Other", "language": "python"})
FILES = {
    "home/.ipython/profile_default/ipython_config.py": CONFIG,
    "home/.ipython/profile_default/startup/00.py": "started = True",
    "home/.local/share/jupyter/kernels/python3/kernel.json": NOT_OURS,
    "home/.config/matplotlib/matplotlibrc": STYLE,
    "env/etc/ipython/ipython_config.py": CONFIG,
    "env/etc/ipython/startup/00.py": "started = True",
    "notebooks/matplotlibrc": STYLE,
    "foreign/kernels/python3/kernel.json": NOT_OURS,
    "foreign/foreign.py": "",
    "foreign/startup.py": "started = True",
    "foreign/profile_default/ipython_config.py": CONFIG,
    "foreign/matplotlibrc": STYLE,
}
"""What a machine may hold that nobody asked for, in the folder of a test."""
VARIABLES = {
    "HOME": "{desk}/home",
    "IPYTHONDIR": "{desk}/foreign",
    "JPY_SESSION_NAME": "a.ipynb",
    "JUPYTER_PATH": "{desk}/foreign",
    "JUPYTER_PREFER_ENV_PATH": "0",
    "MATPLOTLIBRC": "{desk}/foreign",
    "MPLBACKEND": "Agg",
    "PYTHONDEVMODE": "1",
    "PYTHONOPTIMIZE": "2",
    "PYTHONPATH": "{desk}/foreign",
    "PYTHONSTARTUP": "{desk}/foreign/startup.py",
    "PYTHONUTF8": "0",
    "PYTHONWARNINGS": "error",
}
"""Values that change what a lesson shows unless the environment of its kernel is clean."""
SHOWN_BY_TORCH = {
    "products": (  # so many that what MKL prints does not stay in its buffer
        "import torch\nfor _ in range(99):\n    a = torch.eye(64) @ torch.eye(64)\na[0, 0]",
        "tensor(1.)",
    ),
    "script": ("type(torch.jit.script(torch.nn.ReLU())).__name__", "'RecursiveScriptModule'"),
    "compiled": ("torch.compile(torch.neg, backend='eager')(torch.eye(1))", "tensor([[-1.]])"),
    "error": (
        "try:\n    torch.eye(2) @ torch.eye(3)\nexcept RuntimeError as error:\n    print(error)",
        "mat1 and mat2 shapes cannot be multiplied (2x2 and 3x3)\n",
    ),
    "precision": ("torch.get_float32_matmul_precision()", "'highest'"),
    "pool": ("import sklearn.cluster\nprint('done')", "done\n"),
}
VARIABLES_OF_TORCH = {
    "MKL_VERBOSE": "1",
    "OMP_DISPLAY_ENV": "VERBOSE",
    "PYTORCH_JIT": "0",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    "TORCH_LOGS": "+dynamo",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}
"""The same for what a lesson shows by torch, which takes seconds to import."""
ALWAYS = {
    "LC_ALL": "de_DE",
    "LOCPATH": "{desk}/locales",
    "PYTHONCOERCECLOCALE": "0",
    "XDG_CACHE_HOME": f"{Path.home()}/.cache",
}
"""A locale that is not UTF-8, or ASCII where none can be made; and the fonts found here before."""


@pytest.fixture
def python(desk) -> Path:
    """Make a dirty place, with a lesson, and an environment with a configuration of its own."""
    env = desk / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    where = {"base": str(env), "platbase": str(env)}
    installed = sysconfig.get_path("purelib")
    Path(sysconfig.get_path("purelib", vars=where), "installed.pth").write_text(installed, "utf-8")
    for name, text in FILES.items():
        (desk / name).parent.mkdir(parents=True, exist_ok=True)
        (desk / name).write_text(text, "utf-8")
    if shutil.which("localedef"):
        (desk / "locales").mkdir()
        subprocess.run(["localedef", "-i", "de_DE", "-f", "ISO-8859-1", desk / "locales" / "de_DE"])
    return env / "bin" / "python"


def write(shows: Mapping[str, tuple[str, str]]) -> Path:
    """Write a lesson that shows this."""
    cells = []
    for name, (source, shown) in shows.items():
        cells.append(code(name, source, printed=shown.format(desk=Path.cwd())))
    return save(lesson(*cells), "01_a")


def call(python: Path, module: str, variables: Mapping[str, str], *arguments: str) -> None:
    """Run a command of the collection, which must succeed, among a reader's variables."""
    values = {}
    for name, value in os.environ.items():
        # Not what this process prepared; and where a kernel finds pytest's variable, it does not
        # show what libraries in C print.
        if name not in (*environment.TABLE, "PYTEST_CURRENT_TEST"):
            values[name] = value
    for name, value in (ALWAYS | variables).items():
        values[name] = value.format(desk=Path.cwd())
    done = subprocess.run(
        [python, "-m", module, *arguments],
        env=values,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check(path: Path, shows: Mapping[str, tuple[str, str]]) -> None:
    """Check that each cell of the lesson shows what it should, and nothing else."""
    notebook = files.read(path)
    for name, (_, shown) in shows.items():
        (output,) = cell(notebook, name).outputs
        text = output.get("text") or output["data"]["text/plain"]
        expected = shown.format(desk=Path.cwd())
        if name == "figure":
            assert text.startswith(expected)
            assert "image/png" in output.data
        else:
            assert text == expected, name


def test_each_tool_runs_a_lesson_as_it_was_saved(python):
    path = write(SHOWN)
    together = dict(VARIABLES)
    for slow in ("PYTHONDEVMODE", "PYTHONOPTIMIZE"):  # for the tool that starts the kernel
        del together[slow]
    call(python, "helpers.tooling.outputs", together)
    check(path, SHOWN)
    call(python, "helpers.tooling.run", together, "--device", "cpu")
    check(Path("build", "cpu", path.name), SHOWN)
    options = ["-c", str(ROOT / ".pytest.ini"), "--rootdir", ".", "-p", "no:cacheprovider"]
    call(python, "pytest", together, *options, "notebooks")


@pytest.mark.whole
@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_alone_changes_nothing(name, python):
    path = write(SHOWN)
    call(python, "helpers.tooling.outputs", {name: VARIABLES[name]})
    check(path, SHOWN)


@pytest.mark.whole
def test_variables_of_torch_change_nothing(python):
    path = write(SHOWN_BY_TORCH)
    call(python, "helpers.tooling.outputs", VARIABLES_OF_TORCH)
    check(path, SHOWN_BY_TORCH)
