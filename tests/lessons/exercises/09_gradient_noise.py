# %% solution-1: correct
def smallest_batch(noise, signal, share):
    return int(-(-noise * (1 - share) // (signal * share)))

# %% solution-1: correct
def smallest_batch(noise, signal, share):
    batch = 1
    while noise / (signal * batch + noise) > share:
        batch += 1
    return batch

# %% solution-1: not so yet: (1.58, 0.023, 0.5): it is enough
def smallest_batch(noise, signal, share):
    return math.floor(noise / signal * (1 - share) / share)

# %% solution-1: not so yet: (1.58, 0.023, 0.5): one less is not
def smallest_batch(noise, signal, share):
    return math.ceil(noise / signal / share)

# %% solution-1: not so yet: (0.9, 0.37, 0.4): one less is not
def smallest_batch(noise, signal, share):
    return max(64, math.ceil(noise / signal * (1 - share) / share))

# %% solution-1: not so yet: it is an int
def smallest_batch(noise, signal, share):
    return noise / signal * (1 - share) / share

# %% solution-2: correct
# - in grads.items()
# + in reversed(grads.items())

# %% solution-2: correct
# - own_noise, signal = estimate(gradient.flatten(1))
# + flat = gradient.flatten(1)
# +         own_noise = torch.atleast_2d(flat.T.cov()).trace()
# +         signal = flat.mean(dim=0).square().sum() - own_noise / len(flat)

# %% solution-2: right shape, wrong values: 1.weight
# - own_noise / signal
# + own_noise / gradient.mean(dim=0).square().sum()

# %% solution-2: not so yet: opposite: infinite without a signal
# - torch.where(signal > 0, own_noise / signal, torch.inf)
# + own_noise / signal

# %% solution-2: not so yet: a scale for each name
# - return scales
# + return dict(list(scales.items())[:1])

# %% solution-3: correct
def scales_from_log(small_squares, small, big_squares, big, decay):
    noise, signal = two_batch(small_squares, small, big_squares, big)
    age = torch.arange(len(noise))[:, None] - torch.arange(len(noise))
    weights = torch.where(age >= 0, float(decay) ** age.clamp(min=0), 0).to(noise)
    return (weights @ noise) / (weights @ signal)

# %% solution-3: correct
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

# %% solution-3: right shape, wrong values: decay 0.9
# - noise_sum + own_noise
# + noise_sum + own_noise / own_signal
# - signal_sum + own_signal
# + signal_sum + 1

# %% solution-3: right shape, wrong values: decay 0.0
# - scales = []
# + decay, scales = 0.9, []
