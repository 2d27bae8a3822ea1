"""`StoreContract`: every rule of `backtrail.stores.base` as a test to inherit."""

from __future__ import annotations

from .contract_adopting import AdoptingRules
from .contract_append import AppendRules
from .contract_closing import ClosingRules
from .contract_forks import ForkRules
from .contract_groups import GroupRules
from .contract_ids import IdRules
from .contract_info import InfoRules
from .contract_lease import LeaseRules
from .contract_read import ReadRules
from .contract_search import SearchRules
from .contract_sessions import SessionRules
from .contract_sharing import SharingRules
from .contract_values import ValueRules
from .contract_verbs import VerbRules


class StoreContract(
    AppendRules,
    GroupRules,
    ReadRules,
    ForkRules,
    SessionRules,
    InfoRules,
    ValueRules,
    IdRules,
    VerbRules,
    AdoptingRules,
    SearchRules,
    LeaseRules,
    SharingRules,
    ClosingRules,
):
    """Subclass it with one method, and pytest runs every rule on your store.

    `make(place)` opens a store that keeps its data in the directory `place`, which exists.
    Opening the same place again must show the same data. Where that cannot be, say so:

    - `persistent = False`: the data goes with the store object.
    - `shared = False`: one process at a time may use a place.

    A store whose `append` returns events that have no `seq` yet overrides `settle`.
    Test names begin with the verb they are about: `test_append_…`, `test_fork_…`.
    """
