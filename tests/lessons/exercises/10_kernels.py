# %% solution-1: correct
def loss_changes(model, inputs, labels, rate):
    rows = []
    for x, label in zip(inputs, labels, strict=True):
        loss = F.cross_entropy(model(x[None]), label[None])
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([slope.flatten() for slope in slopes]))
    return torch.stack([torch.stack([row @ (-rate * move) for move in rows]) for row in rows])

# %% solution-1: correct
def loss_changes(model, inputs, labels, rate):
    logits = model(inputs).detach()
    slopes = logits.softmax(dim=1) - F.one_hot(labels, logits.shape[1])
    return -rate * torch.einsum("ia,ijab,jb->ij", slopes, kernels.ntk(model, inputs), slopes)

# %% solution-1: right shape, wrong values: 64 samples
# - return F.cross_entropy(logits, label.unsqueeze(0))
# + return -logits.gather(1, label[None, None]).squeeze()

# %% solution-2: correct
def loo_errors(theta, residual, ridge):
    n, y = residual.shape
    matrix, eye = as_matrix(theta), torch.eye(n * y).to(theta)
    leverage = torch.linalg.solve(matrix + ridge * eye, matrix)
    blocks = [leverage[i * y : (i + 1) * y, i * y : (i + 1) * y] for i in range(n)]
    each = zip(blocks, residual, strict=True)
    return torch.stack([torch.linalg.inv(eye[:y, :y] - block) @ r for block, r in each])

# %% solution-2: correct
# - torch.linalg.solve(ridge * blocks, residual)
# + torch.einsum("iab,ib->ia", blocks.inverse(), residual) / ridge

# %% solution-2: right shape, wrong values
def loo_errors(theta, residual, ridge):
    n, y = residual.shape
    inverse = (as_matrix(theta) + ridge * torch.eye(n * y).to(theta)).inverse()
    return residual / (ridge * inverse.diagonal().view(n, y))

# %% solution-2: right shape, wrong values: errors, against 6 fits
# - as_matrix(theta)
# + as_matrix(theta.transpose(2, 3))
