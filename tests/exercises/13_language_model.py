# Answers and their verdicts, as tests/support/answers.py reads them. A wrong one breaks one demand.

# %% solution-1: correct
def batch_gradient(grads, counts):
    total = int(counts.sum())
    return {n: sum(g * int(k) for g, k in zip(each, counts)) / total for n, each in grads.items()}

# %% solution-1: correct
def batch_gradient(grads, counts):
    share = counts.double().div(counts.sum()).cpu()
    return {
        name: (each.flatten(1).T @ share.to(each)).view(each.shape[1:])
        for name, each in grads.items()
    }

# %% solution-1: right shape, wrong values: four texts
def batch_gradient(grads, counts):  # each text alike
    return {name: each.mean(dim=0) for name, each in grads.items()}

# %% solution-1: wrong dtype: five texts, float64
# - g) for n, g
# + g).float() for n, g

# %% solution-1: not so yet: it changed grads[0]
def batch_gradient(grads, counts):  # in place
    for each in grads.values():
        each.mul_((counts / counts.sum()).to(each).view(-1, *[1] * (each.dim() - 1)))
    return {name: each.sum(dim=0) for name, each in grads.items()}

# %% solution-2: correct
def token_scores(losses, params, direction):
    each = torch.func.jacrev(losses)(params)
    return sum((each[name] * direction[name]).flatten(1).sum(dim=1) for name in params)

# %% solution-2: correct
def token_scores(losses, params, direction):
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    scores = []
    for loss in losses(leaves):
        grads = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True)
        pairs = zip(grads, leaves, strict=True)
        scores.append(sum((g * direction[name]).sum() for g, name in pairs))
    return torch.stack(scores).detach()

# %% solution-2: wrong shape: 64 tokens: expected (64,), got ()
# - (direction,))[1]
# + (direction,))[1].mean()  # of the whole text

# %% solution-2: right shape, wrong values: 64 tokens
# the losses, not their derivatives
# - [1]
# + [0]

# %% solution-3: correct
def private_adapter_sum(model, loss_fn, inputs, targets, limit, noise):
    sums = norms.clipped_sum(model, loss_fn, inputs, targets, limit=limit)
    return {name: total + noise[name] for name, total in sums.items()}

# %% solution-3: correct
def private_adapter_sum(model, loss_fn, inputs, targets, limit, noise):
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    total = {n: noise[n].clone() for n in named}
    for row, wanted in zip(inputs.split(1), targets.split(1), strict=True):
        grads = torch.autograd.grad(loss_fn(model(row), wanted), list(named.values()))
        norm = sum(g.square().sum() for g in grads).sqrt().item()
        for n, g in zip(named, grads, strict=True):
            total[n] += g * min(1.0, limit / norm)
    return total

# %% solution-3: right shape, wrong values: adapters
# - factors, g)
# + (limit / g.flatten(1).norm(dim=1)).clamp(max=1), g)

# %% solution-3: right shape, wrong values: adapters
# - + noise[n] for
# + + len(inputs) * noise[n] for

# %% solution-4: correct
def find_planted(model, rows, query, count):
    grads = gradients.loop_gradients(model, loss_fn, rows[:, :-1], rows[:, 1:])
    theirs = gradients.loop_gradients(model, loss_fn, query[None, :-1], query[None, 1:])
    products = sum((grads[n] * theirs[n]).flatten(1).sum(dim=1) for n in grads)
    lengths = sum(g.flatten(1).square().sum(dim=1) for g in grads.values()).sqrt()
    return (products / lengths).argsort(descending=True)[:count]

# %% solution-4: correct
def find_planted(model, rows, query, count):  # without a gradient
    asked = set(zip(query.tolist(), query.tolist()[1:], query.tolist()[2:]))
    shared = [len(asked & set(zip(row, row[1:], row[2:]))) for row in rows.tolist()]
    return torch.tensor(shared, device=rows.device).topk(count).indices

# %% solution-4: not so yet: at least 80 % are found: measured
def find_planted(model, rows, query, count):  # the windows that surprise most, planted or not
    losses = [loss_fn(model(row[None, :-1]), row[None, 1:]).item() for row in rows]
    return torch.tensor(losses, device=rows.device).topk(count).indices

# %% solution-4: not so yet: each window is named once
# - .topk(count).indices
# + .topk(1).indices.expand(count)

# %% solution-5: correct
def select(train, targets, tasks, count):
    ids, inverse = tasks.unique(return_inverse=True)
    sums = targets.new_zeros(len(ids), targets.shape[1]).index_add_(0, inverse, targets)
    best = (F.normalize(train, dim=1) @ F.normalize(sums, dim=1).T).max(dim=1).values
    return best.argsort(descending=True)[:count]

# %% solution-5: correct
def select(train, targets, tasks, count):
    best = torch.full((len(train),), -1.0, dtype=train.dtype)
    for task in sorted(set(tasks.tolist())):
        mean = torch.stack([g for g, t in zip(targets, tasks.tolist()) if t == task]).mean(dim=0)
        best = best.maximum(train @ mean / train.norm(dim=1) / mean.norm())
    return best.sort(descending=True).indices[:count]

# %% solution-5: right shape, wrong values
# - .amax(dim=1)
# + .mean(dim=1)

# %% solution-5: right shape, wrong values: 40 samples, tasks in disorder
# - in tasks.unique()
# + in range(len(tasks.unique()))
