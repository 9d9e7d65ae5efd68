"""The mark of tests that need a GPU build of torch and a GPU."""

import pytest
import torch

GPU_ONLY = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
