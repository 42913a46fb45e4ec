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
def leverages(matrix, g, q):
    half = torch.linalg.solve_triangular(torch.linalg.cholesky(matrix), g.T, upper=False)
    return (q - q.square()) * half.square().sum(dim=0)

# %% solution-2: correct
def leverages(matrix, g, q):
    rows = g * (q * (1 - q)).sqrt()[:, None]  # those of the hat matrix
    return (rows @ torch.linalg.inv(matrix) @ rows.T).diagonal()

# %% solution-2: right shape, wrong values: two parameters
# - q * (1 - q) * (
# + q * (

# %% solution-2: wrong shape
# - (g * torch.linalg.solve(matrix, g.T).T).sum(dim=1)
# + (g @ torch.linalg.solve(matrix, g.T))

# %% solution-2: not so yet: it changed cases[0][0][1]
# - (g * torch.linalg.solve(matrix, g.T).T).sum(dim=1)
# + g.mul_(torch.linalg.solve(matrix, g.T).T).sum(dim=1)

# %% solution-3: correct
def cosine_scores(computer, train, test):
    wanted = computer.compute(test)
    rows = []
    for batch in zip(*(tensor.split(50) for tensor in train), strict=True):
        own = computer.compute(batch)
        rows.append(own @ wanted.T / own.norm(dim=1)[:, None] / wanted.norm(dim=1))
    return torch.cat(rows)

# %% solution-3: correct
def cosine_scores(computer, train, test):
    wanted = computer.compute(test)[None]
    batches = zip(*(tensor.split(5) for tensor in train), strict=True)
    each = (F.cosine_similarity(computer.compute(b)[:, None], wanted, dim=2) for b in batches)
    return torch.cat(list(each))

# %% solution-3: wrong shape
# - F.normalize(computer.compute(b), dim=1) @ wanted.T for
# + wanted @ F.normalize(computer.compute(b), dim=1).T for

# %% solution-3: right shape, wrong values: digits
# no norms
# - [F.normalize(computer.compute(b), dim=1) @
# + [computer.compute(b) @

# %% solution-3: right shape, wrong values: digits
# projected
# - wanted = F
# + computer = GradientComputer(computer.model, computer.output, k=512)
# +     wanted = F

# %% solution-3: your answer raised TypeError
# texts have three tensors
# - computer.compute(test)
# + computer.compute(test[:2])

# %% solution-3: not so yet: the peak is below 500 rows
# - split(100)
# + split(333)

# %% solution-4: correct
def find_mislabeled(computer, images, labels, count):
    losses = F.cross_entropy(computer.model(images), labels, reduction="none")
    return losses.argsort(descending=True)[:count]

# %% solution-4: correct
def find_mislabeled(computer, images, labels, count):
    pull = torch.sigmoid(-computer.outputs((images, labels)))
    return (computer.compute((images, labels)).norm(dim=1) * pull).topk(count).indices

# %% solution-4: not so yet: 8 of 10 are found
# - largest=False
# + largest=True

# %% solution-4: not so yet: each sample is named once
# - .indices
# + .indices[[*range(count - 1), 0]]  # the first again for the last

# %% solution-4: wrong shape
# - .topk(count,
# + .topk(50,

# %% solution-4: not so yet: it changed cases[0][0][2]
# - return computer
# + labels[0] = (labels[0] + 1) % 10
# +     return computer
