# %% solution-1: correct
def accumulated_gradient(model, micro_batches):  # the gradients of means, with their coefficients
    counts = torch.tensor([(tags != -100).sum() for _, tags in micro_batches])
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for (words, tags), count in zip(micro_batches, counts.tolist(), strict=True):
        scores = model(words)
        if count == 0:
            continue
        loss = tag_loss(scores, tags) * count / counts.sum().item()
        for name, g in zip(total, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            total[name] += g
    return total

# %% solution-1: correct
def accumulated_gradient(model, micro_batches):  # one graph, one backward pass
    losses = 0.0
    count = 0
    for words, tags in micro_batches:
        scores = model(words).flatten(0, 1)
        losses = losses + F.cross_entropy(scores, tags.flatten(), reduction="sum")
        count = count + (tags != -100).sum()
    model.zero_grad()
    (losses / count).backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return grads

# %% solution-1: right shape, wrong values
def accumulated_gradient(model, micro_batches):  # the mean of the means
    params = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in params.items()}
    for words, tags in micro_batches:
        gradients = torch.autograd.grad(tag_loss(model(words), tags), list(params.values()))
        for name, gradient in zip(params, gradients, strict=True):
            total[name] += gradient
    return {name: gradient / len(micro_batches) for name, gradient in total.items()}

# %% solution-1: right shape, wrong values
def accumulated_gradient(model, micro_batches):  # weighted by sentences, not by words
    total = 0
    params = dict(model.named_parameters())
    mean = {name: torch.zeros_like(p) for name, p in params.items()}
    for words, tags in micro_batches:
        total += len(words)
        gradients = torch.autograd.grad(tag_loss(model(words), tags), list(params.values()))
        for name, gradient in zip(params, gradients, strict=True):
            mean[name] += gradient * len(words)
    return {name: gradient / total for name, gradient in mean.items()}

# %% solution-1: right shape, wrong values
# padding counts as words
# - (tags != -100).sum().item()
# + tags.numel()

# %% solution-1: right shape, wrong values
# the sum over the words
# - gradient / word_count for
# + gradient for

# %% solution-1: correct
def accumulated_gradient(model, micro_batches):  # of no words the loss is NaN, its gradient 0
    counts = [(tags != -100).sum().item() for _, tags in micro_batches]
    params = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in params.items()}
    for (words, tags), count in zip(micro_batches, counts, strict=True):
        gradients = torch.autograd.grad(tag_loss(model(words), tags), list(params.values()))
        for name, gradient in zip(params, gradients, strict=True):
            total[name] += gradient * count / sum(counts)
    return total

# %% solution-1: not so yet: one call for each micro-batch: measured
def accumulated_gradient(model, micro_batches):  # a sentence at a time
    singles = []
    for words, tags in micro_batches:
        singles += [(words[i : i + 1], tags[i : i + 1]) for i in range(len(words))]
    return mean_over_all_words(model, singles)

# %% solution-1: not so yet: it changed cases
# - loss = F.cross_entropy(scores, tags, reduction="sum")
# + loss = F.cross_entropy(scores, tags.clamp_(min=0), reduction="sum")
