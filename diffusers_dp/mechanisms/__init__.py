"""How units take part in a query or a step, and which noise covers the answer: one frozen value, one file each. No
torch."""

from .banded import Banded
from .everyone import Everyone
from .kinds import KINDS, mechanism_of, sampled
from .mechanism import Mechanism
from .poisson import Poisson
from .shares import Shares


__all__ = ["KINDS", "Banded", "Everyone", "Mechanism", "Poisson", "Shares", "mechanism_of", "sampled"]
