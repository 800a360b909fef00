#!/usr/bin/env bash
# verl's data.train_max_samples and val_max_samples take other rows at each start, also when a run is resumed.
#
# Version:   verl 0.9.1 with torchdata 0.11.0
# Guessed:   data.seed=null, the default, is a fixed order: without a limit each run has the same batches, and a resumed
#            run goes on where it stopped. So a limit takes the same rows each time, too; and those of the validation
#            are the first ones, as validation_shuffle is false.
# Behaviour: without a seed the order is drawn by a new torch.Generator, which always begins alike, and the rows by a
#            new numpy.random.default_rng(), which never does. A resumed run has the place of the old one in another set
#            of rows. Whether the validation's rows are drawn depends on data.shuffle, that of training; so two runs,
#            and the halves of a resumed one, are validated on other questions. Give data.seed a number.
# Source:    verl/utils/dataset/rl_dataset.py, RLHFDataset._read_files_and_tokenize; verl/trainer/ppo/utils.py,
#            create_rl_sampler
# Seen:      100 rows, limit 8, stopped after four: of the rows that the two starts took, few or none are the same, and
#            the resumed epoch trains on rows that were not in the first set. With data.seed=1 or without a limit it
#            goes on exactly
set -euo pipefail
# The last six are imported by verl and not asked for by its package.
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 torchdata==0.11.0 \
    cachetools==7.3.3 fastapi==0.136.3 msgspec==0.22.0 openai==3.54.0 pyzmq==27.3.0 uvicorn==0.54.0 <<'EOF'
from datasets import Dataset
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
from verl.utils.dataset.rl_dataset import collate_fn

NUM_ROWS, LIMIT, SAVED_AT = 100, 8, 2
prompts = [[{"role": "user", "content": str(row)}] for row in range(NUM_ROWS)]
Dataset.from_list([{"prompt": prompt, "extra_info": {"index": row}} for row, prompt in enumerate(prompts)]).to_parquet(
    "train.parquet"
)


def start(seed, limit):
    """As verl's trainers make the dataset and the loader of training; the validation's dataset is made alike."""
    given = {"shuffle": True, "validation_shuffle": False, "seed": seed, "filter_overlong_prompts": False}
    config = OmegaConf.create(given | {"cache_dir": "cache"})
    dataset = create_rl_dataset(["train.parquet"], config, None, None, max_samples=limit)
    sampler = create_rl_sampler(config, dataset)
    return StatefulDataLoader(dataset, batch_size=2, sampler=sampler, collate_fn=collate_fn, drop_last=True)


def rows_of(loader):
    return {row["extra_info"]["index"] for row in loader.dataset.dataframe}


def resume(seed, limit):
    """Return the rows of both starts, and the later steps of the run that goes on and of the resumed one."""
    run = start(seed, limit)
    steps = iter(run)
    for _ in range(SAVED_AT):
        next(steps)
    state = run.state_dict()
    resumed = start(seed, limit)
    resumed.load_state_dict(state)
    return rows_of(run), rows_of(resumed), *([batch["index"].tolist() for batch in part] for part in (steps, resumed))


for seed, limit in [(None, -1), (1, -1), (1, LIMIT)]:
    first, second, goes_on, resumed = resume(seed, limit)
    print(f"seed {seed}, limit {limit}: the same rows {first == second}, the same steps {goes_on == resumed}")
    assert first == second and goes_on == resumed

first, second, goes_on, resumed = resume(None, LIMIT)
print(f"seed None, limit {LIMIT}: {sorted(first)}, then {sorted(second)}; steps {goes_on}, resumed {resumed}")
assert len(first) == len(second) == LIMIT and first != second
assert not {*sum(resumed, [])} <= first, "the resumed run trains on the first set"
EOF
