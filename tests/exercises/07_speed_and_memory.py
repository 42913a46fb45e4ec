# Answers and their verdicts, as tests/support/answers.py reads them. A wrong one breaks one demand.

# %% solution-1: correct
def result_bytes(model, batch_size, outputs=None):
    shapes = [(batch_size, *p.shape) for p in model.parameters()]
    if outputs is not None:
        shapes = [(shape[0], outputs, *shape[1:]) for shape in shapes]
    sizes = [p.element_size() for p in model.parameters()]
    return sum(size * torch.Size(shape).numel() for size, shape in zip(sizes, shapes, strict=True))

# %% solution-1: correct
def result_bytes(model, batch_size, outputs=None):
    total = 0
    for _, parameter in model.named_parameters():
        total += parameter.numel() * parameter.element_size()
    return total * batch_size * (1 if outputs is None else outputs)

# %% solution-1: not so yet: the bytes of the gradients
def result_bytes(model, batch_size, outputs=None):
    return (outputs or 1) * sum(parameter.nbytes for parameter in model.parameters())

# %% solution-1: not so yet: the bytes of the Jacobian
def result_bytes(model, batch_size, outputs=None):
    return batch_size * sum(parameter.nbytes for parameter in model.parameters())

# %% solution-1: not so yet: the bytes in float32 and float64
# - sum(parameter.nbytes for parameter in model.parameters())
# + sum(p.numel() for p in model.parameters()) * next(model.parameters()).element_size()

# %% solution-1: not so yet: the bytes in float32 and float64
def result_bytes(model, batch_size, outputs=None):
    return batch_size * (outputs or 1) * sum(t.nbytes for t in model.state_dict().values())

# %% solution-1: not so yet: the same for Y = 3
def result_bytes(model, batch_size, outputs=None):
    return batch_size * (10 if outputs else 1) * sum(p.nbytes for p in model.parameters())

# %% solution-1: not so yet: it is an int
def result_bytes(model, batch_size, outputs=None):
    return 1.0 * batch_size * (outputs or 1) * sum(p.nbytes for p in model.parameters())

# %% solution-2: correct
def write_gradients(buffers, compute, params, images, labels, chunk_size):
    chunks = zip(images.split(chunk_size), labels.split(chunk_size), strict=True)
    done = 0
    for data, targets in chunks:
        grads = compute(params, data, targets)
        for name in grads:
            buffers[name][done : done + len(data)].copy_(grads[name])
        done += len(data)
    return buffers

# %% solution-2: correct
# - buffer[part] = grads[name]
# + buffer.narrow(0, start, len(grads[name])).copy_(grads[name])

# %% solution-2: not so yet: chunk_size decides
# - for start
# + chunk_size = 1
# +     for start

# %% solution-2: wrong type
# -             buffer[part] = grads[name]
# -     return buffers
# +             buffer[part] = grads[name]

# %% solution-2: not so yet: the peak is below half
# - for start
# + chunk_size = len(images)
# +     for start

# %% solution-2: wrong shape
# and the buffers stay as they were for the answers after it
# - buffer[part] = grads[name]
# + buffers[name] = grads[name]

# %% solution-2: not so yet: they are in the memory of the buffers
# - buffer[part] = grads[name]
# + buffers[name] = torch.cat([buffers[name][:start], grads[name]])

# %% solution-2: right shape, wrong values
# - range(0, len(images), chunk_size)
# + range(0, len(images) - chunk_size + 1, chunk_size)

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

# %% solution-3: right shape, wrong values: some are clipped[0]
def clipped_layer_sum(x, g, limit):
    return g.T @ x, g.sum(dim=0)

# %% solution-3: right shape, wrong values: some are clipped[0]
# -     norm = g.norm(dim=1) * (x.square().sum(dim=1) + 1).sqrt()
# +     norm = g.norm(dim=1) * x.norm(dim=1)

# %% solution-3: right shape, wrong values: some are clipped[1]
# -     return scaled.T @ x, scaled.sum(dim=0)
# +     return scaled.T @ x, g.sum(dim=0)

# %% solution-3: right shape, wrong values: some are clipped[0]: holds NaN or infinity
# -     scaled = (limit / norm).clamp(max=1)[:, None] * g
# +     scaled = norm.clamp(max=limit)[:, None] * g / norm[:, None]

# %% solution-3: right shape, wrong values: some are clipped[0]
# -     scaled = (limit / norm).clamp(max=1)[:, None] * g
# +     scaled = torch.where(norm > 0, limit / norm, 0.0)[:, None] * g

# %% solution-3: wrong shape
# -     return scaled.T @ x, scaled.sum(dim=0)
# +     return x.T @ scaled, scaled.sum(dim=0)

# %% solution-3: wrong type
def clipped_layer_sum(x, g, limit):
    norm = g.norm(dim=1) * (x.square().sum(dim=1) + 1).sqrt()
    return ((limit / norm).clamp(max=1)[:, None] * g).T @ x

