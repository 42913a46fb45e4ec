"""README.md tells the truth: its example runs, its links lead somewhere, its commands exist."""

import re
import warnings
from pathlib import Path

import pytest
import torch

from helpers import compare, data, gradients, jacobians
from helpers.models import SimpleCNN
from helpers.study import records

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def test_example_prints_what_it_says(capsys):
    example = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    said = re.findall(r"^print\(.*?\)  # (.*)$", example, re.MULTILINE)
    assert said, "the example prints nothing"
    exec(example, {})
    assert capsys.readouterr().out.splitlines()[: len(said)] == said


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


def test_links_lead_to_files():
    targets = re.findall(r"\]\(((?!http)[^)#]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_lesson_has_its_row_and_its_title():
    rows = dict(re.findall(r"^\| \[(.+?)\]\(notebooks/(.+?)\)", README, re.MULTILINE))
    lessons = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert sorted(rows.values()) == [lesson.name for lesson in lessons]
    for title, name in rows.items():
        assert f'"# {title}\\n"' in (ROOT / "notebooks" / name).read_text()


def test_every_helper_is_listed():
    folders = {path.parent.stem for path in (ROOT / "helpers").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "helpers").glob("*.py")} | folders
    listed = set(re.findall(r"`helpers\.(\w+)`", README))
    assert modules - {"__init__", "tooling"} == listed - {"tooling"}


@pytest.mark.parametrize("command", sorted(set(re.findall(r"make ([a-z-]+)\b", README))))
def test_make_targets_exist(command):
    assert re.search(rf"^{command}:", MAKEFILE, re.MULTILINE)


def test_make_variables_exist():
    known = re.search(r"^variables := (.*)$", MAKEFILE, re.MULTILINE).group(1).split()
    given = re.findall(r"`make [^`]*`", README)
    assert {name for call in given for name in re.findall(r"\b([A-Z]+)=", call)} <= set(known)


def test_measured_times_are_those_of_the_record():
    section = README.split("\n## Measured\n")[1].split("\n## ")[0]
    record = records.read(ROOT / re.search(r"`(notebooks/measurements/\S+)`", section)[1])
    study = record.find("gradients", "SimpleCNN", 64)
    measured = {str(row.candidate): row.median for row in study.rows}
    unit = study.row("batch gradient").median
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]*) ?\|$", section, re.MULTILINE)
    assert len(rows) > 5
    for way, plain, kept in rows:
        name = way.replace("`", "")
        for each, said in ((name, plain), (f"{name}, freed memory kept", kept)):
            if said:
                assert said == f"{measured[each] / unit:.1f}", each
