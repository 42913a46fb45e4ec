# Wrong answers: the id of the solution that each stands for, and the verdict it gets.

# %% solution-1: right shape, wrong values
class Regression:
    def get_output(self, model, weights, buffers, image, target):
        return functional_call(model, (weights, buffers), (image.unsqueeze(0),)).squeeze()

    def get_out_to_loss_grad(self, model, weights, buffers, batch):
        images, targets = batch
        predictions = functional_call(model, (weights, buffers), (images,))
        return (predictions - targets[:, None]).detach()


# %% solution-2: right shape, wrong values
def leverages(matrix):
    return (g * torch.linalg.solve(matrix, g.T).T).sum(dim=1)


# %% solution-2: wrong shape
def leverages(matrix):
    return q * (1 - q) * (g @ torch.linalg.solve(matrix, g.T))


# %% solution-3: wrong shape
def cosine_scores(params):
    return torch.zeros(targets, len(train_images))


# %% solution-3: right shape, wrong values
def cosine_scores(params):
    return torch.zeros(len(train_images), targets).to(device)
