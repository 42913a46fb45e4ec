"""Copies for Colab: each runs in an empty folder, with Colab's packages, as the lesson does."""

import functools
import json
import os
import platform
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from helpers.tooling import colab
from helpers.tooling.lesson import files, imports
from tests.lessons.tried import SIZES
from tests.support.samples import DOOR, LESSONS, ROOT, cell

REQUIREMENTS = ROOT / "tests" / "tooling" / "colab_requirements.txt"
TORCH = torch.__version__.partition("+")[0]
INSTALLS = r"^\s*[!%].*\bpip\b|[\"']pip[\"']"  # as a command, or as a word in a list of them
(PRIVATE,) = (path for path in LESSONS if path.stem == "08_private_training")
WHERE = "import helpers, torch, IPython\nprint(helpers.__file__, IPython.__version__)"


@pytest.fixture(scope="session")
def colab_python():
    """Install Colab's versions of packages beside the torch at hand, or find them installed."""
    folder = ROOT / "build" / f"colab-{platform.python_version()}-torch-{TORCH}"
    python, mark = folder / "bin" / "python", folder / "requirements.txt"
    if not mark.exists() or mark.read_text("utf-8") != REQUIREMENTS.read_text("utf-8"):
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [python, "-m", "pip", "install", "-q", f"torch=={TORCH}", "-r", REQUIREMENTS]
        subprocess.run(install, check=True)
        shutil.copyfile(REQUIREMENTS, mark)  # last, so that it says that all is there
    return python


def shorten(copy, name):
    """Write into the form of a lesson's copy the sizes that make it shorter in tests."""
    for each in copy.cells:
        if "parameters" in files.tags(each):
            form = each
    for parameter, value in SIZES.get(name, {}).items():
        line = re.compile(rf"(?m)^({parameter} = )\d+")
        assert line.search(form.source), parameter
        form.source = line.sub(rf"\g<1>{value}", form.source)


def execute(notebook, folder, python, monkeypatch):
    """Execute a notebook in an empty folder with another Python, out of reach of the checkout."""
    kernels = folder.with_name(f"{folder.name}-jupyter") / "kernels" / "python3"
    kernels.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    argv.append("--IPKernelApp.log_level=40")
    spec = {"argv": argv, "display_name": "Colab", "language": "python"}
    (kernels / "kernel.json").write_text(json.dumps(spec), "utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(kernels.parents[1]))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", coalesce_streams=True)
    client.execute(cwd=str(folder))


def printed(each):
    """List what a cell printed or showed as text; spaces differ between versions of pandas."""
    found = []
    for output in each.get("outputs", []):
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        found.append(" ".join(text.split()))
    return found


def is_compared(saved):
    if f"torch=={TORCH}" in (ROOT / "requirements.txt").read_text("utf-8").split():
        return files.is_compared(saved)
    # Another torch than the lesson's prints other numbers where nobody checks them.
    return "nbval-check-output" in files.tags(saved)


def assert_same(path, copy, excused):
    """Compare what a copy printed with what the lesson has saved, but in the excused cells."""
    for saved in files.code_cells(files.read(path)):
        fresh = cell(copy, saved.id)
        # Records of measurements are in the collection alone, and the copy says so.
        of_record = re.search(r"\brecord", fresh.source)
        if fresh.cell_type == "code" and is_compared(saved) and not of_record:
            assert saved.id in excused or printed(fresh) == printed(saved), saved.id


@pytest.fixture
def empty(tmp_path):
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


@pytest.mark.whole
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_copy_alone_gives_the_lessons_results(path, empty, colab_python, monkeypatch):
    copy = colab.standalone(path, None)
    copy.cells.append(new_code_cell(WHERE))
    shorten(copy, path.stem)
    execute(copy, empty, colab_python, monkeypatch)
    assert printed(copy.cells[-1]) == [f"{empty / 'helpers' / '__init__.py'} 7.34.0"]
    assert_same(path, copy, excused=())


@pytest.mark.whole
@pytest.mark.parametrize("path", [LESSONS[0]], ids=lambda path: path.stem)
def test_a_lesson_beside_the_whole_repository_as_a_zip(path, empty, colab_python, monkeypatch):
    """As README says for those who have installed nothing."""
    repository = empty.with_name("download") / "name-main"
    shutil.copytree(ROOT / "helpers", repository / "helpers", ignore=lambda *_: ["__pycache__"])
    shutil.make_archive(empty / "name-main", "zip", repository.parent)
    lesson = files.read(path)
    line = re.search(r"!unzip .+", (ROOT / "README.md").read_text("utf-8"))[0]
    lesson.cells.insert(0, new_code_cell(line))
    lesson.cells.append(new_code_cell(WHERE))
    execute(lesson, empty, colab_python, monkeypatch)
    assert printed(lesson.cells[-1]) == [f"{empty / 'helpers' / '__init__.py'} 7.34.0"]
    assert_same(path, lesson, excused=())


