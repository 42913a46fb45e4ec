import matplotlib; matplotlib.use('Agg')
import sys; sys.path.insert(0,'.')
from IPython.display import display
import torch
from helpers import benchmark
from torch.utils.benchmark import Measurement, TaskSpec
def measure(c, **k):
    for f in c.values(): f()
    return {n: Measurement(1,[.1],TaskSpec('','')) for n in c}
benchmark.measure=measure

device: str = "auto"  # auto, cpu, cuda, cuda:1 or mps
dataset: str = "digits"  # digits, or random for noise of the same shapes
batch_size: int = 64  # B, the number of samples
seed: int = 1  # of the random weights
norms_batch: int = 128  # samples in section 5, in chunks of 16
rounds: int = 3  # how often each candidate is timed

import sys
from pathlib import Path

root = next((p for p in (Path.cwd(), *Path.cwd().parents) if (p / "helpers").is_dir()), None)
if root is None:
    raise FileNotFoundError("no folder `helpers` here or above: download the whole collection")
sys.path.insert(0, str(root))

import json
import os
import tempfile
import time
import tracemalloc

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap
from torch.utils.flop_counter import FlopCounterMode

from helpers import benchmark, data, devices, exercises, gradients, memory, models, norms
from helpers.study import candidates, peers

device = devices.resolve(device)
devices.make_repeatable(seed)

images, labels = data.load_batch(dataset, batch_size, device)
torch.manual_seed(seed)
model, mlp = models.SimpleCNN().to(device), models.MLP().to(device)
close = {"rtol": 1e-4, "atol": 1e-6}


def per_sample_grads(model, loss_fn, inputs, targets, chunk_size=None):
    params = {name: p.detach() for name, p in model.named_parameters()}

    def compute_loss(params, x, target):
        return loss_fn(functional_call(model, params, x[None]), target[None])

    compute = vmap(grad(compute_loss), in_dims=(None, 0, 0), chunk_size=chunk_size)
    return compute(params, inputs, targets)


def batch_grad(model, loss_fn, inputs, targets):
    return torch.autograd.grad(loss_fn(model(inputs), targets), [*model.parameters()])


batch = (F.cross_entropy, images, labels)
flops = []
for compute in (per_sample_grads, batch_grad):
    with FlopCounterMode(display=False) as counter:
        compute(mlp, *batch)
    flops.append(counter.get_total_flops())
print(f"{flops[0] / flops[1]:.1f} times the arithmetic of the batch gradient")
P = sum(p.numel() for p in model.parameters())
print(f"the convolutional network: P = {P:,}, B x P x 4 = {batch_size * P * 4:,} bytes")

ways = {
    "batch gradient": lambda: batch_grad(model, *batch),
    "vmap(grad)": lambda: per_sample_grads(model, *batch),
}
print(f"{device.type}, B = {batch_size}, {torch.get_num_threads()} threads")
benchmark.table(benchmark.measure(ways, rounds=rounds), reference="batch gradient")

numbers = batch_size * P
owned = torch.zeros(numbers)
writes = {"owned memory": lambda: owned.fill_(1.0), "fresh memory": lambda: torch.ones(numbers)}


def faults(run):  # of one run, after one that warms up; 0 where the system does not tell
    for _ in range(2):
        before = memory.page_faults() or 0
        run()
    return (memory.page_faults() or 0) - before


fills = benchmark.measure(writes, rounds=rounds)
print(f"{4 * numbers:,} bytes are {4 * numbers // 4096:,} pages of 4,096")
for name, run in writes.items():
    print(f"{name}: {1e3 * fills[name].median:.0f} ms, {faults(run):,} page faults")

def faults_of_five():
    counts = []
    for _ in range(5):
        before = memory.page_faults() or 0
        torch.ones(10_000_000)
        counts.append((memory.page_faults() or 0) - before)
    return counts


print("as it comes:", faults_of_five())
with memory.keep_freed() as works:  # works is False without glibc: macOS, Windows
    print("freed memory kept:", faults_of_five() if works else "not possible here")

