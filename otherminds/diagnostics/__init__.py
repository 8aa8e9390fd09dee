"""Measures of single modules: pure functions of what a module said and what was true, for `otherminds fit` and `diagnose`."""
