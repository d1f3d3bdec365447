memfit measure -q --no-report -f -o memfit-runs/job -- python ../show/job.py
memfit export memfit-runs/job --to csv --table processes -f -o memfit-runs/processes.csv
memfit export memfit-runs/job --to chrome-trace -f -o memfit-runs/job.trace.json
cat memfit-runs/processes.csv