expected = gradients.loop_gradients(model, F.cross_entropy, images[:20], labels[:20])
buffers = {n: p.new_empty(batch_size, *p.shape) for n, p in model.named_parameters()}
ways |= {
    "vmap(grad), chunks of 16": lambda: per_sample_grads(model, *batch, chunk_size=16),
    "buffers reused": lambda: gradients.func_gradients(model, *batch, out=buffers),
    "loop": lambda: gradients.loop_gradients(model, *batch),
}
for name, (_, build) in peers.IN_PROCESS.items():
    if why := peers.absent(name):
        print(why)
    else:
        ways[name] = build(model, images, labels)
for name, run in ways.items():
    if name != "batch gradient":
        first = {key: g[:20] for key, g in run().items()}
        torch.testing.assert_close(first, expected, **close)

KEPT = "freed memory kept"


def measured(unit=None):  # times as multiples of the unit, and the page faults of a run
    times = benchmark.measure(ways, rounds=rounds)
    unit = unit or times["batch gradient"].median
    rows = {n: (t.median / unit, t.iqr / unit, faults(ways[n]) / 1000) for n, t in times.items()}
    return unit, pd.DataFrame.from_dict(rows, "index", columns=["time", "spread", "1000 faults"])


ways["fill owned memory"] = writes["owned memory"]
unit, plain = measured()
with memory.keep_freed():
    kept = measured(unit)[1]
floor = kept.time[["batch gradient", "fill owned memory"]].sum()

path = root / "notebooks" / "measurements" / "cpu-amd-epyc-2-cores.json"
record = json.loads(path.read_text()) if path.exists() else {"studies": []}  # none on Colab
settings = ["method", "compiled", "allocator"]
studies = {s["model"]: pd.DataFrame(s["rows"]).set_index(settings) for s in record["studies"]}


def recorded(network, allocator="default", compiled=False):
    return studies[network].xs((compiled, allocator), level=["compiled", "allocator"])


columns = {"as it comes": plain, KEPT: kept}
print(f"floor: {floor:.1f} batch gradients")
if studies:
    medians = {each: recorded("SimpleCNN", each)["median"] for each in ("default", KEPT)}
    there = pd.DataFrame(medians)
    there /= there.loc["batch gradient", "default"]
    of_record = there.loc["batch gradient", KEPT] + there.loc["fill owned memory", "default"]
    print(f"floor: {of_record:.1f} in the record of {record['date']}")
    columns["record"] = there.rename(columns={"default": "as it comes"})
pd.concat(columns, axis=1).sort_values((KEPT, "time")).round(1).astype(object).fillna("")

names = kept.time.drop("fill owned memory").sort_values(ascending=False).index
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
axis.hlines(names, kept.time[names], plain.time[names], color="lightgray", zorder=0)
axis.scatter(plain.time[names], names, color="C0", label="as it comes")
axis.scatter(kept.time[names], names, color="C0", facecolors="white", label=KEPT)
axis.axvline(floor, color="C3", linewidth=1, label="floor")
axis.set(title="Most of the distance to the floor is page faults", xlim=0)
axis.set_xlabel("time, as a multiple of one batch gradient as it comes")
figure.legend(loc="outside lower center", ncols=3)
plt.show()

rows = {}
for network in studies:
    for allocator in ("default", KEPT, "huge pages"):
        row = recorded(network, allocator).loc["vmap(grad)"]
        times = [f"{1e3 * seconds:.1f}" for seconds in (row["median"], row["iqr"])]
        rows[network, allocator] = [*times, f"{row['faults']:,.0f}", f"{row['held'] / 2**20:.0f}"]
pd.DataFrame(rows, index=["ms", "spread", "faults", "MiB held afterwards"]).T

seen = {}


def keep(layer, inputs, output):
    seen["x"] = inputs[0].detach()  # (B, 9216)
    output.register_hook(lambda g: seen.update(g=g))  # (B, 128), in the backward pass


