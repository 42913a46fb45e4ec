# Answers and their verdicts, as tests/support/answers.py reads them. A wrong one breaks one demand.

# %% solution-1: correct
def batch_gradient(grads, counts):
    result = {}
    for name, each in grads.items():
        sums = [each[i] * int(counts[i]) for i in range(len(counts))]
        result[name] = sum(sums) / int(counts.sum())
    return result

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

# %% solution-1: right shape, wrong values: four texts
# the sum over tokens
# - counts / counts.sum()
# + counts / 1

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

# %% solution-2: right shape, wrong values: 64 tokens
def token_scores(losses, params, direction):  # cosines, not inner products
    each = torch.func.jacrev(losses)(params)
    flat = torch.cat([g.flatten(1) for g in each.values()], dim=1)
    along = torch.cat([direction[name].flatten() for name in each])
    return flat @ along / flat.norm(dim=1)

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

# %% solution-3: correct
def private_adapter_sum(model, loss_fn, inputs, targets, limit, noise):  # cleared after each turn
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    total = {n: noise[n].clone() for n in named}
    for row, wanted in zip(inputs.split(1), targets.split(1), strict=True):
        loss_fn(model(row), wanted).backward()
        norm = sum(p.grad.square().sum() for p in named.values()).sqrt()
        for n, p in named.items():
            total[n] += p.grad * (limit / norm).clamp(max=1)
        model.zero_grad()
    return total

# %% solution-3: right shape, wrong values: adapters
def private_adapter_sum(model, loss_fn, inputs, targets, limit, noise):  # each adapter by itself
    grads = gradients.func_gradients(model, loss_fn, inputs, targets)
    result = {}
    for name, g in grads.items():
        factors = (limit / g.flatten(1).norm(dim=1)).clamp(max=1)
        result[name] = torch.einsum("b,b...->...", factors, g) + noise[name]
    return result

# %% solution-3: right shape, wrong values: adapters
# gradients below the limit are scaled up to it
# - .clamp(max=1)
# +

# %% solution-3: right shape, wrong values: adapters
# noise for each sequence
# - + noise[n] for
# + + len(inputs) * noise[n] for

# %% solution-3: right shape, wrong values: adapters
def private_adapter_sum(model, loss_fn, inputs, targets, limit, noise):  # the sum is clipped
    grads = gradients.func_gradients(model, loss_fn, inputs, targets)
    sums = {name: g.sum(dim=0) for name, g in grads.items()}
    norm = torch.cat([each.flatten() for each in sums.values()]).norm()
    factor = (limit / norm).clamp(max=1)
    return {name: factor * each + noise[name] for name, each in sums.items()}

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
    shared = [
        len(asked & set(zip(row, row[1:], row[2:]))) for row in rows.tolist()
    ]
    return torch.tensor(shared, device=rows.device).topk(count).indices

# %% solution-4: not so yet: at least 80 % are found: measured
# - .topk(count)
# + .topk(count, largest=False)

# %% solution-4: not so yet: at least 80 % are found: measured
def find_planted(model, rows, query, count):  # the windows that surprise most, planted or not
    losses = [loss_fn(model(row[None, :-1]), row[None, 1:]).item() for row in rows]
    return torch.tensor(losses, device=rows.device).topk(count).indices

# %% solution-4: not so yet: each window is named once
# - .topk(count).indices
# + .topk(1).indices.expand(count)

# %% solution-4: wrong shape: suspects: expected (10,), got (100,)
# - .topk(count).indices
# + .argsort(descending=True)

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
# the mean over tasks, not the best
# - .amax(dim=1)
# + .mean(dim=1)

# %% solution-5: right shape, wrong values
def select(train, targets, tasks, count):  # the mean of cosines, not the cosine of a mean
    each = scores.cosine(train, targets)
    means = [each[:, tasks == task].mean(dim=1) for task in tasks.unique()]
    return torch.stack(means).amax(dim=0).topk(count).indices

# %% solution-5: right shape, wrong values: 50 windows
# lengths count
# - scores.cosine
# + scores.dot

# %% solution-5: right shape, wrong values: 50 windows
# best last
# - .indices
# + .indices.flip(0)

# %% solution-5: wrong shape: 50 windows: expected (8,), got (50,)
# - .topk(count).indices
# + .argsort(descending=True)

# %% solution-5: right shape, wrong values: 40 samples, tasks in disorder
def select(train, targets, tasks, count):  # tasks are 0, 1, 2, ...
    means = torch.stack([targets[tasks == t].mean(dim=0) for t in range(len(tasks.unique()))])
    return scores.cosine(train, means).amax(dim=1).topk(count).indices
