"""A refiner that differs by data source (``refiner.by_source``), in its settings, its model or its servers."""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from refiner_worker.client import HostedRefiner, RefinerClient, RefinerLostError
from refiner_worker.config import RefinerConfig
from refiner_worker.external import ExternalRefiner

logger = logging.getLogger(__name__)


class RefinerBySource(HostedRefiner):
    """The common refiner, with the models and servers of data sources that have their own."""

    def __init__(self, common: HostedRefiner, refiner: RefinerConfig, models: Mapping[str, HostedRefiner]) -> None:
        """Keep the common refiner, its settings, and by data source the models that the run hosts for some of them."""
        self._common, self._sources = common, refiner.sources
        servers = {source: ExternalRefiner(one) for source, one in refiner.own_servers.items()}
        self._own: dict[str, HostedRefiner] = {**servers, **models}
        self._all = list(dict.fromkeys([common, *self._own.values()]))

    def client(self) -> RefinerClient:
        """Return a client whose ``by_source`` has a client for each source."""
        clients = {one: one.client() for one in self._all}
        of_source = {source: clients[self._own.get(source, self._common)] for source in self._sources}
        by_source = {
            source: replace(client, config=replace(self._sources[source], max_model_len=client.config.max_model_len))
            for source, client in of_source.items()
        }
        return replace(clients[self._common], by_source=by_source)

    def wake_up(self) -> int:
        """Make all refiners ready, and return the number of replicas that were restarted.

        A refiner that is lost costs the refinements of its data sources.

        Raises:
            RefinerLostError: If all refiners are lost.
        """
        with ThreadPoolExecutor(len(self._all)) as threads:  # a silent server costs its time once
            found = list(threads.map(_woken, self._all))
        lost = [one for one in found if isinstance(one, RefinerLostError)]
        if len(lost) == len(found):
            raise lost[0]
        for error in lost:
            logger.warning("%s; its data sources go without refinements", error.why)
        return sum(one for one in found if isinstance(one, int))

    def sleep(self) -> None:
        """Let the refiners sleep that the run hosts."""
        for one in self._all:
            one.sleep()


def _woken(one: HostedRefiner) -> int | RefinerLostError:
    try:
        return one.wake_up()
    except RefinerLostError as error:
        return error
