"""A refiner that differs by data source (``refiner.by_source``), in its settings or its servers."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from refiner_worker.client import HostedRefiner, RefinerClient
from refiner_worker.config import RefinerConfig
from refiner_worker.external import ExternalRefiner


class RefinerBySource(HostedRefiner):
    """The common refiner, with the servers of data sources that have their own."""

    def __init__(self, common: HostedRefiner, refiner: RefinerConfig) -> None:
        self._common, self._sources = common, refiner.sources
        self._own = {source: ExternalRefiner(one) for source, one in refiner.own_servers.items()}

    def client(self) -> RefinerClient:
        """Return a client whose ``by_source`` has a client for each source."""
        common = self._common.client()
        own = {source: one.client() for source, one in self._own.items()}
        by_source = {source: own.get(source) or replace(common, config=one) for source, one in self._sources.items()}
        return replace(common, by_source=by_source)

    def wake_up(self) -> int:
        """Make all refiners ready; only a source whose servers do not answer has no refinements."""
        with ThreadPoolExecutor(max(1, len(self._own))) as threads:  # a silent server costs its time once
            list(threads.map(ExternalRefiner.wake_up, self._own.values()))
        return self._common.wake_up()

    def sleep(self) -> None:
        """Let the common refiner sleep."""
        self._common.sleep()
