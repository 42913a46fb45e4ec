# Wrong answers: the id of the solution that each stands for, and the verdict it gets.

# %% solution-1: not so yet: the bytes of the Jacobian
def result_bytes(model, batch_size, outputs=None):
    return batch_size * sum(parameter.nbytes for parameter in model.parameters())


# %% solution-1: not so yet: the bytes in float32 and float64
def result_bytes(model, batch_size, outputs=None):
    return batch_size * (outputs or 1) * 4 * sum(p.numel() for p in model.parameters())


# %% solution-1: not so yet: the bytes in float32 and float64
def result_bytes(model, batch_size, outputs=None):
    parameters = list(model.parameters())
    size = parameters[0].element_size()
    return batch_size * (outputs or 1) * size * sum(p.numel() for p in parameters)


# %% solution-1: not so yet: the bytes in float32 and float64
def result_bytes(model, batch_size, outputs=None):
    return batch_size * (outputs or 1) * sum(t.nbytes for t in model.state_dict().values())


# %% solution-1: not so yet: the same for Y = 3
def result_bytes(model, batch_size, outputs=None):
    return batch_size * (10 if outputs else 1) * sum(p.nbytes for p in model.parameters())


# %% solution-1: not so yet: it is an int
def result_bytes(model, batch_size, outputs=None):
    return 1.0 * batch_size * (outputs or 1) * sum(p.nbytes for p in model.parameters())


# %% solution-2: not so yet: chunk_size decides
def write_gradients(buffers, images, labels, chunk_size):
    for start in range(len(images)):
        one = slice(start, start + 1)
        grads = gradients.func_gradients(model, F.cross_entropy, images[one], labels[one])
        for name, buffer in buffers.items():
            buffer[one] = grads[name]
    return buffers


# %% solution-2: right shape, wrong values
def write_gradients(buffers, images, labels, chunk_size):
    grads = gradients.func_gradients(
        model, lambda p, t: F.cross_entropy(p, t) / chunk_size, images, labels
    )
    for name, buffer in buffers.items():
        buffer.copy_(grads[name])
    return buffers


# %% solution-2: not so yet: they are in the memory of the buffers
def write_gradients(buffers, images, labels, chunk_size):
    return gradients.func_gradients(model, F.cross_entropy, images, labels, chunk_size=chunk_size)


# %% solution-2: not so yet: the peak is below half
def write_gradients(buffers, images, labels, chunk_size):
    grads = gradients.func_gradients(model, F.cross_entropy, images, labels)
    for name, buffer in buffers.items():
        buffer.copy_(grads[name])
    return buffers


# %% solution-2: not so yet: they are in the memory of the buffers
def write_gradients(buffers, images, labels, chunk_size):
    chunks = zip(images.split(chunk_size), labels.split(chunk_size), strict=True)
    parts = [gradients.func_gradients(model, F.cross_entropy, *chunk) for chunk in chunks]
    for name in buffers:
        buffers[name] = torch.cat([part[name] for part in parts])
    return buffers


# %% solution-2: right shape, wrong values
def write_gradients(buffers, images, labels, chunk_size):
    for start in range(0, len(images) - chunk_size + 1, chunk_size):
        part = slice(start, start + chunk_size)
        grads = gradients.func_gradients(model, F.cross_entropy, images[part], labels[part])
        for name, buffer in buffers.items():
            buffer[part] = grads[name]
    return buffers
