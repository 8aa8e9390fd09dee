"""The type checker of the tests: beartype, for which a whole number is a number."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