@pytest.mark.whole
def test_without_opacus_a_copy_runs_all_that_does_not_need_it(empty, colab_python, monkeypatch):
    (empty / "opacus.py").write_text("raise ImportError('it is not there')", "utf-8")
    copy = colab.standalone(PRIVATE, None)
    shorten(copy, PRIVATE.stem)
    execute(copy, empty, colab_python, monkeypatch)
    excused = set()
    for each in files.code_cells(copy):
        if each.source.startswith("%%needs_opacus"):
            excused.add(each.id)
        says_so = "needs Opacus (" in "".join(printed(each))
        assert says_so == (each.id in excused), each.id
    assert excused
    assert_same(PRIVATE, copy, excused)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_copy_as_a_file(path):
    copy = colab.standalone(path, None)
    nbformat.validate(copy)
    assert copy.metadata.get("accelerator") == ("GPU" if path.stem in colab.GPU else None)
    assert copy.metadata.colab.collapsed_sections == [copy.cells[1].metadata.id]
    ids = [each.id for each in copy.cells]
    assert [each.metadata.id for each in copy.cells] == ids
    # Below the title the helpers, in a section of their own, then the lesson as it is.
    end = ids.index("colab-parameters")
    section = copy.cells[1:end]
    assert [each.source.startswith("## ") for each in section] == [True] + [False] * (end - 2)
    assert copy.cells[end].source.startswith("## ")
    lesson = files.read(path)
    for each, name in zip(section[3:], imports.reached(lesson), strict=True):
        text = (ROOT / name).read_text("utf-8").rstrip()
        assert each.source == f"%%writefile {name}\n# @title {name}\n{text}"
        assert each.metadata.cellView == "form"
    rest = [identity for identity in ids[end:] if not identity.startswith("colab-")]
    assert rest == [each.id for each in lesson.cells[1:]]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_links_of_a_copy_lead_to_its_cells_and_nothing_is_installed_unasked(path):
    copy = colab.standalone(path, None)
    ids = {each.id for each in copy.cells}
    (pin,) = re.findall("opacus==.*", REQUIREMENTS.read_text("utf-8"))
    asked = f"if install_opacus:\n    %pip install -q {pin}\n"
    for each in copy.cells:
        for output in each.get("outputs", []):
            # It is in a frame of its own, out of which no link leads.
            assert "](#" not in output.get("data", {}).get("text/markdown", "")
        if each.cell_type == "code":
            assert not re.search(INSTALLS, each.source.replace(asked, ""), re.M)
            continue
        for target in re.findall(r"\]\(([^)]+)\)", each.source):
            if not target.startswith("http"):
                assert target.removeprefix("#scrollTo=") in ids, target


def test_lesson_0_is_its_own_copy():
    copy = colab.standalone(DOOR, None)
    assert [each.id for each in copy.cells] == [each.id for each in files.read(DOOR).cells]
    assert "# @param" in files.code_cells(copy)[0].source, "its parameters are a form"


def test_links_lead_to_the_repository(desk):
    readme = desk / "README.md"
    before = "Copies.\n\n<!-- make colab REPO=owner/name writes the links -->\n<!-- end -->\n"
    readme.write_text(before, "utf-8")
    for path in LESSONS[:2]:
        shutil.copy(path, desk / "notebooks")
    colab.build(files.choose(["1"]), None)
    assert readme.read_text("utf-8") == before
    for repo in ("bob/gradients", "ada/gradients"):
        colab.build(files.choose(["1"]), repo)
    opened = "https://colab.research.google.com/github/ada/gradients/blob/colab/"
    links = [f"[{files.number(path)}]({opened}{path.name})" for path in LESSONS[:2]]
    said = f"Open in Colab: {', '.join(links)}.\n"
    assert readme.read_text("utf-8") == before.replace("<!-- end", f"{said}<!-- end")
    (copy,) = colab.FOLDER.iterdir()
    text = "\n".join(each.source for each in files.read(copy).cells)
    assert f"badge.svg)]({opened}{LESSONS[0].name})" in text
    assert f"]({opened}{LESSONS[1].name})" in text
    assert f"https://github.com/ada/gradients/blob/main/notebooks/{LESSONS[0].name}" in text
    with pytest.raises(ValueError, match="owner/name"):
        colab.build(files.choose(["1b"]), "https://github.com/a/b")
    assert copy.exists()


def test_copies_are_published_on_their_branch(tmp_path):
    """With a stand-in for make, into a repository beside it; twice, since a copy may go."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "colab", tmp_path / ".ci")
    make, remote = tmp_path / "make", tmp_path / "remote.git"
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    run = functools.partial(subprocess.run, env=environment, check=True, capture_output=True)
    run(["git", "init", "-q", "--bare", remote])
    for name in ("01_a.ipynb", "02_b.ipynb"):
        writes = f'rm -rf build/colab; mkdir -p build/colab; echo "$*" > build/colab/{name}'
        make.write_text(f"#!/bin/sh\n{writes}", "utf-8")
        make.chmod(0o755)
        run([tmp_path / ".ci" / "colab", "ada/gradients", remote])
        shown = run(["git", "-C", remote, "grep", "", "colab"], encoding="utf-8").stdout
        assert shown == f"colab:{name}:colab REPO=ada/gradients\n"


def test_an_older_torch_is_refused(monkeypatch):
    exec(colab.READY, {})
    monkeypatch.setattr("torch.__version__", "2.6.0+cu124")
    with pytest.raises(RuntimeError, match=r"2\.6\.0\+cu124"):
        exec(colab.READY, {})
