"""How fast the page of `memfit serve` is in a real browser, beside optuna-dashboard on the same study."""
