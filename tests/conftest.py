"""What all tests share."""

import torch

# The models here are tiny, and threads that wait for each other on a busy machine cost more time
# than all the arithmetic.
torch.set_num_threads(1)