handle = model.fc1.register_forward_hook(keep)
loss = F.cross_entropy(model(images), labels, reduction="sum")  # a mean would divide each g by B
torch.autograd.grad(loss, [*model.parameters()])
handle.remove()

x, g = seen["x"], seen["g"]
exact = per_sample_grads(model, *batch)["fc1.weight"]
torch.testing.assert_close(torch.einsum("bo,bi->boi", g, x), exact, **close)

norm = g.norm(dim=1) * x.norm(dim=1)
limit = norm.median().item()
scale = (limit / norm).clamp(max=1.0)
clipped_sum = (scale[:, None] * g).T @ x  # (128, 9216)
torch.testing.assert_close(norm, exact.flatten(1).norm(dim=1), **close)
right = torch.einsum("b,boi->oi", scale, exact)
torch.testing.assert_close(clipped_sum, right, **close)
print(f"{x.nbytes + g.nbytes:,} bytes instead of {exact.nbytes:,}")
del exact

images, labels = data.load_batch(dataset, norms_batch, device)
some = F.cross_entropy, images, labels
params = {name: p.detach() for name, p in model.named_parameters()}


def batch_in_chunks(size):
    total = 0
    for x, y in zip(images.split(size), labels.split(size), strict=True):
        grads = batch_grad(model, lambda out, y: F.cross_entropy(out, y, reduction="sum"), x, y)
        total = total + torch.nn.utils.parameters_to_vector(grads)
    return total


def norm_of_one(params, x, target):
    own = grad(lambda p: F.cross_entropy(functional_call(model, p, x[None]), target[None]))(params)
    return sum(g.square().sum() for g in own.values()).sqrt()


norm_by_vmap = vmap(norm_of_one, in_dims=(None, 0, 0), chunk_size=16)
reduced = {
    "batch gradient, all at once": lambda: batch_in_chunks(norms_batch),
    "norms, all at once": lambda: norms.gradient_norms(model, *some, chunk_size=None),
    "batch gradient, chunks of 16": lambda: batch_in_chunks(16),
    "norms, chunks of 16": lambda: norms.gradient_norms(model, *some, chunk_size=16),
    "clipped sum, chunks of 16": lambda: norms.clipped_sum(model, *some, limit, chunk_size=16),
    "norms by vmap(grad), chunks of 16": lambda: norm_by_vmap(params, images, labels),
}
exact = norm_by_vmap(params, images, labels)
torch.testing.assert_close(reduced["norms, chunks of 16"](), exact, **close)
with memory.keep_freed():
    times = benchmark.measure(reduced, rounds=rounds)
shown = benchmark.table(times, reference="batch gradient, all at once")
shown["peak (MB)"] = [round(benchmark.memory(run).peak / 1e6) for run in reduced.values()]
print(f"all gradients of {norms_batch} samples: {norms_batch * P * 4 / 1e6:,.0f} MB")
shown

mlp_params = {name: p.detach() for name, p in mlp.named_parameters()}
images, labels = batch[1:]


def mlp_loss(params, inputs, targets):
    return F.cross_entropy(functional_call(mlp, params, (inputs,)), targets)


def loss_of_one(params, x, target):
    return mlp_loss(params, x[None], target[None])


functions = {
    "vmap(grad)": vmap(grad(loss_of_one), in_dims=(None, 0, 0)),
    "batch gradient": grad(mlp_loss),
}
compiled, first_calls = {}, {}
cache = tempfile.TemporaryDirectory()
if why := candidates.compiler_absent():
    print(why)
else:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/tmp/e07/cc7"
    for state in ("cold", "warm"):
        torch.compiler.reset()  # forgets what is compiled; the files stay
        for name, function in functions.items():
            compiled[name] = torch.compile(function, dynamic=False)
            start = time.perf_counter()
            result = compiled[name](mlp_params, images, labels)
            first_calls[name, state] = time.perf_counter() - start
            right = function(mlp_params, images, labels)
            torch.testing.assert_close(result, right, **close)
            print(f"{name}, {state} cache: first call {first_calls[name, state]:.1f} s")

