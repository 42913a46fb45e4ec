# %% solution-1: correct
def private_average(numbers, limit, noise_multiplier, expected, generator):
    clipped = torch.minimum(torch.maximum(numbers, torch.tensor(-limit)), torch.tensor(limit))
    noise = torch.normal(0.0, noise_multiplier * limit, (1,), generator=generator)
    return (clipped.sum() + noise.squeeze()) / expected

# %% solution-1: correct
def private_average(numbers, limit, noise_multiplier, expected, generator):
    factors = (limit / (numbers.abs() + 1e-6)).clamp(max=1)  # as Opacus does
    mean = (factors * numbers).sum() / expected
    return mean + torch.randn((), generator=generator) * (noise_multiplier * limit / expected)

# %% solution-1: right shape, wrong values: 5 numbers
# - / expected
# + / max(len(numbers), 1)  # the batch that was drawn

# %% solution-1: not so yet: the noise has its deviation
# - noise_multiplier * limit
# + noise_multiplier

# %% solution-1: not so yet: its distribution is Gaussian
# - torch.randn((), generator=generator)
# + (2 * torch.rand((), generator=generator) - 1) * 3**0.5

# %% solution-1: not so yet: the generator decides
# -     return (total + noise_multiplier * limit * torch.randn((), generator=generator)) / expected
# +     return (total + noise_multiplier * limit * torch.randn(())) / expected

# %% solution-2: correct
def clip_by_person(grads, owners, limit):
    totals = {name: torch.zeros_like(g[0]) for name, g in grads.items()}
    for person in owners.unique().tolist():
        own = {name: g[owners == person].sum(dim=0) for name, g in grads.items()}
        norm = torch.cat([t.flatten() for t in own.values()]).norm().item()
        for name, t in own.items():
            totals[name] += t if norm <= limit else t * (limit / norm)
    return totals

# %% solution-2: correct
# - g.new_zeros(len(people), *g.shape[1:]).index_add(0, index, g)
# + torch.stack([g[owners == person].sum(dim=0) for person in people])

# %% solution-2: right shape, wrong values: all clipped
# - people, index = owners.unique(return_inverse=True)
# + people = index = torch.arange(len(owners)).to(owners)  # clips each sample

# %% solution-2: right shape, wrong values: all clipped
# - factors, s)
# + (limit / s.flatten(1).norm(dim=1)).clamp(max=1), s)

# %% solution-2: right shape, wrong values: nobody clipped['weight']: holds NaN or infinity
# - (limit / norms).clamp(max=1)
# + norms.clamp(max=limit) / norms

# %% solution-3: correct
def read_images(weight_grad, bias_grad):
    on = bias_grad != 0
    ratios = weight_grad[on] / bias_grad[on, None]
    rounded = (1e6 * ratios).round()
    _, group, counts = rounded.unique(dim=0, return_inverse=True, return_counts=True)
    twice = (counts > 1).nonzero()
    return ratios[(group == twice).int().argmax(dim=1)]

# %% solution-3: correct
def read_images(weight_grad, bias_grad):
    ratios = weight_grad / bias_grad[:, None]  # NaN is near nothing
    near = torch.stack([(ratios - ratio).abs().amax(dim=1) < 1e-9 for ratio in ratios])
    first = near.int().argmax(dim=1)
    return ratios[first[near.sum(dim=1) > 1].unique()].flip(0)

# %% solution-3: wrong shape: read off 4 images: expected (4, 784)
# - is_first & (equal.sum(dim=1) > 1)
# + is_first

# %% solution-3: wrong shape: read off 2 images: expected (2, 392), got (1, 392)
# - bias_grad != 0
# + bias_grad > 0

# %% solution-4: correct
def audited(release, P, generator):
    coins = torch.randint(2, (P,), generator=generator).bool()
    rows = torch.zeros(int(coins.sum()), P)
    rows[torch.arange(len(rows)), coins.nonzero().squeeze(1)] = 50.0
    scores = release(rows)
    k = P * 2 // 5
    top, bottom = scores.topk(k).indices, (-scores).topk(k).indices
    right = coins[top].sum().item() + (~coins[bottom]).sum().item()
    return float(lower_bound(P, 2 * k, right, delta))

# %% solution-4: correct
# - 100.0 * torch.eye(P)[inside]
# + 1000.0 * torch.eye(P)[inside]
# - P // 3
# + P // 2

# %% solution-4: not so yet: tossed by the generator
# - torch.rand(P, generator=generator) < 0.5
# + torch.rand(P) < 0.5

# %% solution-4: not so yet: one call
# -     scores = release(100.0 * torch.eye(P)[inside])
# +     scores = sum(release(100.0 * torch.eye(P)[inside]) for _ in range(2))

# %% solution-4: not so yet: noise made for the mean: above 1
# - P // 3
# + 2
