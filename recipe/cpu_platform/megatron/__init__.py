"""Megatron-Core without a GPU: verl's Megatron engine on CPU tensors over gloo.

Megatron names its device everywhere and takes its layers from Transformer Engine. Here

- ``sources.py`` loads Megatron and mbridge with the CPU in place of CUDA,
- ``layers.py`` has torch's operations under the names of Transformer Engine's layers and parameters,
- ``bridges.py`` puts both in place and lists every other change, with its reason,
- ``engine.py`` lets verl find the engine, and imports Megatron where one is built and nowhere else.

``platform=cpu_megatron`` selects all that. What runs is verl's engine, worker and loss, Megatron's schedules, tensor,
sequence, pipeline and context parallelism, gradient buffers, distributed optimizer and checkpoints, and the import and
export of weights. Fused kernels, overlap and NCCL are not there.
"""
