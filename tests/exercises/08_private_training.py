# Answers, right and wrong, and their verdicts: see tests/support/answers.py. Each wrong one breaks
# one demand of its task.

# %% solution-1: correct
def private_average(numbers, limit, noise_multiplier, expected, generator):
    clipped = torch.minimum(torch.maximum(numbers, torch.tensor(-limit)), torch.tensor(limit))
    noise = torch.normal(0.0, noise_multiplier * limit, (1,), generator=generator)
    return (clipped.sum() + noise.squeeze()) / expected

# %% solution-1: correct
def private_average(numbers, limit, noise_multiplier, expected, generator):
    factors = (limit / numbers.abs()).clamp(max=1)
    mean = (factors * numbers).sum() / expected
    return mean + torch.randn((), generator=generator) * (noise_multiplier * limit / expected)

# %% solution-1: right shape, wrong values: without noise
# -     total = numbers.clamp(-limit, limit).sum()
# +     # clips the sum
# +     total = numbers.sum().clamp(-limit, limit)

# %% solution-1: right shape, wrong values: without noise
# -     total = numbers.clamp(-limit, limit).sum()
# +     # clips one side
# +     total = numbers.clamp(max=limit).sum()

# %% solution-1: right shape, wrong values: without noise
def private_average(numbers, limit, noise_multiplier, expected, generator):
    # divides by the batch that was drawn
    total = numbers.clamp(-limit, limit).sum()
    noise = noise_multiplier * limit * torch.randn((), generator=generator)
    return (total + noise) / max(len(numbers), 1)

# %% solution-1: wrong shape: without noise: expected (), got (1,)
# -     return (total + noise_multiplier * limit * torch.randn((), generator=generator)) / expected
# +     return (total + noise_multiplier * limit * torch.randn(1, generator=generator)) / expected

# %% solution-1: not so yet: the noise has the deviation 1
def private_average(numbers, limit, noise_multiplier, expected, generator):
    # forgets the limit
    total = numbers.clamp(-limit, limit).sum()
    return (total + noise_multiplier * torch.randn((), generator=generator)) / expected

# %% solution-1: not so yet: the noise has the deviation 1
def private_average(numbers, limit, noise_multiplier, expected, generator):
    # noise for each number
    noise = noise_multiplier * limit * torch.randn(numbers.shape, generator=generator)
    return (numbers.clamp(-limit, limit) + noise).sum() / expected

# %% solution-1: not so yet: the noise has the deviation 1
def private_average(numbers, limit, noise_multiplier, expected, generator):
    # noise that is not divided
    total = numbers.clamp(-limit, limit).sum()
    return total / expected + noise_multiplier * limit * torch.randn((), generator=generator)

# %% solution-1: not so yet: its mean is zero
def private_average(numbers, limit, noise_multiplier, expected, generator):
    # an exponential has the same deviation
    total = numbers.clamp(-limit, limit).sum()
    noise = torch.empty(()).exponential_(generator=generator)
    return (total + noise_multiplier * limit * noise) / expected

# %% solution-1: not so yet: the generator decides
# -     return (total + noise_multiplier * limit * torch.randn((), generator=generator)) / expected
# +     return (total + noise_multiplier * limit * torch.randn(())) / expected

# %% solution-1: not so yet: an empty batch gives the noise
def private_average(numbers, limit, noise_multiplier, expected, generator):
    if len(numbers) == 0:
        return torch.tensor(0.0)
    total = numbers.clamp(-limit, limit).sum()
    return (total + noise_multiplier * limit * torch.randn((), generator=generator)) / expected

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
def clip_by_person(grads, owners, limit):
    belongs = (owners.unique()[:, None] == owners).to(next(iter(grads.values())).dtype)
    sums = {n: torch.einsum("pb,b...->p...", belongs, g) for n, g in grads.items()}
    flat = torch.cat([s.flatten(1) for s in sums.values()], dim=1)
    factors = limit / flat.norm(dim=1).clamp(min=limit)
    return {n: torch.einsum("p,p...->...", factors, s) for n, s in sums.items()}

# %% solution-2: right shape, wrong values: all clipped
def clip_by_person(grads, owners, limit):
    # clips each sample
    norm = sum(g.flatten(1).square().sum(dim=1) for g in grads.values()).sqrt()
    factors = (limit / norm).clamp(max=1)
    return {name: torch.einsum("b,b...->...", factors, g) for name, g in grads.items()}

# %% solution-2: right shape, wrong values: all clipped
def clip_by_person(grads, owners, limit):
    # clips the sum of all
    sums = {name: g.sum(dim=0) for name, g in grads.items()}
    norm = sum(s.square().sum() for s in sums.values()).sqrt()
    return {name: s * (limit / norm).clamp(max=1) for name, s in sums.items()}

# %% solution-2: right shape, wrong values: all clipped
def clip_by_person(grads, owners, limit):
    # each parameter by itself
    persons, index = owners.unique(return_inverse=True)
    result = {}
    for name, g in grads.items():
        sums = g.new_zeros(len(persons), *g.shape[1:]).index_add(0, index, g)
        factors = (limit / sums.flatten(1).norm(dim=1)).clamp(max=1)
        result[name] = torch.einsum("b,b...->...", factors, sums)
    return result

