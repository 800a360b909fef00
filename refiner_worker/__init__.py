"""The frozen reference model, hosted as a refiner: config, prompts, parsing, client and worker group."""
