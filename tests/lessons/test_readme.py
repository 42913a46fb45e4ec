"""The pages for newcomers tell the truth: README's code runs, links and commands lead somewhere."""

import importlib
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from helpers import data, gradients, jacobians
from helpers.models import SimpleCNN
from tests.support.oracle import assert_equal

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
CLASS, CHANGES = "notebooks/teaching.md", ".github/CONTRIBUTING.md"
PAGES = ("README.md", "helpers/README.md", "notebooks/README.md", CLASS, CHANGES)
HISTORY = ".github/CHANGELOG.md"  # it names what is gone, too
TEXTS = {name: (ROOT / name).read_text("utf-8") for name in (*PAGES, HISTORY)}


def test_example_prints_what_it_says(capsys):
    example = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    said = re.findall(r"^print\(.*\)\n# (.*)$", example, re.MULTILINE)
    assert said, "the example prints nothing"
    exec(example, {})
    assert capsys.readouterr().out.splitlines() == said


@pytest.mark.filterwarnings("ignore::FutureWarning")  # functorch says that it is old
def test_cheat_sheet_is_right():
    _, _, sheet = TEXTS["notebooks/README.md"].partition("\n## Cheat sheet\n")
    # A table with the type of each result; then a block of code: imports, and for each way a
    # comment with its name, and its code.
    kinds = dict(re.findall(r"(?m)^\| (?!way)([\w. ]+) \| (\w+)", sheet.partition("\n## ")[0]))
    block = re.search(r"(?s)```py\n(.*?)```", sheet)[1]
    imports, *parts = re.split(r"(?m)^# (.+)\n", block)
    names, codes = parts[0::2], parts[1::2]
    assert names == list(kinds)
    for way, code in zip(names, codes, strict=True):
        torch.manual_seed(0)
        model = SimpleCNN()
        images, labels = data.load_batch(batch_size=3)
        variables = {"model": model, "X": images, "T": labels}
        exec(imports + code, variables)
        result = variables["result"]
        assert type(result).__name__ == kinds[way]
        if way == "Jacobian":
            flat = torch.cat([jacobian.flatten(2) for jacobian in result.values()], dim=2)
            assert_equal({"": flat}, {"": jacobians.func_jacobians(model, images)}, 1e-5)
            continue
        grads = gradients.loop_gradients(model, F.cross_entropy, images, labels)
        if not isinstance(result, dict):  # a tuple, in the order of the parameters
            result = dict(zip(grads, result, strict=True))
        assert_equal(result, grads, 1e-5)


def anchors(text: str) -> set[str]:
    """List the anchors that GitHub makes of headings."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        letters = re.sub(r"[^\w -]", "", heading).lower()
        found.add(letters.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(((?!http)[^)]+)\)", TEXTS[page])
    assert targets
    for target in targets:
        path, _, anchor = target.partition("#")
        there = (ROOT / page).parent / path if path else ROOT / page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there.read_text("utf-8")), target


def test_every_lesson_has_its_row_with_its_title_and_minutes():
    rows = re.findall(r"(?m)^\| \[(.+?)\]\(notebooks/(.+?)\) \| .+ \| (\d+) \|$", README)
    paths = (ROOT / "notebooks").glob("*.ipynb")
    assert sorted(name for _, name, _ in rows) == sorted(path.name for path in paths)
    for title, name, minutes in rows:
        lesson = (ROOT / "notebooks" / name).read_text("utf-8")
        assert f'"# {title}\\n"' in lesson
        assert f'"*Reading: {minutes} minutes' in lesson


DERIVED = re.findall(r"(?m)^\| (`helpers.+?) \| (.+) \| (\[.+\)) \|$", TEXTS["helpers/README.md"])


@pytest.mark.parametrize(("modules", "holds", "pages"), DERIVED, ids=[row[0] for row in DERIVED])
def test_helper_and_lesson_point_at_each_other(modules, holds, pages):
    documented = ""
    for name in re.findall(r"`helpers\.(\w+)`", modules):
        documented += importlib.import_module(f"helpers.{name}").__doc__
    lessons = ""
    for number, path in re.findall(r"\[(\w+)\]\(\.\./(.+?)\)", pages):
        assert re.search(rf"(?i)lesson {number}\b", documented), number
        lessons += (ROOT / path).read_text("utf-8")
    functions = re.findall(r"`(\w+)`", holds) + re.findall(r"`helpers\.(\w+)`", modules)
    assert any(function in lessons for function in functions)


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_and_variables_exist(page):
    for call in re.findall(r"(?:`|^)make ([^`\n]*)", TEXTS[page], re.MULTILINE):
        command = ["make", "-n", *shlex.split(call, comments=True)]
        # Without the variables of this process: make refuses those that the Makefile does not read.
        environment = {"PATH": os.environ["PATH"]}
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8"
        )
        assert ended.returncode == 0, ended.stderr


def test_what_is_there_is_named_and_what_is_named_is_there():
    names = []
    for path in (ROOT / "helpers").iterdir():
        if path.suffix == ".py" and path.stem != "__init__":
            names.append(path.stem)
        elif (path / "__init__.py").exists():
            names.append(path.name)
    listed = re.findall(r"`helpers\.(\w+)`", TEXTS["helpers/README.md"].split("## The modules")[1])
    assert sorted(names) == sorted(listed)
    # CONTRIBUTING says where the others are tested.
    for name in set(names) - {"plots", "tooling", "transforms"}:
        assert list((ROOT / "tests").glob(f"test_{name}*.py")), name
    shown = re.findall(r"[\w-]+\.png", "".join(TEXTS.values()))
    assert {path.name for path in (ROOT / ".github").glob("*.png")} == set(shown)


def test_files_that_pages_and_lessons_name_are_there():
    texts = {name: TEXTS[name] for name in PAGES}
    for path in [*ROOT.glob("notebooks/*.md"), *ROOT.glob("notebooks/*.ipynb")]:
        texts[path.name] = path.read_text("utf-8")
    for name, text in texts.items():
        for path in re.findall(r"`((?:helpers|tests|notebooks|\.ci)/[\w./-]*)`", text):
            assert "NAME" in path or (ROOT / path).exists(), f"{name}: {path}"