# %% solution-2: right shape, wrong values: nobody clipped['weight']: holds NaN or infinity
# -     factors = (limit / norm).clamp(max=1)
# -     return {name: torch.einsum("b,b...->...", factors, s) for name, s in sums.items()}
# +     directions = {n: torch.einsum("b,b...->b...", 1 / norm, s) for n, s in sums.items()}
# +     kept = norm.clamp(max=limit)
# +     return {n: torch.einsum("b,b...->...", kept, d) for n, d in directions.items()}

# %% solution-2: right shape, wrong values: nobody clipped
def clip_by_person(grads, owners, limit):
    # the mean of a person's gradients
    persons, index, counts = owners.unique(return_inverse=True, return_counts=True)
    means = {
        name: g.new_zeros(len(persons), *g.shape[1:]).index_add(
            0, index, g / counts[index].view(-1, *[1] * (g.dim() - 1))
        )
        for name, g in grads.items()
    }
    norm = sum(s.flatten(1).square().sum(dim=1) for s in means.values()).sqrt()
    factors = (limit / norm).clamp(max=1)
    return {name: torch.einsum("b,b...->...", factors, s) for name, s in means.items()}

# %% solution-2: right shape, wrong values: nobody clipped
# - def clip_by_person(grads, owners, limit):
# + def clip_by_person(grads, owners, limit):
# +     # stretches what is shorter than the limit
# -     factors = (limit / norm).clamp(max=1)
# +     factors = limit / norm.clamp(min=1e-9)

# %% solution-3: correct
def steps_within(budget, noise_multiplier, rate, delta):
    answer, bit = 0, 2**20
    while bit:
        more = answer + bit
        if privacy.epsilon(noise_multiplier, rate, more, delta) <= budget:
            answer = more
        bit //= 2
    return answer

# %% solution-3: correct
def steps_within(budget, noise_multiplier, rate, delta):
    from bisect import bisect_right

    class Spent:
        def __len__(self):
            return 10**7

        def __getitem__(self, index):
            return privacy.epsilon(noise_multiplier, rate, index + 1, delta)

    return bisect_right(Spent(), budget)

# %% solution-3: not so yet: at most 60 questions
def steps_within(budget, noise_multiplier, rate, delta):
    steps = 0
    while privacy.epsilon(noise_multiplier, rate, steps + 1, delta) <= budget:
        steps += 1
    return steps

# %% solution-3: not so yet: one step more is not
def steps_within(budget, noise_multiplier, rate, delta):
    steps = 1
    while privacy.epsilon(noise_multiplier, rate, 2 * steps, delta) <= budget:
        steps *= 2
    return steps

# %% solution-3: not so yet: budget 1: it is within
# - return low
# + return high

# %% solution-3: not so yet: it is an int
# - return low
# + return float(low)

# %% solution-3: not so yet: no step fits: 0
# -     low, high = 0, 1
# -     while privacy.epsilon(noise_multiplier, rate, high, delta) <= budget:
# -         low, high = high, 2 * high
# +     low, high = 1, 2**20

# %% solution-4: correct
def audited(release, P, generator):
    coins = torch.randint(2, (P,), generator=generator).bool()
    rows = torch.zeros(int(coins.sum()), P)
    rows[torch.arange(len(rows)), coins.nonzero().squeeze(1)] = 50.0
    scores = release(rows)
    top, bottom = scores.topk(400).indices, (-scores).topk(400).indices
    right = coins[top].sum().item() + (~coins[bottom]).sum().item()
    return float(lower_bound(P, 800, right, delta))

# %% solution-4: correct
def audited(release, P, generator):
    inside = torch.rand(P, generator=generator) < 0.5
    order = torch.argsort(release(1000.0 * torch.eye(P)[inside]), descending=True)
    guessed_in = torch.zeros(P, dtype=torch.bool)
    guessed_in[order[: P // 2]] = True
    right = int((guessed_in == inside).sum())
    return lower_bound(P, P, right, delta)

# %% solution-4: not so yet: right: below 1
def audited(release, P, generator):
    # without a coin: all are in, and all guesses are "in"
    scores = release(100.0 * torch.eye(P))
    k = P // 3
    right = len(scores.argsort()[-2 * k :])
    return lower_bound(P, 2 * k, right, delta)

# %% solution-4: not so yet: one call
# -     scores = release(100.0 * torch.eye(P)[inside])
# +     scores = sum(release(100.0 * torch.eye(P)[inside]) for _ in range(2))

# %% solution-4: not so yet: it is a float
# -     return lower_bound(P, 2 * k, right, delta)
# +     return torch.tensor(lower_bound(P, 2 * k, right, delta))

# %% solution-4: not so yet: no more than 1,000 right guesses prove
# - def audited(release, P, generator):
# + def audited(release, P, generator):
# +     # an estimate, and no bound
# -     return lower_bound(P, 2 * k, right, delta)
# +     return max(0.0, math.log((right + 1e-9) / (2 * k - right + 1e-9)))

# %% solution-4: not so yet: bounds are not negative
# guesses the wrong way round
# - (~inside[order[:k]]).sum() + inside[order[-k:]].sum()
# + inside[order[:k]].sum() + (~inside[order[-k:]]).sum()
# - lower_bound(P, 2 * k, right, delta)
# + math.log(right / (2 * k - right))

# %% solution-4: not so yet: noise made for the mean: above 1
# too few guesses to prove anything
# - P // 3
# + 2

# %% solution-4: not so yet: the mean clipped: above 1
# - def audited(release, P, generator):
# + def audited(release, P, generator):
# +     # canaries that no limit of a mean reaches
# -     scores = release(100.0 * torch.eye(P)[inside])
# +     scores = release(1.0 * torch.eye(P)[inside])
