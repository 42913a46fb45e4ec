"""`make wild`: the list, the verdicts, and processes that end or hang; no library is imported."""

import json
import sys

import pytest
import torch
from helpers.tooling.wild import __main__ as wild
from helpers.tooling.wild import contract, libraries
from torch import nn

from helpers import gradients
from tests.tooling.samples import ROOT


def linear() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(3, 2).double(), torch.randn(3, 3, dtype=torch.float64)


def test_the_list_names_known_libraries_and_no_model_twice():
    listed = libraries.read(ROOT / libraries.LIST)
    titles = [each.title for each in listed]
    assert len(titles) == len(set(titles)) >= 40
    assert {each.library for each in listed} == set(libraries.LIBRARIES)


def test_an_unknown_library_is_refused(tmp_path):
    (tmp_path / "list.toml").write_text("[tmm]\nresnet = {}\n")
    with pytest.raises(ValueError, match="no library tmm: there are timm, transformers"):
        libraries.read(tmp_path / "list.toml")


def test_a_model_that_is_right_holds_in_all_ways():
    result = contract.check("a", *linear())
    assert set(result.verdicts.values()) == {contract.HELD}
    assert len(result.verdicts) == 7
    assert result.says == []


def test_a_wrong_number_is_found_and_measured(monkeypatch):
    right = gradients.func_gradients

    def off(*args, **options):
        found = right(*args, **options)
        return found | {"bias": found["bias"] * 1.01}

    monkeypatch.setattr(gradients, "func_gradients", off)
    result = contract.check("a", *linear())
    assert result.verdicts["func"] == result.verdicts["out"] == contract.WRONG
    assert result.verdicts["loop"] == result.verdicts["norms"] == contract.HELD
    assert "func: 1 of 2 parameters off, bias by" in result.says[0]
    assert wild.is_bad(result)


def test_damage_is_found_and_placed(monkeypatch):
    right = gradients.loop_gradients

    def damaging(model, *args):
        found = right(model, *args)
        model.weight.data[0, 0] += 1e-9
        return found

    monkeypatch.setattr(gradients, "loop_gradients", damaging)
    result = contract.check("a", *linear())
    assert result.verdicts["loop"] == contract.DAMAGED
    assert "loop changes" in result.says[0]
    assert "weight" in result.says[0]
    assert wild.is_bad(result)


def test_a_refusal_is_ours_and_any_other_error_is_not():
    class Drawing(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) + torch.rand(2) * 0

    data = linear()[1]
    drawing = Drawing(3, 2).double()
    result = contract.check("a", drawing, data)
    assert set(result.verdicts.values()) == {contract.REFUSED}
    assert not wild.is_bad(result)

    class Alone(nn.Linear):
        def forward(self, inputs):
            if torch.is_grad_enabled() and len(inputs) == 1:
                raise ValueError("no batch of one")
            return super().forward(inputs)

    result = contract.check("a", Alone(3, 2).double(), data)
    assert result.verdicts["loop"] == contract.RAISED
    assert wild.is_bad(result)


def test_a_model_that_does_not_run_is_told_and_is_bad():
    model, data = linear()
    result = contract.check("a", model, data[:, :2])
    assert result.verdicts == {}
    assert result.says[0].startswith("does not run by itself: RuntimeError: mat1 and mat2")
    assert wild.is_bad(result)


def test_the_loop_of_pairs_is_right_where_torch_is_wrong_for_a_batch_of_one():
    from tests import wild as habits
    from tests.test_gradients_wild import expected

    case = habits.make("stem batch norm")
    found = contract.by_pairs(case.model, case.data, case.targets)
    for name, rows in expected("stem batch norm").items():
        torch.testing.assert_close(found[name], rows)


WORKER = """
import json, sys, time
for title in sys.argv[1:]:
    if "ends" in title: sys.exit(3)
    if "hangs" in title: time.sleep(60)
    print("said by a library", flush=True)
    print(json.dumps({"title": title, "verdicts": {"loop": "held"}, "says": []}), flush=True)
"""


def test_a_process_that_ends_or_hangs_costs_one_model():
    names = [
        ("a", "one"),
        ("a", "ends"),
        ("a", "two"),
        ("a", "hangs"),
        ("a", "three"),
        ("b", "one"),
    ]
    listed = [libraries.Listed(library, name, {}) for library, name in names]
    command = (sys.executable, "-c", WORKER)
    results = list(wild.run_all(listed, command, seconds=3))
    assert [result.title for result in results] == [each.title for each in listed]
    verdicts = [[*result.verdicts.values()] for result in results]
    assert verdicts == [["held"], ["lost"], ["held"], ["lost"], ["held"], ["held"]]
    assert "ended its process" in results[1].says[0]
    assert "took longer than 3 s" in results[3].says[0]
    assert wild.is_bad(results[1])


def test_the_report_has_a_row_for_each_model_and_what_was_said():
    results = [
        contract.Result("a: one", {"loop": "held", "func": "held"}),
        contract.Result("a: two", {"loop": "held", "func": "wrong"}, ["func: off | by 2"]),
        contract.Result("b: three", {}, ["does not run by itself"]),
    ]
    report = wild.report(results)
    assert "3 models: 1 held, 1 wrong, 1 not run." in report
    assert "| a: two | held | wrong |" in report
    assert "| b: three |  |  |" in report
    assert "- a: two: func: off / by 2" in report
    assert [wild.line(each) for each in results] == [
        "a: one: held",
        "a: two: held (loop); wrong (func)",
        "b: three: not run (does not run by itself)",
    ]


def test_the_command_line_writes_a_report_and_says_whether_all_held(monkeypatch, tmp_path, capsys):
    bad = contract.Result("a: two", {"loop": "wrong"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(libraries, "read", lambda: [libraries.Listed("a", "two", {})])
    monkeypatch.setattr(wild, "run_all", lambda listed: iter([bad] if listed else []))
    assert wild.main([]) == 1
    assert "1 models: 1 wrong." in capsys.readouterr().out
    assert "a: two" in (tmp_path / wild.REPORT).read_text()
    with pytest.raises(SystemExit):
        wild.main(["none such"])
    assert "no title holds none such" in capsys.readouterr().err
    monkeypatch.setattr(
        wild, "run_all", lambda listed: iter([contract.Result("a: two", {}, ["not here"])])
    )
    assert wild.main([]) == 1


def test_a_worker_writes_a_line_for_each_title(monkeypatch, capsys):
    listed = [libraries.Listed("a", name, {}) for name in ("one", "two", "other")]
    monkeypatch.setattr(libraries, "read", lambda: listed)

    def make(each, size):
        if each.name == "two":
            raise ImportError("no library a")
        return linear()

    monkeypatch.setattr(libraries, "make", make)
    threads = torch.get_num_threads()
    assert wild.main(["--worker", "a: one", "a: two"]) == 0
    torch.set_num_threads(threads)
    one, two = map(json.loads, capsys.readouterr().out.splitlines())
    assert one["verdicts"]["func"] == "held"
    assert two == {"title": "a: two", "verdicts": {}, "says": ["ImportError: no library a"]}


def test_torchvision_can_be_imported_where_there_is_none(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match="vit_pytorch"):
        libraries._load("vit_pytorch.none")
    assert isinstance(libraries._load("torchvision.ops.misc").FrozenBatchNorm2d, type)
    assert libraries._load("torchvision.transforms").InterpolationMode.NEAREST == "NEAREST"
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
