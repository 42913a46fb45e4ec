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
    total = torch.zeros_like(grads[0])
    for person in owners.unique().tolist():
        own = grads[owners == person].sum(dim=0)
        norm = own.norm().item()
        total += own if norm <= limit else own * (limit / norm)
    return total

# %% solution-2: correct
# - zeros.index_add(0, index, grads)
# + torch.stack([grads[owners == person].sum(dim=0) for person in people])

# %% solution-2: right shape, wrong values: all clipped
# - people, index = owners.unique(return_inverse=True)
# + people = index = torch.arange(len(owners)).to(owners)  # clips each sample

# %% solution-2: right shape, wrong values: nobody clipped
# scaled up as well
# - (limit / norms).clamp(max=1)
# + limit / norms.clamp(min=1e-12)

# %% solution-2: right shape, wrong values: nobody clipped: holds NaN or infinity
# - (limit / norms).clamp(max=1)
# + (norms.clamp(max=limit) / norms)

# %% solution-2: wrong shape
# the sums of people are returned
# - .sum(dim=0)
# + [:]
