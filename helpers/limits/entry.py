"""An entry of the gallery: what goes wrong, why, the way out, and both as functions that run."""

import textwrap
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from helpers.compare import TOLERANCES, largest_error
from helpers.gradients import loop_gradients
from helpers.limits.bare import Case, bare_gradients, one_vector
from helpers.limits.sources import block

Run = Callable[[Tensor, Tensor], Any]
"""A function of digits `(B, 1, 28, 28)` in float64 and labels `(B,)`.

It returns a `Case` to take per-sample gradients of, or gradients by name, or what it measured.
"""
SEEN_ON = "2.13"
"""The version of torch with which every entry was last seen to hold, on a CPU."""


@dataclass(frozen=True)
class Verdict:
    """What the two sides of an entry did when they ran."""

    broken: str
    fixed: str
    also: tuple[tuple[str, bool], ...]
    """What else the entry says, sentence by sentence, and whether it held."""
    changed: bool
    """Whether that is anything else than the entry says."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One way in which a per-sample gradient goes wrong."""

    name: str
    """The heading of the entry in the lesson, and what `diagnose` reports."""
    symptom: str
    """A stable fragment of the message, or what the wrong number is."""
    cause: str
    fix: str
    broken: Run
    fixed: Run
    also: Mapping[str, Callable[[Tensor, Tensor], bool]] = field(default_factory=dict)
    """What else the entry says, each sentence with a run that returns whether it is so."""
    truth: Run | None = None
    """What the fix must equal; `None` means the loop, for a fix that returns a `Case`."""
    case: Run | None = None
    """A case for `diagnose` to name the entry at; `None` means that of `broken`, if it has one."""
    at: Callable[[nn.Module], bool] | None = None
    """Which modules raise the error for this cause, where several causes share one message."""
    functions: tuple[str, ...] = ()
    """Which functions of torch raise it, for the same purpose."""
    lasting: bool = False
    """Whether mathematics decides, and no version of torch can change it."""
    part: ClassVar[str]
    """`"loud"`, `"silent"` or `"slow"`."""

    @property
    def code(self) -> tuple[str, str]:
        """What is broken and the way out, as blocks that run in the lesson when copied."""
        return block(self.broken), block(self.fixed)

    def check(self, images: Tensor, labels: Tensor) -> Verdict:
        """Run both sides.

        Args:
            images: `(B, 1, 28, 28)`, float64, with B of at least 4.
            labels: `(B,)`.

        Returns:
            What they did. Nothing is raised where a version of torch, or a device, does something
            else than the entry says: then the verdict is `changed`.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            broken, fails = self._check_broken(images, labels)
            fixed, works = self._check_fixed(images, labels)
            few = images[:4], labels[:4]  # enough to say yes or no
            also = tuple((says, _holds(so, *few)) for says, so in self.also.items())
        changed = not (fails and works and all(held for _, held in also))
        return Verdict(broken, fixed, also, changed)

    def find_case(self, images: Tensor, labels: Tensor) -> Case | None:
        """Return the case that `diagnose` names this entry at; `None` if the caller is at fault."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = _seeded(self.case or self.broken, images, labels)
            except Exception:  # the call is what fails
                return None
        return found if isinstance(found, Case) else None

    def _check_broken(self, images: Tensor, labels: Tensor) -> tuple[str, bool]:
        raise NotImplementedError

    def _check_fixed(self, images: Tensor, labels: Tensor) -> tuple[str, bool]:
        try:
            equal = agree(run(self.fixed, images, labels), self._find_truth(images, labels))
        except Exception as error:  # another version of torch may raise anything
            return f"the way out raises {describe(error)}", False
        return f"equal to {'the truth' if self.truth else 'the loop'}: {equal}", equal

    def _find_truth(self, images: Tensor, labels: Tensor) -> Any:
        if self.truth:
            return run(self.truth, images, labels)
        return one_vector(loop_gradients(*_seeded(self.fixed, images, labels)))


@dataclass(frozen=True, kw_only=True)
class Loud(Entry):
    """It raises."""

    error: type[Exception] = RuntimeError
    part = "loud"

    def _check_broken(self, images: Tensor, labels: Tensor) -> tuple[str, bool]:
        try:
            run(self.broken, images, labels)
        except Exception as error:  # which one it is, is the question
            if isinstance(error, self.error) and self.symptom in one_line(error):
                return f"{self.error.__name__}: ...{self.symptom}...", True
            return f"raises {describe(error)}", False
        return "nothing is raised", False


