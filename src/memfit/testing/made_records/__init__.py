"""Made records, realistic without any run: chains, run folders, ledgers, studies."""
