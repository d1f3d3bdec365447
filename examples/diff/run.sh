memfit measure -q --no-report -f -o memfit-runs/a -- python job.py 100
memfit measure -q --no-report -f -o memfit-runs/b -- python job.py 140
memfit diff memfit-runs/a memfit-runs/b
