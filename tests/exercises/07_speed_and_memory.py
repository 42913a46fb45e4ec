# %% solution-1: correct
def result_bytes(model, batch_size):
    trainable = [p for p in model.parameters() if p.requires_grad]
    return sum(torch.Size((batch_size, *p.shape)).numel() * p.element_size() for p in trainable)

# %% solution-1: correct
def result_bytes(model, batch_size):
    total = 0
    for _, parameter in model.named_parameters():
        total += parameter.numel() * parameter.element_size() * parameter.requires_grad
    return total * batch_size

# %% solution-1: right shape, wrong values: bytes['mixed']
# - sum(p.nbytes for p in model.parameters() if p.requires_grad)
# + sum(4 * p.numel() for p in model.parameters() if p.requires_grad)

# %% solution-1: right shape, wrong values: bytes['mixed']
# - sum(p.nbytes for p in model.parameters() if p.requires_grad)
# + sum(p.nbytes for p in model.parameters())

# %% solution-1: wrong dtype
# - batch_size *
# + 1.0 * batch_size *

# %% solution-2: correct
def write_grads(buffers, compute, params, inputs, targets, chunk_size):
    done = 0
    for some, wanted in zip(inputs.split(chunk_size), targets.split(chunk_size), strict=True):
        for name, grads in compute(params, some, wanted).items():
            buffers[name][done : done + len(some)].copy_(grads)
        done += len(some)
    return buffers

# %% solution-2: correct
# - buffer[part] = grads[name]
# + buffer.narrow(0, start, len(grads[name])).copy_(grads[name])

# %% solution-2: not so yet: the peak is below half
# - for start
# + chunk_size = len(inputs)
# +     for start

# %% solution-2: not so yet: it is in the memory of the buffers
# - buffer[part] = grads[name]
# + buffers[name] = torch.cat([buffers[name][:start], grads[name]])

# %% solution-2: not so yet: the peak is below half
# everything is gathered in NumPy first
# - for start
# + rows = [compute(params, x[None], y[None]) for x, y in zip(inputs, targets)]
# +     rows = [{name: g.cpu().numpy().copy() for name, g in row.items()} for row in rows]
# +     for start

# %% solution-2: right shape, wrong values
# - range(0, len(inputs), chunk_size)
# + range(0, len(inputs) - chunk_size + 1, chunk_size)

# %% solution-3: correct
def clipped_layer_sum(x, g, limit):
    both = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)  # the bias is a weight of the input 1
    norm = g.norm(dim=1) * both.norm(dim=1)
    factors = torch.where(norm > limit, limit / norm, torch.ones_like(norm))
    total = torch.einsum("b,bo,bi->oi", factors, g, both)
    return total[:, :-1].contiguous(), total[:, -1].contiguous()

# %% solution-3: correct
def clipped_layer_sum(x, g, limit):
    weight, bias = g.new_zeros(g.shape[1], x.shape[1]), g.new_zeros(g.shape[1])
    for sample, arrived in zip(x, g, strict=True):
        norm = (arrived.square().sum() * (sample.square().sum() + 1)).sqrt()
        factor = min(1.0, limit / norm.item()) if norm > 0 else 0.0
        weight += factor * torch.outer(arrived, sample)
        bias += factor * arrived
    return weight, bias

# %% solution-3: right shape, wrong values: half of them clipped[0]: holds NaN or infinity
# - scaled = (limit / norm).clamp(max=1)[:, None] * g
# + scaled = norm.clamp(max=limit)[:, None] * g / norm[:, None]

# %% solution-3: right shape, wrong values: half of them clipped
# - (x.square().sum(dim=1) + 1).sqrt()
# + x.norm(dim=1)

# %% solution-3: not so yet: the peak is below half
# - return scaled.T @ x
# + return torch.einsum("bo,bi->boi", scaled, x).sum(dim=0)

# %% solution-4: correct
def position_norms(x, g):
    inputs = torch.einsum("bti,bsi->bts", x, x)
    arrived = torch.einsum("bto,bso->bts", g, g)
    return torch.einsum("bts,bts->b", inputs, arrived).clamp(min=0) ** 0.5

# %% solution-4: correct
def position_norms(x, g):  # (out, in) of one sample at a time
    return torch.stack([(arrived.T @ sample).norm() for sample, arrived in zip(x, g)])

# %% solution-4: right shape, wrong values: six positions
def position_norms(x, g):
    return (g.norm(dim=2) * x.norm(dim=2)).square().sum(dim=1).sqrt()

# %% solution-4: not so yet: positions that cancel leave about 0: measured nan
# - .clamp(min=0).sqrt()
# + .sqrt()

# %% solution-4: not so yet: the peak is below half
def position_norms(x, g):
    return torch.einsum("bto,bti->boi", g, x).flatten(1).norm(dim=1)
