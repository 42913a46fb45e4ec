"""What a GPU should tell, one part at a time: `python .ci/gpu_measure.py PART --device cuda`.

The last line that a part prints is its result, one line of JSON. `.ci/gpu.py` runs all parts.

- `models`: time and peak memory of per-sample gradients, norms and clipped sums of real
  architectures with random weights, beside plain `vmap(grad)` and Opacus
- `tf32`: errors, clipping and time with TF32 on and off
- `waiting`: how often one call waits for the GPU, for networks of 10 and of 50 layers
- `probes`: what people do on a GPU, each tried once
"""

import argparse
import copy
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.rnn import pack_sequence

from helpers import devices, gradients, kernels, norms, privacy
from helpers.models import MODELS

Run = Callable[[], Any]


# ------------------------------------------------------------------------------ measuring


def wait(device: torch.device) -> None:
    """Wait until the device has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(run: Run, device: torch.device) -> float:
    """Time one call, without the launches of others."""
    wait(device)
    start = time.perf_counter()
    result = run()
    wait(device)
    seconds = time.perf_counter() - start
    del result
    return seconds


def measure(ways: dict[str, Run], device: torch.device, rounds: int) -> dict[str, dict]:
    """Time ways in turns, after two calls that warm up, and take each one's peak memory."""
    rows: dict[str, dict] = {}
    for name, run in ways.items():
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run()
            rows[name] = {"times": [], "warnings": [str(w.message)[:200] for w in caught]}
            run()
            rows[name]["peak_bytes"] = peak_of(run, device)
        except Exception as error:
            free(device)
            rows[name] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    for _ in range(rounds):
        for name, run in ways.items():
            if "times" in rows[name]:
                rows[name]["times"].append(seconds_of(run, device))
    for row in rows.values():
        times = row.pop("times", None)
        if times:
            row["ms"] = round(1e3 * statistics.median(times), 3)
            row["fastest_ms"] = round(1e3 * min(times), 3)
            row["slowest_ms"] = round(1e3 * max(times), 3)
    return rows


