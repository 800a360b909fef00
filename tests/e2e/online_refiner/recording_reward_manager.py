"""verl's reward manager, which also keeps every request that it gets, in order of time: RUN_DIR/requests/*.pkl."""

import pickle
import time
from pathlib import Path
from typing import Any

from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.protocol import DataProto


class RecordingRewardManager(NaiveRewardManager):
    """Keeps tensors and other columns as they came."""

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Reward one response."""
        request = {**dict(data.batch.items()), **data.non_tensor_batch}
        folder = Path(self.config.run_dir) / "requests"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{time.time_ns()}.pkl").write_bytes(pickle.dumps(request))
        return await super().run_single(data)
