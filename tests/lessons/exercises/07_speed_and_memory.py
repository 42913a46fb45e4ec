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
