"""README.md tells the truth: its example runs, its links lead somewhere, its commands exist."""

import re
from pathlib import Path

import pytest

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
