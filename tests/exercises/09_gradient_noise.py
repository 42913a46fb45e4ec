# Answers and their verdicts, as tests/support/answers.py reads them. A wrong one breaks one demand.

# %% solution-1: correct
def smallest_batch(noise, signal, share):
    return int(-(-noise * (1 - share) // (signal * share)))

# %% solution-1: correct
def smallest_batch(noise, signal, share):
    batch = 1
    while noise / (signal * batch + noise) > share:
        batch += 1
    return batch

# %% solution-1: not so yet: share 0.5: it is enough
def smallest_batch(noise, signal, share):
    return math.floor(noise / signal * (1 - share) / share)

# %% solution-1: not so yet: share 0.5: one less is not
def smallest_batch(noise, signal, share):
    return math.ceil(noise / signal / share)

# %% solution-1: not so yet: it is an int
def smallest_batch(noise, signal, share):
    return noise / signal * (1 - share) / share

# %% solution-2: correct
def scale_by_name(grads):
    result = {}
    for name, gradient in grads.items():
        size, mean = len(gradient), gradient.mean(dim=0)
        trace = (gradient - mean).square().sum() / (size - 1)
        signal = mean.square().sum() - trace / size
        result[name] = trace / signal if signal > 0 else torch.full_like(trace, torch.inf)
    return result

# %% solution-2: correct
# - flat_gradient.var(dim=0).sum()
# + torch.atleast_2d(flat_gradient.T.cov()).trace()

# %% solution-2: right shape, wrong values: 1.weight
# -  - noise_of / len(gradient)
# +

# %% solution-2: not so yet: opposite: infinite without a signal
# - torch.where(signal > 0, noise_of / signal, torch.inf)
# + noise_of / signal

# %% solution-3: correct
def without_conflict(own, other):
    product = (own * other).sum()
    return own - product / other.square().sum() * other if product < 0 else own

# %% solution-3: correct
def without_conflict(own, other):
    direction = F.normalize(other, dim=0)
    return own - (own @ direction).clamp(max=0) * direction

# %% solution-3: right shape, wrong values: no conflict
def without_conflict(own, other):
    return own - own @ other / (other @ other) * other

# %% solution-3: right shape, wrong values: the other is 0
# - product >= 0
# + product > 0

# %% solution-3: not so yet: it changed cases
# - return own - product / (other @ other) * other
# + own -= product / (other @ other) * other
# +     return own

# %% solution-4: correct
def solve(product, right, damping, steps):
    def apart(v):
        parts = v.split([t.numel() for t in right.values()])
        return {n: part.view_as(right[n]) for n, part in zip(right, parts)}

    r = d = flatten(right)
    x = torch.zeros_like(r)
    for _ in range(steps if r.any() else 0):
        image = flatten(product(apart(d))) + damping * d
        length = (r @ r) / (d @ image)
        x = x + length * d
        new = r - length * image
        if new.norm() <= 1e-7 * flatten(right).norm():
            break
        d = new + (new @ new) / (r @ r) * d
        r = new
    return apart(x)

# %% solution-4: correct
# - square <= 1e-30 * first
# + square <= 1e-14 * first

# %% solution-4: right shape, wrong values: 40 steps
# - added(product(direction), direction, damping)
# + product(direction)

# %% solution-4: right shape, wrong values: 2 steps
# - range(steps)
# + range(100)

# %% solution-4: not so yet: 41 products or fewer
# - image = added(product
# + [product(right) for _ in range(20)]
# +         image = added(product

# %% solution-5: correct
def scales_from_log(small_squares, small, big_squares, big, decay):
    noise, signal = two_batch(small_squares, small, big_squares, big)
    age = torch.arange(len(noise))[:, None] - torch.arange(len(noise))
    weights = torch.where(age >= 0, float(decay) ** age.clamp(min=0), 0).to(noise)
    return (weights @ noise) / (weights @ signal)

# %% solution-5: correct
def scales_from_log(small_squares, small, big_squares, big, decay):
    small_average = big_average = weight = 0
    scales = []
    for small_square, big_square in zip(small_squares, big_squares):
        small_average = decay * small_average + small_square
        big_average = decay * big_average + big_square
        weight = decay * weight + 1
        noise, signal = two_batch(small_average / weight, small, big_average / weight, big)
        scales.append(noise / signal)
    return torch.stack(scales)

# %% solution-5: right shape, wrong values: decay 0.9
# - noise_sum + own_noise
# + noise_sum + own_noise / own_signal
# - signal_sum + own_signal
# + signal_sum + 1

# %% solution-5: right shape, wrong values: decay 0.5
# -     scales = []
# +     decay, scales = 0.9, []
