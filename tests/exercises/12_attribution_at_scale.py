# Answers and their verdicts, as tests/support/answers.py reads them. A wrong one breaks one demand.

# %% solution-1: correct
def step_effects(computer, batch, test, rate):
    own, others = (computer.compute_per_sample_grad(each) for each in (batch, test))
    products = sum(own[name].flatten(1) @ others[name].flatten(1).T for name in own)
    return rate * products * computer.compute_loss_grad(batch)

# %% solution-1: correct
def step_effects(computer, batch, test, rate):
    def by_parameters(value):
        slopes = torch.autograd.grad(value, list(computer.model.parameters()), retain_graph=True)
        return torch.cat([slope.flatten() for slope in slopes])

    (x, y), (x_test, y_test) = batch, test
    losses = F.cross_entropy(computer.model(x), y, reduction="none")
    moves = -rate * torch.stack([by_parameters(loss) for loss in losses])
    return moves @ torch.stack([by_parameters(m) for m in margin(computer.model(x_test), y_test)]).T

# %% solution-1: right shape, wrong values: 60 samples
# - -computer.compute_loss_grad(batch) * gradients
# + -gradients

# %% solution-1: right shape, wrong values: 60 samples
# - @ gradients(computer, test).T
# + @ (computer.compute_loss_grad(test) * gradients(computer, test)).T

# %% solution-2: correct
def lds(predicted, truth):
    scores = [stats.spearmanr(a, b)[0] for a, b in zip(predicted.T, truth.T)]
    return torch.tensor(scores, dtype=torch.float64).mean()

# %% solution-2: correct
# - ((a * b).sum(dim=0) / (a.norm(dim=0) * b.norm(dim=0))).mean()
# + torch.stack([torch.stack(pair).corrcoef()[0, 1] for pair in zip(a.T, b.T)]).mean()

# %% solution-2: right shape, wrong values: 40 subsets
# equal values get different ranks
# - return ranks - ranks
# + ranks = values.argsort(dim=0).argsort(dim=0).double()
# +         return ranks - ranks

# %% solution-2: right shape, wrong values: 40 subsets
def lds(predicted, truth):  # over the test samples of a subset
    scores = [stats.spearmanr(a, b)[0] for a, b in zip(predicted, truth)]
    return torch.tensor(scores, dtype=torch.float64).mean()

# %% solution-3: correct
def nearest(features, query, count):
    products = np.concatenate([features[i : i + 50] @ query for i in range(0, len(features), 50)])
    return products.argsort()[::-1][:count]

# %% solution-3: correct
def nearest(features, query, count):
    best, start = [], 0
    for shard in features.shards:
        products = shard @ query
        best += [(-value, start + row) for row, value in enumerate(products.tolist())]
        best = sorted(best)[:count]
        start += len(shard)
    return np.array([row for _, row in best])

# %% solution-3: not so yet: less than a quarter is held: measured
def nearest(features, query, count):
    return np.argsort(-(features[:] @ query))[:count]

# %% solution-3: right shape, wrong values: shards of other sizes
# - start += len(shard)
# + start += 64

# %% solution-4: correct
def exact_sum(parts):
    stacked = torch.stack(parts)
    exponent = int(np.ceil(np.log2(stacked.abs().max().item() * len(parts))))
    scale = 2.0 ** (61 - exponent)
    return (stacked * scale).round().long().sum(dim=0).double() / scale

# %% solution-4: correct
def exact_sum(parts):
    from math import fsum

    entries = torch.stack(parts).flatten(1).T.tolist()
    return torch.tensor([fsum(e) for e in entries], dtype=torch.float64).view_as(parts[0])

# %% solution-4: not so yet: ordinary: the same bits in any order
def exact_sum(parts):
    return sum(parts)

# %% solution-4: not so yet: tiny: right to 1e-12: measured
def exact_sum(parts):
    total = sum((part * 2**44).round().long() for part in parts)  # too coarse for tiny numbers
    return total.double() / 2**44

# %% solution-5: correct
# - drawn[rank::world]
# + drawn.tensor_split(world)[rank]

# %% solution-5: correct
def private_step(grads, world, number, rate, limit, sigma, all_reduce):
    generator = torch.Generator().manual_seed(number)
    drawn = grads[torch.rand(len(grads), generator=generator) < rate]
    scaled = [g * min(1.0, limit / g.norm().item()) for g in drawn]
    sums = [sum(scaled[rank::world], torch.zeros_like(grads[0])) for rank in range(world)]
    noise = torch.randn(len(grads[0]), generator=generator, dtype=grads.dtype)
    return (all_reduce(sums) + sigma * limit * noise) / len(grads) / rate

# %% solution-5: right shape, wrong values: 90 samples, 2 workers
# - noise.to(grads.device)
# + world * noise.to(grads.device)

# %% solution-5: right shape, wrong values: 90 samples, 1 workers
# - (rate * n)
# + len(drawn)  # of this draw

# %% solution-5: not so yet: one reduction, of a share of each
# - (grads * factors)[drawn[rank::world]].sum(dim=0) for
# + (grads * factors)[drawn].sum(dim=0) / world for

# %% solution-6: correct
def reweighted(step, start, order, measure, weights, amount):
    def at_the_end(weights):
        state = start
        for picked in order:
            state = step(state, weights, picked)
        return measure(state)

    slopes = grad(at_the_end)(weights)
    return torch.relu(weights - amount * slopes * len(slopes) / slopes.abs().sum())

# %% solution-6: correct
# - (weights - amount * slopes / slopes.abs().mean()).clamp(min=0)
# + torch.relu(weights - amount * len(slopes) * F.normalize(slopes, p=1, dim=0))

# %% solution-6: right shape, wrong values: least squares
# - .clamp(min=0)
# +

# %% solution-6: right shape, wrong values: least squares
# - start, weights, order
# + start, torch.ones_like(weights), order
