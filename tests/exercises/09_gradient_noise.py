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

# %% solution-1: not so yet: share 0.1: it is enough
def smallest_batch(noise, signal, share):
    return math.ceil(noise / signal)

# %% solution-2: correct
def scale_by_name(grads):
    result = {}
    for name, gradient in grads.items():
        size, gradient = len(gradient), gradient.reshape(len(gradient), -1)
        mean = gradient.mean(0)
        trace = (gradient - mean).square().sum() / (size - 1)
        signal = mean @ mean - trace / size
        result[name] = trace / signal if signal > 0 else torch.full_like(trace, float("inf"))
    return result

# %% solution-2: correct
def scale_by_name(grads):
    def scale(gradient):
        size = len(gradient)
        squares = gradient.square().sum() / size
        batch = gradient.mean(dim=0).square().sum()
        noise = (squares - batch) * size / (size - 1)
        signal = (size * batch - squares) / (size - 1)
        return torch.where(signal > 0, noise / signal, torch.inf)

    return {name: scale(gradient) for name, gradient in grads.items()}

# %% solution-2: right shape, wrong values: 1.weight
# -  - noise_of / len(gradient)
# +

# %% solution-2: right shape, wrong values: 1.weight
# the divisor B
# - .var(dim=0).sum()
# + .var(dim=0, correction=0).sum()

# %% solution-2: not so yet: opposite: infinite without a signal
# - torch.where(signal > 0, noise_of / signal, torch.inf)
# + noise_of / signal

# %% solution-2: not so yet: it has the names of grads
def scale_by_name(grads):
    return {}

# %% solution-2: wrong shape: 1.weight
# - .var(dim=0).sum()
# + .var(dim=0)
# - .square().sum()
# + .square()

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

# %% solution-3: right shape, wrong values: in conflict
def without_conflict(own, other):
    product = own @ other
    return own if product >= 0 else own - product / other.norm() * other

# %% solution-3: right shape, wrong values: the other is 0
# -     return own if product >= 0 else own - product / other.norm() * other
# +     return own if product > 0 else own - product / (other @ other) * other

# %% solution-3: not so yet: it changed cases
# -     return own if product >= 0 else own - product / other.norm() * other
# +     if product < 0:
# +         own -= product / (other @ other) * other
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
# steps of its own
# - range(steps)
# + range(100)

# %% solution-4: not so yet: 41 products or fewer
# - image = added(product
# + [product(right) for _ in range(20)]
# +         image = added(product

# %% solution-4: not so yet: it has the names of right
def solve(product, right, damping, steps):
    return {}

# %% solution-5: correct
def scales_from_log(small_squares, small, big_squares, big, decay):
    noise, signal = two_batch(small_squares, small, big_squares, big)
    scales = torch.empty_like(noise)
    for step in range(len(noise)):
        weights = torch.tensor([float(decay) ** (step - s) for s in range(step + 1)])
        weights = weights.to(noise)
        scales[step] = (weights @ noise[: step + 1]) / (weights @ signal[: step + 1])
    return scales

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
# a mean of ratios
# - noise_sum + own_noise
# + noise_sum + own_noise / own_signal
# - signal_sum + own_signal
# + signal_sum + 1

# %% solution-5: right shape, wrong values: decay 0.9
def scales_from_log(small_squares, small, big_squares, big, decay):
    noises, signals = two_batch(small_squares, small, big_squares, big)
    return noises.cumsum(0) / signals.cumsum(0)

# %% solution-5: right shape, wrong values: decay 0.9
# - noise_sum = signal_sum = 0
# + noise_sum, signal_sum = noises[0], signals[0]  # which count twice

# %% solution-5: wrong shape: decay 0.9
# -     return noises.cumsum(0) / signals.cumsum(0)
# +     return noises.mean() / signals.mean()

# %% solution-5: right shape, wrong values: decay 0.5
# -     scales = []
# +     decay, scales = 0.9, []
