"""Two steps of a trainer of TRL's on a file: ``trl_steps.py SFT|DPO MODEL FILE FOLDER``; prints what it learns."""

import json
import sys

import datasets
import trl


def main() -> None:
    """Train."""
    name, model, file, folder = sys.argv[1:]
    rows = datasets.load_dataset("json" if file.endswith(".jsonl") else "parquet", data_files=file, split="train")
    settings = getattr(trl, f"{name}Config")(
        output_dir=folder,
        max_steps=2,
        per_device_train_batch_size=2,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
    )
    trainer = getattr(trl, f"{name}Trainer")(model=model, args=settings, train_dataset=rows)
    trainer.train()
    batch = next(iter(trainer.get_train_dataloader()))
    learned = batch["labels"] != -100 if name == "SFT" else batch["completion_mask"].bool()
    texts = [trainer.processing_class.decode(ids[mask]) for ids, mask in zip(batch["input_ids"], learned, strict=True)]
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    print(json.dumps({"losses": losses, "texts": texts}))


if __name__ == "__main__":
    main()
