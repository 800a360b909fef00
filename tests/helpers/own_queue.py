"""verl's TransferQueue in this process: its own controller, storage and client, without Ray."""

import contextlib
import uuid
from collections.abc import Iterator
from importlib import resources
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack
from transfer_queue import KVBatchMeta, interface
from transfer_queue.controller import TransferQueueController
from transfer_queue.storage.simple_storage import SimpleStorageUnit
from verl.utils import transferqueue_utils


@contextlib.contextmanager
def serving() -> Iterator[None]:
    """Serve all that uses ``transfer_queue`` in this process, until the block ends."""
    controller = TransferQueueController.__ray_metadata__.modified_class()
    storage = SimpleStorageUnit.__ray_metadata__.modified_class({"num_data_storage_units": 1})
    config = OmegaConf.create({}, flags={"allow_objects": True})
    config = OmegaConf.merge(config, OmegaConf.load(str(resources.files("transfer_queue") / "config.yaml")))
    config.controller.zmq_info = controller.get_zmq_server_info()
    config.backend.SimpleStorage.zmq_info = {"unit": storage.get_zmq_server_info()}
    client = interface._maybe_create_tq_client(config)
    was_known, transferqueue_utils.TQ_INITIALIZED = transferqueue_utils.TQ_INITIALIZED, True
    try:
        yield
    finally:
        transferqueue_utils.TQ_INITIALIZED = was_known
        interface._TQ_CLIENT = None
        client.close()
        storage.shutdown()


def put(keys: list[str], tags: list[dict[str, Any]], columns: dict[str, list[Any]]) -> KVBatchMeta:
    """Put rows into a partition of their own, and return them.

    Columns of lists of numbers become jagged tensors, those of numbers plain ones; all else is put as it is.
    """
    fields: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values[0], list) and isinstance(values[0][0], int | float):
            fields[name] = torch.nested.as_nested_tensor([*map(torch.tensor, values)], layout=torch.jagged)
        else:
            fields[name] = torch.tensor(values) if isinstance(values[0], int | float) else NonTensorStack(*values)
    batch = KVBatchMeta(keys=keys, tags=tags, partition_id=f"of a test {uuid.uuid4().hex}")
    tq.kv_batch_put(
        keys=keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(keys)), tags=tags
    )
    return batch


def column(batch: KVBatchMeta, name: str) -> list[Any]:
    """Return a column of all rows, in lists."""
    values = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[name])[name]
    return [one.tolist() for one in values.unbind()]


def write(batch: KVBatchMeta, name: str, value: float) -> None:
    """Write a number at every token of the responses."""
    rows = [torch.full((tag["response_len"],), value) for tag in batch.tags]
    fields = TensorDict({name: torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, batch_size=len(batch))
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
