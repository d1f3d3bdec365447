memfit reproduce
