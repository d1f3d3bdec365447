memfit data list
