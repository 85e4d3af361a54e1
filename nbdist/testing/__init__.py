"""Contracts: tests that every strategy, collective and parameter-server link has to pass, to be inherited.

    from nbdist.testing import StrategyContract, thread_world

    class TestMine(StrategyContract):
        @pytest.fixture
        def world(self):
            return thread_world(lambda place: MyStrategy(world=place), size=2)

pytest then runs the tests of `StrategyContract` with the replicas that ``world`` returns.
`CollectiveContract` needs ``make_world``, `LinkContract` needs ``kind`` and ``open_link``.

The contracts need ``pip install pytest hypothesis``: importing this package without them raises MissingExtra.
"""

from nbdist.errors import MissingExtra

try:
    import hypothesis  # noqa: F401  # for the contract of collectives
    import pytest
except ImportError:
    raise MissingExtra("", "nbdist.testing", packages="pytest hypothesis") from None

# Before the contracts are imported: a failed assert in them shows its values.
pytest.register_assert_rewrite(*(f"{__name__}.{contract}" for contract in ("strategy", "collective", "link")))

from nbdist.testing.collective import CollectiveContract  # noqa: E402  # after the line above
from nbdist.testing.link import LinkContract  # noqa: E402
from nbdist.testing.strategy import StrategyContract, thread_world  # noqa: E402

__all__ = ["CollectiveContract", "LinkContract", "StrategyContract", "thread_world"]
