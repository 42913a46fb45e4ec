"""The pages for newcomers tell the truth: README's code runs, links and commands lead somewhere."""

import os
import re
import shlex
import subprocess
import warnings
from pathlib import Path

import pytest
import torch

from helpers import compare, data, gradients, jacobians
from helpers.models import SimpleCNN

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CLASS = "notebooks/teaching.md"
PAGES = ("README.md", "helpers/README.md", "notebooks/README.md", CLASS, ".github/CONTRIBUTING.md")
HISTORY = ".github/CHANGELOG.md"  # it names what is gone, too
TEXTS = {name: (ROOT / name).read_text() for name in (*PAGES, HISTORY)}


def test_readme_is_short():
    assert len(README.split()) <= 1000


def test_example_prints_what_it_says(capsys):
    example = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    said = re.findall(r"^print\(.*\)  # (.*)$", example, re.MULTILINE)
    assert said, "the example prints nothing"
    exec(example, {})
    assert capsys.readouterr().out.splitlines() == said


SHEET = README.split("\n## Cheat sheet\n")[1].split("\n## ")[0]
BLOCK = re.search(r"```py\n(.*?)```", SHEET, re.DOTALL)[1]
FIRST, *WAYS = re.split(r"^# (.+)\n", BLOCK, flags=re.MULTILINE)
CODE = dict(zip(WAYS[::2], WAYS[1::2], strict=True))
KINDS = dict(re.findall(r"^\| ([\w. ]+) \| (\w+) (?:of )?`", SHEET, re.MULTILINE))


def test_cheat_sheet_has_code_for_each_row():
    assert list(CODE) == list(KINDS) == re.findall(r"^\| (?!way)(\w.+?) \|", SHEET, re.MULTILINE)


@pytest.mark.parametrize("way", CODE)
def test_row_of_the_cheat_sheet_is_right(way):
    torch.manual_seed(0)
    model = SimpleCNN()
    images, labels = data.load_batch(batch_size=3)
    names = {"model": model, "X": images, "T": labels}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # functorch says that it is old
        exec(FIRST + CODE[way], names)
    got = names["result"]
    assert type(got).__name__ == KINDS[way]
    if way == "Jacobian":
        flat = jacobians.func_jacobians(model, images)
        expected = jacobians.unflatten_jacobians(flat, model)
    else:
        loss_fn = torch.nn.functional.cross_entropy
        expected = gradients.loop_gradients(model, loss_fn, images, labels)
    named = got if isinstance(got, dict) else dict(zip(expected, got, strict=True))
    compare.check(named, expected, batch_dims=2 if way == "Jacobian" else 1)


def anchors(text: str) -> set[str]:
    """List the anchors that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(((?!http)[^)]+)\)", TEXTS[page])
    assert targets
    for target in targets:
        path, _, anchor = target.partition("#")
        there = (ROOT / page).parent / path
        assert there.exists(), target
        assert not anchor or anchor in anchors(there.read_text()), target


def test_every_picture_is_shown():
    shown = set(re.findall(r"[\w-]+\.png", "".join(TEXTS.values())))
    assert {path.name for path in (ROOT / ".github").glob("*.png")} == shown


def test_every_lesson_has_its_row_with_its_title_and_minutes():
    row = r"^\| \[(.+?)\]\(notebooks/(.+?)\) \| .+ \| (\d+) \|$"
    rows = {
        name: (title, minutes) for title, name, minutes in re.findall(row, README, re.MULTILINE)
    }
    assert sorted(rows) == sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
    for name, (title, minutes) in rows.items():
        lesson = (ROOT / "notebooks" / name).read_text()
        assert f'"# {title}\\n"' in lesson
        assert f'"*Reading: {minutes} minutes' in lesson


def test_plans_for_a_class_add_up_and_name_what_is_there():
    (last,) = (ROOT / "notebooks").glob("12_*.ipynb")
    for title in re.findall(r"\*([A-Z][^*]+)\* \(\d+\)", TEXTS[CLASS]):
        assert re.search(rf'"## \d+\. {re.escape(title)}\\n"', last.read_text()), title
    plans = re.findall(r"^\*\*(\d+) minutes\.\*\* (.+)$", TEXTS[CLASS], re.MULTILINE)
    assert [each for each, _ in plans] == ["50", "90"] * len([*last.parent.glob("*.ipynb")])
    for minutes, plan in plans:
        assert sum(map(int, re.findall(r"\((\d+)\)", plan))) == int(minutes), plan


def test_every_helper_is_listed():
    folders = {path.parent.stem for path in (ROOT / "helpers").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "helpers").glob("*.py")} | folders
    listed = re.findall(r"`helpers\.(\w+)`", TEXTS["helpers/README.md"].split("## The modules")[1])
    assert sorted(modules - {"__init__"}) == sorted(listed)


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_and_variables_exist(page):
    calls = re.findall(r"(?:`|^)make ([^`\n]*)", TEXTS[page], re.MULTILINE)
    for call in calls:
        make = ["make", "-n", *shlex.split(call, comments=True)]  # refuses what is not read
        ended = subprocess.run(
            make, cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True
        )
        assert ended.returncode == 0, ended.stderr.decode()


def test_named_places_exist():
    """What looks like a file or a folder of the collection is one."""
    named = re.findall(
        r"`((?:helpers|tests|notebooks|\.ci)/[\w./-]*)`", TEXTS[".github/CONTRIBUTING.md"]
    )
    assert len(named) > 10
    assert [path for path in named if "NN_name" not in path and not (ROOT / path).exists()] == []