def peak_of(run: Run, device: torch.device) -> int | None:
    """Return how many bytes a call adds at its peak, its result included."""
    if device.type != "cuda":
        return None
    free(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = run()
    wait(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    del result
    return peak


def free(device: torch.device) -> None:
    """Hand cached memory back."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def relative_error(found: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Return the largest error of any parameter, over its largest entry."""
    errors = []
    for name, expected in right.items():
        scale = expected.abs().max().clamp(min=1e-30)
        errors.append(((found[name] - expected).abs().max() / scale).item())
    return max(errors)


# ------------------------------------------------------------------------------ models


class LanguageModelLoss(nn.Module):
    """A language model of transformers that returns logits `(B, T, V)` for ids `(B, T)`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids to logits."""
        return self.model(input_ids=ids).logits


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the mean over tokens, for a batch the mean over its samples, which are as long."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def build_models(small: bool, device: torch.device) -> dict[str, tuple]:
    """Make `{name: (model, loss_fn, data, targets)}`; what is not installed is left out."""
    made: dict[str, tuple] = {}
    side, batch = (32, 4) if small else (224, 32)
    for name, batch_size in (("SimpleCNN", 64), ("MLP", 64)):
        images = torch.rand(batch_size, 1, 28, 28, device=device)
        labels = torch.randint(10, (batch_size,), device=device)
        made[name] = (MODELS[name]().to(device), F.cross_entropy, images, labels)

    images = torch.rand(batch, 3, side, side, device=device)
    labels = torch.randint(10, (batch,), device=device)
    try:
        from torchvision.models import resnet18

        model = resnet18(num_classes=10).to(device).eval()
        made["ResNet-18"] = (model, F.cross_entropy, images, labels)
    except Exception as error:  # not installed, or another version
        print("ResNet-18:", error)
    try:
        import timm

        size = "vit_tiny_patch16_224" if small else "vit_small_patch16_224"
        model = timm.create_model(size, num_classes=10, img_size=side).to(device).eval()
        made["ViT-S"] = (model, F.cross_entropy, images, labels)
    except Exception as error:  # not installed, or another version
        print("ViT:", error)
    try:
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500} if small else {}
        config = GPT2Config(**sizes, use_cache=False, attn_implementation="eager")
        model = LanguageModelLoss(GPT2LMHeadModel(config)).to(device).eval()
        tokens = (2, 16) if small else (8, 256)
        ids = torch.randint(500, tokens, device=device)
        made["GPT-2"] = (model, next_token_loss, ids, ids)
    except Exception as error:  # not installed, or another version
        print("GPT-2:", error)
    return made


def ways_of(model: nn.Module, loss_fn: Callable, data: Tensor, targets: Tensor) -> dict[str, Run]:
    """Make the functions that are timed."""
    params = {name: p.detach() for name, p in model.named_parameters()}
    parameters = list(model.parameters())
    out = {name: p.new_empty(len(data), *p.shape) for name, p in params.items()}
    case = (model, loss_fn, data, targets)

    def compute_loss(params: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        return loss_fn(functional_call(model, params, (x[None],)), target[None])

    compute = vmap(grad(compute_loss), in_dims=(None, 0, 0))
    ways: dict[str, Run] = {
        "batch gradient": lambda: torch.autograd.grad(loss_fn(model(data), targets), parameters),
        "vmap(grad)": lambda: compute(params, data, targets),
        "func_gradients": lambda: gradients.func_gradients(*case),
        "func_gradients, out=": lambda: gradients.func_gradients(*case, out=out),
        "gradient_norms": lambda: norms.gradient_norms(*case),
        "clipped_sum": lambda: norms.clipped_sum(*case, 1.0),
    }
    if len(data) * len(params) < 5000:
        ways["loop"] = lambda: gradients.loop_gradients(*case)
    return ways | opacus_ways(*case)


def opacus_ways(
    model: nn.Module, loss_fn: Callable, data: Tensor, targets: Tensor
) -> dict[str, Run]:
    """Make Opacus' ways: gradients by hooks, and norms without gradients."""
    try:
        from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    except Exception as error:  # not installed, or another version
        print("Opacus:", error)
        return {}

    def hooks() -> Run:
        wrapped = GradSampleModule(
            copy.deepcopy(model), batch_first=True, loss_reduction="mean", strict=False
        )

        def run() -> list[Tensor]:
            for parameter in wrapped.parameters():
                parameter.grad = None
                parameter.grad_sample = None
            loss_fn(wrapped(data), targets).backward()
            return [parameter.grad_sample for parameter in wrapped.parameters()]

        return run

    def ghost() -> Run:
        wrapped = GradSampleModuleFastGradientClipping(
            copy.deepcopy(model),
            batch_first=True,
            loss_reduction="mean",
            strict=False,
            max_grad_norm=1.0,
            use_ghost_clipping=True,
        )

        def run() -> Tensor:
            for parameter in wrapped.parameters():
                parameter.grad = None
                parameter.grad_sample = None
            loss_fn(wrapped(data), targets).backward()
            return wrapped.get_norm_sample()

        return run

    ways = {}
    for name, build in {"Opacus hooks": hooks, "Opacus ghost norms": ghost}.items():
        try:
            ways[name] = build()
        except Exception as error:
            ways[name] = _failing(f"{type(error).__name__}: {str(error)[:300]}")
    return ways


def _failing(reason: str) -> Run:
    """Make a way that cannot be built, so that its row says why."""

    def run() -> None:
        raise RuntimeError(reason)

    return run


def models_part(device: torch.device, small: bool) -> dict[str, Any]:
    """Measure real architectures, and compare two samples of each with the loop."""
    results: dict[str, Any] = {}
    for name, (model, loss_fn, data, targets) in build_models(small, device).items():
        start = time.perf_counter()
        rows = measure(ways_of(model, loss_fn, data, targets), device, rounds=3 if small else 7)
        result: dict[str, Any] = {"rows": rows, "batch": list(data.shape)}
        try:
            two = (model, loss_fn, data[:2], targets[:2])
            found = gradients.func_gradients(*two)
            result["error"] = relative_error(found, gradients.loop_gradients(*two))
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        result["parameters"] = sum(p.numel() for p in model.parameters())
        result["seconds"] = round(time.perf_counter() - start, 1)
        results[name] = result
        print_rows(name, result)
        free(device)
    return results


def print_rows(name: str, result: dict[str, Any]) -> None:
    """Print the rows of one model as a table."""
    rows = result["rows"]
    unit = rows["batch gradient"].get("ms")
    print(f"\n{name}, batch {result['batch']}, error beside the loop {result['error']}")
    for way, row in rows.items():
        if "failed" in row:
            print(f"  {way:22} failed: {row['failed'][:150]}")
            continue
        ratio = row["ms"] / unit if unit else float("nan")
        peak = row["peak_bytes"]
        memory = "" if peak is None else f"{peak / 2**20:10,.0f} MiB"
        print(
            f"  {way:22} {row['ms']:10.2f} ms  {ratio:7.2f} times  {memory}", *row["warnings"][:1]
        )


# ------------------------------------------------------------------------------ TF32


def tf32_part(device: torch.device, small: bool) -> dict[str, Any]:
    """Compare norms, clipped sums and gradients with float64, with TF32 on and off."""
    torch.manual_seed(0)
    batch_size = 8 if small else 64
    images = torch.rand(batch_size, 1, 28, 28, device=device)
    labels = torch.randint(10, (batch_size,), device=device)
    model = MODELS["SimpleCNN"]().to(device)
    exact_model = copy.deepcopy(model).double()
    exact = norms.gradient_norms(exact_model, F.cross_entropy, images.double(), labels)

    results: dict[str, Any] = {"default": str(flags())}
    for name, cudnn, matmul in (
        ("off", False, False),
        ("torch's default", True, False),
        ("on", True, True),
    ):
        torch.backends.cudnn.allow_tf32 = cudnn
        torch.backends.cuda.matmul.allow_tf32 = matmul
        case = (model, F.cross_entropy, images, labels)
        found = norms.gradient_norms(*case)
        grads = gradients.func_gradients(*case)
        dense = torch.cat([g.flatten(1) for g in grads.values()], 1).norm(dim=1)
        limit = exact.min().item() / 2
        largest = 0.0
        for index in range(batch_size):
            sample = (images[index : index + 1], labels[index : index + 1])
            total = norms.clipped_sum(model, F.cross_entropy, *sample, limit)
            norm = torch.cat([t.flatten() for t in total.values()]).norm().item()
            largest = max(largest, norm / limit)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gradients.func_gradients(*case, check=True)
        results[name] = {
            "norms, error": ((found - exact) / exact).abs().max().item(),
            "gradients' norms, error": ((dense - exact) / exact).abs().max().item(),
            "largest clipped norm over limit, minus 1": largest - 1,
            "check=True warns": [str(w.message)[:300] for w in caught],
        }
        print(name, json.dumps(results[name], indent=1))
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = False
    return results


def flags() -> dict[str, Any]:
    """Read torch's precision switches."""
    return {
        "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "matmul precision": torch.get_float32_matmul_precision(),
    }


# ------------------------------------------------------------------------------ waiting


def deep(layers: int, device: torch.device) -> nn.Module:
    """Make a network of linear layers, each with a BatchNorm that has running statistics."""
    blocks = []
    for _ in range(layers):
        blocks += [nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()]
    return nn.Sequential(*blocks, nn.Linear(32, 10)).to(device).eval()


def waits_of(run: Run, device: torch.device) -> tuple[int, dict[str, int]]:
    """Count how often a call waits for the GPU, by the line of ours that waits."""
    if device.type != "cuda":
        run()
        return -1, {}
    run()
    torch.cuda.set_sync_debug_mode("warn")
    places: dict[str, int] = {}
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for warning in caught:
        place = f"{Path(warning.filename).name}:{warning.lineno} {str(warning.message)[:60]}"
        places[place] = places.get(place, 0) + 1
    return len(caught), places


def waiting_part(device: torch.device, small: bool) -> dict[str, Any]:
    """Count waits for two depths; the number must not grow with the layers."""
    results: dict[str, Any] = {}
    for layers in (10, 50):
        model = deep(layers, device)
        data = torch.rand(16, 32, device=device)
        labels = torch.randint(10, (16,), device=device)
        case = (model, F.cross_entropy, data, labels)
        calls = {
            "func_gradients": lambda case=case: gradients.func_gradients(*case),
            "gradient_norms": lambda case=case: norms.gradient_norms(*case),
            "clipped_sum": lambda case=case: norms.clipped_sum(*case, 1.0),
            "loop_gradients": lambda case=case: gradients.loop_gradients(*case),
        }
        for name, run in calls.items():
            count, places = waits_of(run, device)
            results[f"{name}, {layers} layers"] = {"waits": count, "places": places}
            print(f"{name}, {layers} layers: {count} waits", places)
    return results


# ------------------------------------------------------------------------------ probes


def linear_case(device: torch.device) -> tuple:
    """Make a small case."""
    data, targets = torch.rand(6, 5, device=device), torch.rand(6, 3, device=device)
    return nn.Linear(5, 3).to(device), F.mse_loss, data, targets


def probe_names(device: torch.device) -> str:
    """Say what names of devices resolve to."""
    tensor = torch.zeros(1, device=device)
    asked = [device.type, torch.device(device.type), tensor.device]
    return ", ".join(str(devices.resolve(each)) for each in asked)


def probe_generator(device: torch.device) -> str:
    """Draw noise from a generator without an index."""
    generator = torch.Generator(device.type).manual_seed(0)
    case = linear_case(device)
    privacy.private_sum(*case, limit=1.0, noise_multiplier=1.0, generator=generator)
    return f"a generator on {generator.device}"


def probe_packed(device: torch.device) -> str:
    """Differentiate for packed sequences."""
    sequences = pack_sequence([torch.rand(n, 4) for n in (5, 3, 2)]).to(device)
    targets = torch.rand(3, 2, device=device)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(4, 6), nn.Linear(6, 2)

        def forward(self, packed: Any) -> Tensor:
            return self.head(self.rnn(packed)[1][0])

    model = Recurrent().to(device)
    case = (model, F.mse_loss, sequences, targets)
    said = []
    for name, run in {
        "gradients": lambda: gradients.func_gradients(*case),
        "check": lambda: gradients.func_gradients(*case, check=True),
        "norms": lambda: norms.gradient_norms(*case),
        "mask": lambda: norms.clipped_sum(
            *case, 1.0, mask=torch.tensor([True, False, True], device=device)
        ),
        "kernel": lambda: kernels.ntk(model, sequences),
    }.items():
        try:
            run()
            said.append(f"{name}: fine")
        except Exception as error:
            said.append(f"{name}: {type(error).__name__}: {str(error)[:120]}")
    return "; ".join(said)


def probe_recurrent(device: torch.device) -> str:
    """Compare recurrent layers with the loop."""
    said = []
    for kind in (nn.RNN, nn.LSTM, nn.GRU):

        class Recurrent(nn.Module):
            def __init__(self, kind: type = kind) -> None:
                super().__init__()
                self.rnn, self.head = kind(4, 6, batch_first=True), nn.Linear(6, 2)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.rnn(x)[0][:, -1])

        case = (Recurrent().to(device), F.mse_loss)
        batch = (torch.rand(5, 7, 4, device=device), torch.rand(5, 2, device=device))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = gradients.func_gradients(*case, *batch)
        error = relative_error(found, gradients.loop_gradients(*case, *batch))
        told = [str(w.message)[:160] for w in caught]
        said.append(f"{kind.__name__} error {error:.1e} {told or ''}")
    return "; ".join(said)


def probe_mixed_devices(device: torch.device) -> str:
    """Show what is said of data on another device than the model."""
    model, loss_fn, data, targets = linear_case(device)
    said = []
    for name, batch in {
        "data on the CPU": (data.cpu(), targets),
        "targets on the CPU": (data, targets.cpu()),
        "both on the CPU": (data.cpu(), targets.cpu()),
    }.items():
        for call in (gradients.func_gradients, gradients.loop_gradients, norms.gradient_norms):
            try:
                call(model, loss_fn, *batch)
                said.append(f"{name}, {call.__name__}: no error")
            except Exception as error:
                message = str(error).replace("\n", " ")[:140]
                said.append(f"{name}, {call.__name__}: {type(error).__name__}: {message}")
    return "; ".join(said)


def probe_memory(device: torch.device) -> str:
    """Show what is said where memory runs out, and what is held afterwards."""
    if device.type != "cuda":
        return "not on this device"
    model = nn.Linear(4096, 4096).to(device)
    data = torch.rand(4096, 4096, device=device)
    said = []
    for name, run in {
        "func_gradients": lambda: gradients.func_gradients(model, F.mse_loss, data, data),
        "norms": lambda: norms.gradient_norms(model, F.mse_loss, data, data),
    }.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                run()
                said.append(f"{name}: no error")
            except Exception as error:
                said.append(f"{name}: {type(error).__name__}: {str(error)[:160]}")
        said += [str(w.message)[:100] for w in caught]
        free(device)
    said.append(f"afterwards {torch.cuda.memory_allocated(device) / 2**20:.0f} MiB are held")
    return "; ".join(said)


def probe_randomness(device: torch.device) -> str:
    """Count the masks of dropout."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 1)).to(device)
    data, targets = torch.ones(6, 40, device=device), torch.zeros(6, 1, device=device)
    said = []
    try:
        gradients.func_gradients(model, F.mse_loss, data, targets)
        said.append("dropout was not noticed")
    except ValueError as error:
        said.append(f"refused: {str(error)[:60]}")
    for randomness in ("same", "different"):
        grads = gradients.func_gradients(model, F.mse_loss, data, targets, randomness=randomness)
        masks = {tuple(row) for row in (grads["1.weight"].flatten(1) != 0).tolist()}
        said.append(f"{randomness}: {len(masks)} masks")
    return "; ".join(said)


def probe_same_bits(device: torch.device) -> str:
    """Compare the bits of equal calls."""
    said = []
    for name in ("SimpleCNN", "MLP"):
        devices.make_repeatable(0)
        model = MODELS[name]().to(device)
        images = torch.rand(64, 1, 28, 28, device=device)
        labels = torch.randint(10, (64,), device=device)
        first = gradients.func_gradients(model, F.cross_entropy, images, labels)
        equal = True
        for _ in range(3):
            again = gradients.func_gradients(model, F.cross_entropy, images, labels)
            equal &= all(torch.equal(first[key], again[key]) for key in first)
        said.append(f"{name} gradients equal: {equal}")
    table = nn.Sequential(nn.Embedding(50, 64), nn.Flatten(), nn.Linear(64 * 64, 2)).to(device)
    ids = torch.randint(50, (256, 64), device=device)
    labels = torch.randint(2, (256,), device=device)
    sums = []
    for _ in range(4):
        sums.append(norms.clipped_sum(table, F.cross_entropy, ids, labels, 1e-3)["0.weight"])
    equal = all(torch.equal(sums[0], each) for each in sums)
    said.append(f"clipped sum of an embedding equal: {equal}")
    return "; ".join(said)


def probe_precision(device: torch.device) -> str:
    """Compare bfloat16, float16 and autocast with float32."""
    torch.manual_seed(0)
    # Tanh, since in reduced precision a unit near zero may pass a ReLU or not.
    model = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 5))
    model = model.to(device)
    data, labels = torch.rand(8, 20, device=device), torch.randint(5, (8,), device=device)
    right = gradients.loop_gradients(model, F.cross_entropy, data, labels)
    right_norms = norms.gradient_norms(model, F.cross_entropy, data, labels)
    said = []
    for dtype in (torch.bfloat16, torch.float16):
        try:
            low = copy.deepcopy(model).to(dtype)
            found = gradients.func_gradients(low, F.cross_entropy, data.to(dtype), labels)
            error = relative_error({name: g.float() for name, g in found.items()}, right)
            some = norms.gradient_norms(low, F.cross_entropy, data.to(dtype), labels)
            off = ((some - right_norms) / right_norms).abs().max().item()
            said.append(f"{dtype} model: gradients {error:.1e}, norms {off:.1e} in {some.dtype}")
        except Exception as error:
            said.append(f"{dtype} model: {type(error).__name__}: {str(error)[:160]}")
        try:
            with torch.autocast(device.type, dtype):
                found = gradients.func_gradients(model, F.cross_entropy, data, labels)
                some = norms.gradient_norms(model, F.cross_entropy, data, labels)
            error = relative_error(found, right)
            off = ((some - right_norms) / right_norms).abs().max().item()
            said.append(f"{dtype} autocast: gradients {error:.1e}, norms {off:.1e}")
        except Exception as error:
            said.append(f"{dtype} autocast: {type(error).__name__}: {str(error)[:160]}")
    return "; ".join(said)


def probe_compile(device: torch.device) -> str:
    """Time compiled per-sample gradients beside a batch gradient."""
    model = MODELS["MLP"]().to(device)
    params = {name: p.detach() for name, p in model.named_parameters()}
    images = torch.rand(64, 1, 28, 28, device=device)
    labels = torch.randint(10, (64,), device=device)

    def compute_loss(params: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, params, (x[None],)), target[None])

    compute = vmap(grad(compute_loss), in_dims=(None, 0, 0))
    compiled = torch.compile(compute, dynamic=False)
    graphed = torch.compile(compute, dynamic=False, mode="reduce-overhead")
    ways = {
        "vmap(grad)": lambda: compute(params, images, labels),
        "compiled": lambda: compiled(params, images, labels),
        "compiled, reduce-overhead": lambda: graphed(params, images, labels),
        "batch gradient": lambda: torch.autograd.grad(
            F.cross_entropy(model(images), labels), list(model.parameters())
        ),
    }
    rows = measure(ways, device, rounds=20)
    return ", ".join(f"{name}: {row.get('ms', row.get('failed'))} ms" for name, row in rows.items())


def probe_weight_norm(device: torch.device) -> str:
    """Compare CUDA's kernel of weight norm in float64 with the formula."""
    v, g = torch.randn(6, 5, device=device).double(), torch.rand(6, 1, device=device).double()
    found = torch._weight_norm(v, g, 0)  # noqa: SLF001 - the kernel itself
    error = (found - g * v / v.norm(dim=1, keepdim=True)).abs().max().item()
    return f"largest error {error:.1e}"


def probe_attention(device: torch.device) -> str:
    """Time a transformer layer under `vmap` with fused attention and with plain products."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    layer = nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(256 * 128, 10)).to(device)
    data = torch.rand(32, 128, 256, device=device)
    labels = torch.randint(10, (32,), device=device)
    case = (model, F.cross_entropy, data, labels)

    def plain() -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return gradients.func_gradients(*case)

    def plain_norms() -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return norms.gradient_norms(*case)

    ways = {
        "batch gradient": lambda: torch.autograd.grad(
            F.cross_entropy(model(data), labels), list(model.parameters())
        ),
        "func_gradients": lambda: gradients.func_gradients(*case),
        "func_gradients, plain attention": plain,
        "gradient_norms": lambda: norms.gradient_norms(*case),
        "gradient_norms, plain attention": plain_norms,
    }
    rows = measure(ways, device, rounds=7)
    return ", ".join(f"{name}: {row.get('ms', row.get('failed'))}" for name, row in rows.items())


def probe_flags(device: torch.device) -> str:
    """Compare norms with float64 after each way to switch TF32 on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(288, 20))
    data, targets = torch.rand(6, 1, 8, 8), torch.rand(6, 20)
    exact = norms.gradient_norms(model.double(), F.mse_loss, data.double(), targets.double())
    case = model.float().to(device), F.mse_loss, data.to(device), targets.to(device)
    said = []
    for name, switch in {
        "default": lambda: None,
        "older": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        "high": lambda: torch.set_float32_matmul_precision("high"),
        "newer": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    }.items():
        switch()
        error = ((norms.gradient_norms(*case).cpu() - exact) / exact).abs().max().item()
        said.append(f"{name}: {error:.1e}")
    return ", ".join(said)


PROBES = {
    "weight norm in float64": probe_weight_norm,
    "attention": probe_attention,
    "names of devices": probe_names,
    "a generator without an index": probe_generator,
    "packed sequences": probe_packed,
    "recurrent layers": probe_recurrent,
    "data elsewhere": probe_mixed_devices,
    "out of memory": probe_memory,
    "random numbers": probe_randomness,
    "the same bits": probe_same_bits,
    "reduced precision": probe_precision,
    "compiled": probe_compile,
    "switches of precision": probe_flags,  # last, since it leaves them on
}


def probes_part(device: torch.device, small: bool) -> dict[str, str]:
    """Try each probe; an error is its answer."""
    results = {}
    for name, probe in PROBES.items():
        try:
            results[name] = probe(device)
        except Exception as error:
            results[name] = f"FAILED {type(error).__name__}: {str(error)[:400]}"
        print(f"{name}: {results[name]}")
    return results


PARTS = {
    "models": models_part,
    "tf32": tf32_part,
    "waiting": waiting_part,
    "probes": probes_part,
}


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a rehearsal on a CPU")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    result = PARTS[options.part](device, options.small)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