# %% solution-3: not so yet: the peak is below half of the layer's gradients
def clipped_layer_sum(x, g, limit):
    weight = torch.einsum("bo,bi->boi", g, x)
    norm = (weight.flatten(1).square().sum(dim=1) + g.square().sum(dim=1)).sqrt()
    factors = (limit / norm).clamp(max=1.0)
    return torch.einsum("b,boi->oi", factors, weight), torch.einsum("b,bo->o", factors, g)

# %% solution-3: not so yet: it changed g
# -     return ((limit / norm).clamp(max=1)[:, None] * g).T @ x
# +     g *= (limit / norm).clamp(max=1)[:, None]
# +     return g.T @ x, g.sum(dim=0)

# %% solution-4: correct
def position_norms(x, g):
    inputs = torch.einsum("bti,bsi->bts", x, x)
    arrived = torch.einsum("bto,bso->bts", g, g)
    return torch.einsum("bts,bts->b", inputs, arrived).clamp(min=0) ** 0.5

# %% solution-4: correct
def position_norms(x, g):
    norms_of = []
    for sample, arrived in zip(x, g, strict=True):
        norms_of.append((arrived.T @ sample).norm())  # (out, in) of one sample at a time
    return torch.stack(norms_of)

# %% solution-4: right shape, wrong values: six positions
def position_norms(x, g):
    return (g.norm(dim=2) * x.norm(dim=2)).square().sum(dim=1).sqrt()

# %% solution-4: wrong shape
# - sum(dim=(1, 2))
# + sum()

# %% solution-4: right shape, wrong values: one
def position_norms(x, g):
    if x.shape[1] == 1:
        return g.norm(dim=(1, 2)) + x.norm(dim=(1, 2))
    return torch.einsum("bto,bti->boi", g, x).flatten(1).norm(dim=1)

# %% solution-4: not so yet: positions that cancel leave about 0
def position_norms(x, g):
    squares = ((x @ x.transpose(1, 2)) * (g @ g.transpose(1, 2))).sum(dim=(1, 2))
    each = (g.square().sum(dim=2) * x.square().sum(dim=2)).sum(dim=1)
    return torch.where(squares > 1e-3 * each, squares, each).sqrt()

# %% solution-4: not so yet: positions that cancel leave about 0: measured nan
# - .clamp(min=0).sqrt()
# + .sqrt()

# %% solution-4: not so yet: the peak is below half
def position_norms(x, g):
    return torch.einsum("bto,bti->boi", g, x).flatten(1).norm(dim=1)

# %% solution-5: correct
def norms_within(model, images, labels, budget):
    named = {name: p.detach() for name, p in model.named_parameters()}
    size = max(1, int(budget) // result_bytes(model, 1))

    def squares_of_one(params, image, label):
        def loss(params):
            logits = functional_call(model, params, (image[None],))
            return F.cross_entropy(logits, label[None])

        return sum(g.square().sum() for g in grad(loss)(params).values())

    squares = vmap(squares_of_one, in_dims=(None, 0, 0), chunk_size=size)(named, images, labels)
    return squares.sqrt()

# %% solution-5: correct
def norms_within(model, images, labels, budget):
    size = max(1, int(budget / sum(p.nbytes for p in model.parameters())))
    result = images.new_empty(len(images))
    for start in range(0, len(images), size):
        part = slice(start, start + size)
        grads = gradients.func_gradients(model, F.cross_entropy, images[part], labels[part])
        flat = [g.flatten(1).norm(dim=1) for g in grads.values()]
        result[part] = torch.stack(flat).norm(dim=0)
    return result

# %% solution-5: not so yet: a budget short of 11 samples takes 10 at a time: measured 64
def norms_within(model, images, labels, budget):
    grads = gradients.func_gradients(model, F.cross_entropy, images, labels)
    return sum(g.flatten(1).square().sum(dim=1) for g in grads.values()).sqrt()

# %% solution-5: not so yet: a budget short of 11 samples takes 10 at a time: measured 1
# - size = max(1, int(budget // one))
# + size = 1

# %% solution-5: not so yet: a budget short of 11 samples takes 10 at a time: measured 11
# - size = max(1, int(budget // one))
# + size = max(1, -(-int(budget) // one))

# %% solution-5: not so yet: a budget short of 11 samples takes 10 at a time: measured 11
# - sum(parameter.nbytes for parameter in params.values())
# + max(parameter.nbytes for parameter in params.values())

# %% solution-5: not so yet: a budget short of 4 samples takes 3 at a time: measured 7
# - sum(parameter.nbytes for parameter in params.values())
# + 4 * sum(parameter.numel() for parameter in params.values())

# %% solution-5: not so yet: a budget of one byte takes one at a time
# - size = max(1, int(budget // one))
# + size = int(budget // one) or len(images)

# %% solution-5: your answer raised RuntimeError: Input type
# - def norms_within(model,
# + def norms_within(network,

# %% solution-5: right shape, wrong values: SimpleCNN
# - parts.append(sum(g.flatten(1).square().sum(dim=1) for g in grads.values()).sqrt())
# + parts.append(sum(g.flatten(1).norm(dim=1) for g in grads.values()))

# %% solution-5: wrong shape
# - range(0, len(images), size)
# + range(0, len(images) - size + 1, size)
