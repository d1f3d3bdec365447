memfit measure --ledger -f -o memfit-runs/mlp -- python ../train_mlp.py --steps 60
