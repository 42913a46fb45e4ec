# %% solution-1: correct
def numbers_needed(error, cosine):
    import numpy

    return numpy.int64(numpy.ceil((1 + cosine**2) / error**2))

# %% solution-1: correct
def numbers_needed(error, cosine):
    k = 1
    while ((1 + cosine**2) / k) ** 0.5 > error:
        k += 1
    return k

# %% solution-1: right shape, wrong values: k[(0.03, 0)]
def numbers_needed(error, cosine):
    return int((1 + cosine**2) / error**2)  # rounded down

# %% solution-1: right shape, wrong values: k[(0.03, 1)]
def numbers_needed(error, cosine):
    return int(-(-1 // error**2))  # forgets the cosine

# %% solution-1: right shape, wrong values: k[(0.07, 0.6)]
def numbers_needed(error, cosine):
    return -int(-(1 + abs(cosine)) // error**2)  # not its square

# %% solution-1: right shape, wrong values: k[(0.5, 0)]
def numbers_needed(error, cosine):
    return int((1 + cosine**2) / error**2) + 1

# %% solution-1: wrong dtype
def numbers_needed(error, cosine):
    return -(-(1 + cosine**2) / error**2 // 1)

# %% solution-2: correct
def leverages(matrix, g, one_minus_p):
    half = torch.linalg.solve_triangular(torch.linalg.cholesky(matrix), g.T, upper=False)
    return (one_minus_p - one_minus_p.square()) * half.square().sum(dim=0)

# %% solution-2: correct
def leverages(matrix, g, one_minus_p):
    rows = g * (one_minus_p * (1 - one_minus_p)).sqrt()[:, None]  # those of the hat matrix
    return (rows @ torch.linalg.inv(matrix) @ rows.T).diagonal()

# %% solution-2: right shape, wrong values: two parameters
# - one_minus_p * (1 - one_minus_p)
# + one_minus_p

# %% solution-2: wrong shape
# - (g * torch.linalg.solve(matrix, g.T).T).sum(dim=1)
# + (g @ torch.linalg.solve(matrix, g.T))

# %% solution-2: not so yet: it changed cases[0][0][1]
# - (g * torch.linalg.solve(matrix, g.T).T).sum(dim=1)
# + g.mul_(torch.linalg.solve(matrix, g.T).T).sum(dim=1)