work = (mlp_params, images, labels)
runs = {"batch gradient": lambda: batch_grad(mlp, *batch)}
runs |= {"vmap(grad)": lambda: functions["vmap(grad)"](*work)}
for name in compiled:
    runs[f"{name}, compiled"] = lambda run=compiled[name]: run(*work)
times = benchmark.measure(runs, rounds=rounds)
if compiled:
    saved = times["vmap(grad)"].median - times["vmap(grad), compiled"].median
    if saved > 0:
        print(f"a cold start pays off after {first_calls['vmap(grad)', 'cold'] / saved:,.0f} calls")
if studies:
    for name, row in recorded("MLP").filter(like="JAX", axis=0).iterrows():
        print(f"record: {name}, {1e3 * row['median']:.2f} ms")
benchmark.table(times, reference="batch gradient")

double = models.MLP().double()
double_params = {name: p.detach() for name, p in double.named_parameters()}
double_batch = images[:20].cpu().double(), labels[:20].cpu()
double_right = gradients.loop_gradients(double, F.cross_entropy, *double_batch)


def peak_of(run):  # bytes of tensors, and of NumPy's arrays, which `benchmark.memory` does not see
    tracemalloc.start()
    try:
        return benchmark.memory(run).peak + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

def result_bytes(model, batch_size):
    """Compute the bytes of all per-sample gradients.

    Args:
        model: Any module.
        batch_size: The number of samples.

    Returns:
        An int.
    """
    return batch_size * sum(p.nbytes for p in model.parameters() if p.requires_grad)

mixed = torch.nn.Sequential(
    torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2).double()
)  # 21 parameters of 4 bytes, 8 of 8 bytes, and buffers
mixed[0].bias.requires_grad_(False)  # 3 of the 21

with exercises.check("Exercise 1", result_bytes, model=model, mixed=mixed) as answer:
    got = {"digits": answer(model, batch_size), "mixed": answer(mixed, 8)}
    right = {"digits": batch_size * P * 4, "mixed": 8 * (18 * 4 + 8 * 8)}
    exercises.expect("bytes", got, right)

def write_grads(buffers, compute, params, inputs, targets, chunk_size):
    """Fill buffers with per-sample gradients.

    Args:
        buffers: {name: (B, *parameter.shape)}.
        compute: A function of params, inputs and targets that returns such a dictionary.
        params: {name: parameter.shape}.
        inputs: (B, ...).
        targets: (B,).
        chunk_size: How many samples to take at a time; B need not be a multiple of it.

    Returns:
        `buffers`, the same tensors.
    """
    for start in range(0, len(inputs), chunk_size):
        part = slice(start, start + chunk_size)
        grads = compute(params, inputs[part], targets[part])
        for name, buffer in buffers.items():
            buffer[part] = grads[name]
    return buffers

def compute_for(network):
    def compute(params, inputs, targets):
        def compute_loss(params, x, target):
            return F.cross_entropy(functional_call(network, params, x[None]), target[None])

        return vmap(grad(compute_loss), in_dims=(None, 0, 0))(params, inputs, targets)

    return compute


def in_place(written, filled):
    return all(written[name].data_ptr() == buffer.data_ptr() for name, buffer in filled.items())


