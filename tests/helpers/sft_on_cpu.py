"""verl's SFT trainer in one process on a CPU: its own process group would have a backend for the CPU twice."""

import torch
from verl.trainer.sft_trainer import main
from verl.utils import distributed

distributed.initialize_global_process_group = lambda: torch.distributed.init_process_group("gloo")

if __name__ == "__main__":
    main()
