"""When does an online refiner help? Hundreds of runs of a small model in one process: PROTOCOL.md."""
