"""`StoreContract`: every rule of `backtrail.stores.base` as a test to inherit."""

from __future__ import annotations

from .adopting import AdoptingRules
from .append import AppendRules
from .closing import ClosingRules
from .forks import ForkRules
from .groups import GroupRules
from .ids import IdRules
from .info import InfoRules
from .lease import LeaseRules
from .read import ReadRules
from .search import SearchRules
from .sessions import SessionRules
from .several import SeveralRules
from .sharing import SharingRules
from .values import ValueRules
from .verbs import VerbRules


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
    SeveralRules,
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
