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
# uphill
# - -rate
# + rate

# %% solution-1: right shape, wrong values: 60 samples
# steps on margins
# - -computer.compute_loss_grad(batch) * gradients
# + -gradients

# %% solution-1: right shape, wrong values: 60 samples
# effects on losses
# - @ gradients(computer, test).T
# + @ (computer.compute_loss_grad(test) * gradients(computer, test)).T

# %% solution-1: right shape, wrong values: 60 samples
# a step on the mean loss
# - gradients(computer, test).T
# + gradients(computer, test).T / len(batch[1])

# %% solution-1: right shape, wrong values: 60 samples
# of a step of rate 1
# - -rate * down
# + -down

# %% solution-1: wrong shape: 60 samples, real steps: expected (60, 20), got (20, 60)
# - return -rate * down @ gradients(computer, test).T
# + return -rate * gradients(computer, test) @ down.T

# %% solution-1: your answer raised RuntimeError: mat1 and mat2
# - gradients(computer, batch)
# + gradients(attributed, batch)

# %% solution-2: correct
def lds(predicted, truth):
    scores = [stats.spearmanr(a, b)[0] for a, b in zip(predicted.T, truth.T)]
    return torch.tensor(scores, dtype=torch.float64).mean()

# %% solution-2: correct
def lds(predicted, truth):
    scores = []
    for column in range(predicted.shape[1]):
        ranks = []
        for values in (predicted[:, column], truth[:, column]):
            _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
            ends = counts.cumsum(0).double()
            ranks.append((ends - (counts - 1) / 2)[inverse])
        scores.append(torch.corrcoef(torch.stack(ranks))[0, 1])
    return torch.stack(scores).mean()

# %% solution-2: right shape, wrong values: 40 subsets
# equal values get different ranks
# - return ranks - ranks
# + ranks = values.argsort(dim=0).argsort(dim=0).double()
# +         return ranks - ranks

# %% solution-2: right shape, wrong values: 40 subsets
# one correlation of all ranks
# - ((a * b).sum(dim=0) / (a.norm(dim=0) * b.norm(dim=0))).mean()
# + (a * b).sum() / (a.norm() * b.norm())

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

# %% solution-3: right shape, wrong values: the job's features
# -     return np.argsort(-products)[:count]
# +     return np.sort(np.argsort(-products)[:count])  # not by the product

# %% solution-3: wrong shape: the job's features: expected (20,), got (480,)
def nearest(features, query, count):  # the nearest of each shard
    return np.concatenate([np.argsort(-(shard @ query))[:count] for shard in features.shards])

# %% solution-3: right shape, wrong values: shards of other sizes
def nearest(features, query, count):  # shards of 64 rows
    found = []
    for index, shard in enumerate(features.shards):
        found += [(-value, 64 * index + row) for row, value in enumerate((shard @ query).tolist())]
    return np.array([row for _, row in sorted(found)[:count]])

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

# %% solution-4: not so yet: ordinary: the same bits in any order
def exact_sum(parts):
    return sum(sorted(parts, key=lambda part: part[0, 0].item()))  # the entry may be the same

# %% solution-4: not so yet: tiny: right to 1e-12: measured
def exact_sum(parts):
    total = sum((part * 2**44).round().long() for part in parts)  # too coarse for tiny numbers
    return total.double() / 2**44

# %% solution-4: not so yet: huge: right to 1e-12: measured
# - 62 - int(np.frexp(largest * len(parts))[1])
# + max(30, 62 - int(np.frexp(largest * len(parts))[1]))  # huge numbers overflow

# %% solution-5: correct
def private_step(grads, world, number, rate, limit, sigma, all_reduce):
    generator = torch.Generator().manual_seed(number)
    mask = torch.rand(len(grads), generator=generator) < rate
    sums = []
    for rank in range(world):
        own = grads[mask & (torch.arange(len(grads)) % world == rank)]
        sums.append((own * (limit / (own.norm(dim=1) + 1e-6)).clamp(max=1)[:, None]).sum(dim=0))
    noise = torch.randn(grads.shape[1], generator=generator, dtype=grads.dtype)
    sums[0] = sums[0] + limit * sigma * noise  # the noise of one worker
    return all_reduce(sums) / (rate * len(grads))

# %% solution-5: correct
def private_step(grads, world, number, rate, limit, sigma, all_reduce):
    generator = torch.Generator().manual_seed(number)
    drawn = grads[torch.rand(len(grads), generator=generator) < rate]
    scaled = [g * min(1.0, limit / g.norm().item()) for g in drawn]
    sums = [sum(scaled[rank::world], torch.zeros_like(grads[0])) for rank in range(world)]
    noise = torch.randn(len(grads[0]), generator=generator, dtype=grads.dtype)
    return (all_reduce(sums) + sigma * limit * noise) / len(grads) / rate

# %% solution-5: right shape, wrong values: 90 samples, 2 workers
# each worker adds the noise
# - for rank in range(world)]
# + + noise for rank in range(world)]
# - (all_reduce(sums) + noise.to(grads.device))
# + all_reduce(sums)

# %% solution-5: right shape, wrong values: 90 samples, 1 workers
# - (rate * n)
# + len(drawn)  # of this draw

# %% solution-5: right shape, wrong values: 90 samples, 1 workers
# the average of each worker is clipped
# - sums = [(grads * factors)[drawn[rank::world]].sum(dim=0) for rank in range(world)]
# + means = [grads[drawn[rank::world]].mean(dim=0) for rank in range(world)]
# +     sums = [m * (limit / m.norm()).clamp(max=1) * len(drawn) / world for m in means]

# %% solution-5: right shape, wrong values: 90 samples, 2 workers
# a draw of its own for each worker, all with one seed
# - sums = [(grads * factors)[drawn[rank::world]]
# + sums = [(grads * factors)[rank::world][drawn[drawn < len(range(rank, n, world))]]

# %% solution-5: not so yet: one reduction, of a share of each
# one worker does it all
# - for rank in range(world)]
# + for rank in range(1)]
# - drawn[rank::world]
# + drawn

# %% solution-5: not so yet: one reduction, of a share of each
# each worker does it all
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
def reweighted(step, start, order, measure, weights, amount):
    slopes = metagradient(step, start, weights, order, lambda state: measure(state)[None])[1][0]
    moved = weights - amount * slopes / slopes.abs().mean()
    return torch.where(moved > 0, moved, 0.0)

# %% solution-6: right shape, wrong values: least squares
# towards a higher loss
# - weights - amount
# + weights + amount

# %% solution-6: right shape, wrong values: least squares
# weights below 0
# - .clamp(min=0)
# +

# %% solution-6: right shape, wrong values: least squares
# - slopes.abs().mean()
# + slopes.abs().max()

# %% solution-6: right shape, wrong values: least squares
def reweighted(step, start, order, measure, weights, amount):  # the last step alone
    for picked in order[:-1]:
        start = step(start, weights, picked)
    _, slopes = metagradient(step, start, weights, order[-1:], measure)
    return (weights - amount * slopes / slopes.abs().mean()).clamp(min=0)

# %% solution-6: right shape, wrong values: least squares
# as if all weights were 1
# - start, weights, order
# + start, torch.ones_like(weights), order
