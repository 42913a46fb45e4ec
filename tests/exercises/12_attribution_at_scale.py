# %% solution-1: correct
def project_layer(x, d, A, C):
    return torch.einsum("bto,mo,bti,ni->bmn", d, A, x, C)

# %% solution-1: correct
def project_layer(x, d, A, C):
    total = 0
    for t in range(x.shape[1]):
        total = total + (d[:, t] @ A.T)[:, :, None] * (x[:, t] @ C.T)[:, None]
    return total

# %% solution-1: right shape, wrong values: 5 texts of 7 words
def project_layer(x, d, A, C):  # a product of sums
    return (d.sum(dim=1) @ A.T)[:, :, None] * (x.sum(dim=1) @ C.T)[:, None]

# %% solution-2: correct
def step_effects(computer, batch, test, rate):
    own, others = (computer.compute_per_sample_grad(each) for each in (batch, test))
    products = sum(own[name].flatten(1) @ others[name].flatten(1).T for name in own)
    return rate * products * computer.compute_loss_grad(batch)

# %% solution-2: correct
# - rate * computer.compute_loss_grad(batch) * own @ others.T
# + torch.einsum("np,tp->nt", own * computer.compute_loss_grad(batch) * rate, others)

# %% solution-2: right shape, wrong values: 60 samples
# - rate * computer.compute_loss_grad(batch) * own @ others.T
# + rate * own @ (computer.compute_loss_grad(test) * others).T

# %% solution-2: right shape, wrong values: 60 samples
# - computer.compute_loss_grad(batch) * own
# + computer.compute_loss_grad(batch) * own / len(own)

# %% solution-3: correct
def ekfac_solve(a, d, ridge, grads):
    U_A = torch.linalg.eigh(a.T @ a).eigenvectors
    U_G = torch.linalg.eigh(sum(each.T @ each for each in d)).eigenvectors
    eigenvalues = sum((each @ U_G).square().T @ (a @ U_A).square() for each in d)
    turned = torch.stack([U_G.T @ g @ U_A / (eigenvalues + ridge) for g in grads])
    return torch.stack([U_G @ g @ U_A.T for g in turned])

# %% solution-3: correct
def ekfac_solve(a, d, ridge, grads):  # by the basis of the block
    U_A = torch.linalg.eigh(a.T @ a)[1]
    U_G = torch.linalg.eigh(torch.einsum("yno,ynp->op", d, d))[1]
    eigenvalues = torch.einsum("yno,ni->oi", (d @ U_G) ** 2, (a @ U_A) ** 2).flatten()
    basis = torch.kron(U_G.contiguous(), U_A.contiguous())
    return (grads.flatten(1) @ basis / (eigenvalues + ridge) @ basis.T).view_as(grads)

# %% solution-3: right shape, wrong values: 40 samples
# K-FAC: products of the two matrices' eigenvalues
# - eigenvalues = (d @ U_G).square().sum(dim=0).T @ (a @ U_A).square()
# + eigenvalues = (d @ U_G).square().sum(dim=(0, 1))[:, None] * (a @ U_A).square().sum(dim=0)

# %% solution-3: right shape, wrong values: 40 samples
# - (eigenvalues + ridge)
# + eigenvalues

# %% solution-4: correct
def reweighted(validation_loss, weights, amount):
    at = weights.detach().clone().requires_grad_()
    (slopes,) = torch.autograd.grad(validation_loss(at), at)
    return torch.relu(weights - amount * len(slopes) * F.normalize(slopes, p=1, dim=0))

# %% solution-4: correct
def reweighted(validation_loss, weights, amount):
    slopes = torch.func.jacrev(validation_loss)(weights)
    return (weights - amount * slopes / slopes.abs().mean()).clip(0)

# %% solution-4: right shape, wrong values: least squares
# - .clamp(min=0)
# +

# %% solution-4: right shape, wrong values: least squares
# - grad(validation_loss)(weights)
# + grad(validation_loss)(torch.ones_like(weights))