right = gradients.loop_gradients(model, *batch)
cases = {
    "the convolutional network": (compute_for(model), params, images, labels, batch_size // 7 + 1),
    "the MLP in float64": (compute_for(double), double_params, *double_batch, 7),
}
with exercises.check("Exercise 2", write_grads, params=params, images=images) as answer:
    for (name, case), expected in zip(cases.items(), (right, double_right), strict=True):
        filled = {key: torch.full_like(g, torch.nan) for key, g in expected.items()}
        written = answer(dict(filled), *case)
        exercises.expect(name, written, expected, tolerance=1e-4)
        exercises.require("it is in the memory of the buffers", in_place(written, filled))
    if batch_size >= 16:  # with fewer, other tensors weigh more
        share = peak_of(lambda: answer(dict(buffers), *cases["the convolutional network"]))
        share /= sum(g.nbytes for g in right.values())
        demand = "the peak is below half of the result"
        exercises.require(demand, share < 0.5, measured=f"{share:.1f} times the result")
del right

def clipped_layer_sum(x, g, limit):
    """Add up the clipped gradients of a linear layer.

    Args:
        x: The inputs, (B, in).
        g: The gradients at the outputs, (B, out).
        limit: The largest norm of a sample's gradient, of weight and bias together.

    Returns:
        A tuple: the sum for the weight (out, in), and for the bias (out,).
    """
    norm = g.norm(dim=1) * (x.square().sum(dim=1) + 1).sqrt()
    scaled = (limit / norm).clamp(max=1)[:, None] * g
    return scaled.T @ x, scaled.sum(dim=0)

def clipped_by_grads(x, g, limit):
    rows = torch.cat([torch.einsum("bo,bi->boi", g, x).flatten(1), g], dim=1)
    rows = (limit / rows.norm(dim=1)).clamp(max=1)[:, None] * rows
    weight, bias = rows.sum(dim=0).split([g.shape[1] * x.shape[1], g.shape[1]])
    return weight.view(g.shape[1], x.shape[1]), bias


g = seen["g"].clone()
g[0] = 0.0  # a sample whose gradient is zero
narrow = x[:20, :2].cpu().double(), 100 * g[:20].cpu().double()  # the bias is much of the norm
cases = {
    "half of them clipped": (x, g, limit),
    "two inputs in float64": (*narrow, 1.0),
    "none clipped": (x, g, 1e9),
}
right = [clipped_by_grads(*case) for case in cases.values()]

with exercises.check("Exercise 3", clipped_layer_sum, cases=cases) as answer:
    for (name, case), expected in zip(cases.items(), right, strict=True):
        exercises.expect(name, answer(*case), expected, tolerance=1e-4)
    if batch_size >= 16:
        share = peak_of(lambda: answer(*cases["half of them clipped"]))
        share /= len(x) * g.shape[1] * x.shape[1] * 4
        demand = "the peak is below half of (B, out, in)"
        exercises.require(demand, share < 0.5, measured=f"{share:.1f} times that")

def position_norms(x, g):
    """Compute the norms of the gradients of a linear layer that is used at T positions.

    Args:
        x: The inputs, (B, T, in).
        g: The gradients at the outputs, (B, T, out).

    Returns:
        (B,).
    """
    pairs = (x @ x.transpose(1, 2)) * (g @ g.transpose(1, 2))  # (B, T, T)
    return pairs.sum(dim=(1, 2)).clamp(min=0).sqrt()

x4 = torch.randn(batch_size, 6, 300, device=device)
g4 = torch.randn(batch_size, 6, 200, device=device)
x64, g64 = (torch.randn(40, 4, size, dtype=torch.float64) for size in (30, 50))
cases = {"six positions": (x4, g4), "four in float64": (x64, g64)}
right = [torch.einsum("bto,bti->boi", g, x).flatten(1).norm(dim=1) for x, g in cases.values()]
same = x64[:, :1].expand(-1, 4, -1).clone()  # one input everywhere, and gradients that sum to 0
opposite = g64 - g64.mean(dim=1, keepdim=True)

with exercises.check("Exercise 4", position_norms, cases=cases, same=same, g=opposite) as answer:
    for (name, case), expected in zip(cases.items(), right, strict=True):
        exercises.expect(name, answer(*case), expected, tolerance=1e-4)
    size = answer(same, opposite).max().item()  # NaN, if a sum below zero met the root
    exercises.require("positions that cancel leave about 0", size < 1e-4, measured=f"{size:.1g}")
    share = peak_of(lambda: answer(x4, g4)) / (batch_size * 200 * 300 * 4)
    demand = "the peak is below half of (B, out, in)"
    exercises.require(demand, share < 0.5, measured=f"{share:.1f} times that")