@dataclass(frozen=True, kw_only=True)
class Silent(Entry):
    """It returns a wrong number, or harms the model."""

    warns: str = ""
    """A fragment of a warning that is about something else; `""` means that nothing is said."""
    part = "silent"

    def _check_broken(self, images: Tensor, labels: Tensor) -> tuple[str, bool]:
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                wrong = run(self.broken, images, labels)
            right = run(self.fixed, images, labels)
        except Exception as error:  # silent no more
            return f"raises {describe(error)}", False
        said = [str(each.message) for each in heard]
        if not all(self.warns and self.warns in each for each in said):
            return f"warns: {textwrap.shorten(said[0], 100, placeholder=' ...')}", False
        says = f"wrong {show(wrong)}, right {show(right)}"
        if _are_vectors(wrong, right):
            says += f", apart by {_apart(wrong, right):.0%}"
        return says, not agree(wrong, right, 1e-4)

    def distance(self, images: Tensor, labels: Tensor) -> float | None:
        """Run both sides, and say how far apart they are, as a share of the right one's norm.

        Args:
            images: `(B, 1, 28, 28)`, float64, with B of at least 4.
            labels: `(B,)`.

        Returns:
            `|wrong - right| / |right|`; `None` where the two are no gradients, or one raises.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                sides = [run(side, images, labels) for side in (self.broken, self.fixed)]
            except Exception:  # another version of torch may raise anything; `check` says what
                return None
        return _apart(*sides) if _are_vectors(*sides) else None


@dataclass(frozen=True, kw_only=True)
class Slow(Entry):
    """It is right, and slow."""

    warns: bool = True
    """Whether the symptom is a fragment of a warning."""
    part = "slow"

    def _check_broken(self, images: Tensor, labels: Tensor) -> tuple[str, bool]:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                got = run(self.broken, images, labels)
            equal = agree(got, self._find_truth(images, labels))
        except Exception as error:  # slow no more
            return f"raises {describe(error)}", False
        warned = any(self.symptom in str(warning.message) for warning in caught)
        says = f"warns: ...{self.symptom}..." if warned else "no warning"
        return f"{says}, the values are right: {equal}", equal and warned == self.warns


def run(function: Run, images: Tensor, labels: Tensor) -> Any:
    """Run one side of an entry, and the bare composition over the case that it returns.

    Args:
        function: A side of an entry, as its page shows it.
        images: `(B, 1, 28, 28)`, float64.
        labels: `(B,)`.

    Returns:
        Gradients as one tensor `(B, P)`, sorted by name; or what the side measured.
    """
    result = _seeded(function, images, labels, compute=True)
    return one_vector(result) if isinstance(result, dict) else result


def agree(got: Any, expected: Any, tolerance: float | None = None) -> bool:
    """Compare two results, tensors within the tolerance of the coarser dtype."""
    if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        return got == expected
    if tolerance is None:
        tolerance = max(TOLERANCES[tensor.dtype] for tensor in (got, expected))
    return got.shape == expected.shape and largest_error(got, expected) < tolerance


def _are_vectors(wrong: Any, right: Any) -> bool:
    return all(isinstance(side, Tensor) and side.dim() for side in (wrong, right))


def _apart(wrong: Tensor, right: Tensor) -> float:
    return ((wrong - right).norm() / right.norm()).item()


def show(result: Any) -> str:
    """Write a number with three digits, and of a larger tensor its norm."""
    if not isinstance(result, Tensor):
        return str(result)
    return f"{result.item():.3g}" if result.dim() == 0 else f"norm {result.norm().item():.3g}"


def alike(first: Run, second: Run, images: Tensor, labels: Tensor) -> bool:
    """Say whether two sides of entries, each run from the same seed, agree."""
    return agree(run(first, images, labels), run(second, images, labels))


def raises(fragment: str, function: Callable[[], object]) -> bool:
    """Say whether a function raises an error whose message holds a fragment."""
    try:
        function()
    except Exception as error:  # of any type
        return fragment in one_line(error)
    return False


def warns(fragment: str, function: Callable[[], object]) -> bool:
    """Say whether a function that runs warns, in words that hold a fragment."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        function()
    return any(fragment in str(each.message) for each in heard)


def one_line(error: Exception) -> str:
    """Return the message of an error without line breaks."""
    return " ".join(str(error).split())


def describe(error: Exception) -> str:
    """Return the type of an error, and the beginning of its message."""
    message = textwrap.shorten(one_line(error), 100, placeholder=" ...")
    return f"{type(error).__name__}: {message}"


def _holds(function: Callable[[Tensor, Tensor], bool], images: Tensor, labels: Tensor) -> bool:
    """Say whether a sentence of an entry is true here; one that cannot be run is not."""
    try:
        return bool(_seeded(function, images, labels))
    except Exception:  # another version of torch may raise anything
        return False


def _seeded(function: Run, images: Tensor, labels: Tensor, *, compute: bool = False) -> Any:
    """Call a function from the same seed each time, and leave the random stream as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        result = function(images, labels)
        return bare_gradients(*result) if compute and isinstance(result, Case) else result
