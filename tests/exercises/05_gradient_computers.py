# Answers and their verdicts, as tests/support/answers.py reads them. A wrong one breaks one demand.

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
class Regression:
    def get_output(self, model, weights, buffers, image, target):
        return functional_call(model, {**weights, **buffers}, image[None])[0, 0]

    def get_out_to_loss_grad(self, model, weights, buffers, batch):
        with torch.no_grad():
            f = functional_call(model, {**weights, **buffers}, batch[0])
        return batch[1].unsqueeze(1) - f

# %% solution-2: correct
class Regression:
    def get_output(self, model, weights, buffers, image, target):
        return functional_call(model, (weights, buffers), (image.unsqueeze(0),)).sum()

    def get_out_to_loss_grad(self, model, weights, buffers, batch):
        f = functional_call(model, (weights, buffers), (batch[0],)).detach()
        slope = grad(lambda f: 0.5 * ((f - batch[1][:, None]) ** 2).sum())(f)
        return -slope

# %% solution-2: right shape, wrong values: linear: minus the derivative
# - (targets[:, None] - predictions).detach()
# + (predictions - targets[:, None]).detach()

# %% solution-2: not so yet: linear: it is detached
# - (targets[:, None] - predictions).detach()
# + targets[:, None] - predictions

# %% solution-2: wrong shape: linear: minus the derivative: expected
# - (targets[:, None] - predictions).detach()
# + (targets - predictions.squeeze(1)).detach()

# %% solution-2: wrong shape: linear: prediction: expected (), got (1, 1)
# - .squeeze()
# +

# %% solution-2: right shape, wrong values: linear: prediction
# - .squeeze()
# + .squeeze().sub(target).square().div(2)  # the loss, not the output

# %% solution-2: right shape, wrong values: linear: minus the derivative
# - predictions = functional_call(model, (weights, buffers), (images,))  # (B, 1)
# + predictions = model(images)  # with weights of its own

# %% solution-2: right shape, wrong values: with buffers: prediction
# - (weights, buffers), (image.unsqueeze(0),)
# + weights, (image.unsqueeze(0),)

# %% solution-3: correct
def leverages(matrix, g, q):
    half = torch.linalg.solve_triangular(torch.linalg.cholesky(matrix), g.T, upper=False)
    return (q - q.square()) * half.square().sum(dim=0)

# %% solution-3: correct
def leverages(matrix, g, q):
    rows = g * (q * (1 - q)).sqrt()[:, None]  # those of the hat matrix
    return (rows @ torch.linalg.inv(matrix) @ rows.T).diagonal()

# %% solution-3: right shape, wrong values: two parameters
# - q * (1 - q) * (
# + (

# %% solution-3: right shape, wrong values: two parameters
# - q * (1 - q) * (
# + q * (

# %% solution-3: wrong shape
# - (g * torch.linalg.solve(matrix, g.T).T).sum(dim=1)
# + (g @ torch.linalg.solve(matrix, g.T))

# %% solution-3: not so yet: it changed g
# - (g * torch.linalg.solve(matrix, g.T).T).sum(dim=1)
# + g.mul_(torch.linalg.solve(matrix, g.T).T).sum(dim=1)

# %% solution-3: your answer raised RuntimeError: linalg.solve
# - torch.linalg.solve(matrix, g.T)
# + torch.linalg.solve(H, g.T)

# %% solution-4: correct
def cosine_scores(computer, train, test):
    wanted = computer.compute_per_sample_grad(test)
    rows = []
    for batch in batches(train, 50):
        grads = computer.compute_per_sample_grad(batch)
        pairs = (grads, wanted), (grads, grads), (wanted, wanted)
        dots, own, other = (sum(a[n].flatten(1) @ b[n].flatten(1).T for n in a) for a, b in pairs)
        rows.append(dots / own.diagonal().sqrt()[:, None] / other.diagonal().sqrt())
    return torch.cat(rows)

# %% solution-4: correct
def cosine_scores(computer, train, test):
    def flat(batch):
        grads = computer.compute_per_sample_grad(batch)
        return torch.cat([g.flatten(1) for g in grads.values()], dim=1)

    wanted = flat(test)[None]
    each = (F.cosine_similarity(flat(b)[:, None], wanted, dim=2) for b in batches(train, 5))
    return torch.cat(list(each))

# %% solution-4: wrong shape
# - directions(batch) @ wanted.T for
# + wanted @ directions(batch).T for

# %% solution-4: right shape, wrong values: digits
# no lengths
# - return F.normalize(torch.cat([g.flatten(1) for g in grads.values()], dim=1), dim=1)
# + return torch.cat([g.flatten(1) for g in grads.values()], dim=1)

# %% solution-4: right shape, wrong values: digits
# - torch.cat([g.flatten(1) for g in grads.values()], dim=1), dim=1)
# + projection.project(grads, 512), dim=1)

# %% solution-4: right shape, wrong values: digits
# - F.normalize(torch.cat([g.flatten(1) for g in grads.values()], dim=1), dim=1)
# + torch.cat([F.normalize(g.flatten(1), dim=1) for g in grads.values()], dim=1) / 2

# %% solution-4: your answer raised ValueError
# - compute_per_sample_grad(batch)
# + compute_per_sample_grad(batch[:2])  # texts have four tensors

# %% solution-4: your answer raised ValueError: batch must hold 2 tensors
# - grads = computer.compute_per_sample_grad(batch)
# + grads = computers(network, images_task)[0].compute_per_sample_grad(batch)

# %% solution-4: not so yet: the peak is below 500 gradients
# - batches(train, 100)
# + batches(train, 333)

# %% solution-5: correct
def find_mislabelled(computer, images, labels, count):
    losses = F.cross_entropy(computer.model(images), labels, reduction="none")
    return losses.argsort(descending=True)[:count]

# %% solution-5: correct
def find_mislabelled(computer, images, labels, count):
    norms = []
    for batch in batches((images, labels), 100):
        grads = computer.compute_per_sample_grad(batch)
        squares = sum(g.flatten(1).square().sum(dim=1) for g in grads.values())
        norms.append(squares.sqrt() * computer.compute_loss_grad(batch).squeeze(1))
    return torch.cat(norms).topk(count).indices

# %% solution-5: not so yet: 8 of 10 are found
# - .topk(count).indices
# + .topk(count, largest=False).indices  # the surest

# %% solution-5: not so yet: each sample is named once
# - .topk(count).indices
# + .topk(count).indices[[*range(count - 1), 0]]  # the first again for the last

# %% solution-5: wrong shape
# - .topk(count).indices
# + .topk(50).indices  # of 500 images 25 are wrong
