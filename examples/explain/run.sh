memfit explain study.json
memfit explain paper-mnist paper-cifar-10
