memfit explain study.json
