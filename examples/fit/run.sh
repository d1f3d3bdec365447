mkdir -p memfit-runs
memfit fit job.py:make --budget 64MiB --force -o memfit-runs/plan.json
