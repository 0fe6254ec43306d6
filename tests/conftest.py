"""Set-up that every test shares: one thread a process, reproducible draws."""

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)  # pytest-xdist runs one process per core
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
