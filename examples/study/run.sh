memfit study --space space.json --tuner GridSearch --no-figures -f -o memfit-runs/study -- python trial.py
